"""A cascade on virtual time: recordings are written down at their length, text is spoken by phrases."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from antiphon.assembly.preset import with_preset
from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, NodeConfig
from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Span, StagePrompt, StepDone
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, Join, RenderPrompt, ints
from antiphon.core.sampling import Sampling
from antiphon.graphs import find_graph
from antiphon.latency.features import SpeechFeatures
from antiphon.latency.profile import Reading, Served
from antiphon.metrics.log import AudioDelta, ResponseEnded
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine
from antiphon.sim.places import Replicas, placed
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.reading import KEPT_RECORDINGS, TOKENS_PER_S, ReadingVoice, RecordingEncoder, Transcriber
from antiphon.sim.run import Simulation, simulate
from antiphon.sim.suited import unsuited
from antiphon.workload.load import named
from sim.runs import setup, started

READING = Reading(first_tokens=3, phrase_tokens=5, token_samples=1000, window_samples=2400)


def cascade_config(rows: int = 3, reply_tokens: int = 24) -> NodeConfig:
    def decoder(max_tokens: int, blocks: int) -> ArConfig:
        sampling = Sampling(max_tokens=max_tokens)
        return ArConfig(
            max_rows=rows, block_size=4, num_blocks=blocks, step_tokens=24, stop_ids=(1,), sampling=sampling
        )

    return NodeConfig(
        graph="cascade",
        ar={"transcriber": decoder(20, 16 * rows), "thinker": decoder(reply_tokens, 512)},
        codec={"voice": CodecConfig(rows)},
        encoder={"ears": EncoderConfig()},
        end_inputs={},
        transcript_prompt=(5, 6),
    )


def engine(reading: Reading | None = READING, config: NodeConfig | None = None) -> SimEngine:
    sizes = {("transcriber", "kv"): 1000, ("thinker", "kv"): 1000}
    return SimEngine(Served(config or cascade_config(), 1, reading=reading), sizes)


def voice_step(count: int, *, join: bool = False, end: bool = False) -> CodecStep:
    frames = np.full((count, 1), 7)
    columns = ints([0] if join else []), ints([0]), ints([40]), ints([count]), frames
    return CodecStep("voice", 0, *columns, "", ints([int(end)]), (None,))


def done(voice: ReadingVoice, step: CodecStep) -> tuple[int, bool, list[int]]:
    """Samples, whether it owes, and the words that are over."""
    fact = voice.run(step)
    assert isinstance(fact, StepDone)
    assert len(fact.audio[0]) == 4 * int(fact.samples[0])
    return int(fact.samples[0]), bool(len(fact.owing)), fact.words.tolist()


def test_a_phrase_is_spoken_window_by_window_and_the_rest_with_the_end() -> None:
    voice = ReadingVoice(READING)
    assert done(voice, voice_step(2, join=True)) == (0, False, [])
    assert voice.said == SpeechFeatures(1)
    assert done(voice, voice_step(2)) == (2400, True, [40, 2, 2400])
    assert voice.said == SpeechFeatures(1, 1, 0.125, 1, 0.1)
    assert done(voice, voice_step(0)) == (600, False, [40, 3, 3000])
    assert voice.said == SpeechFeatures(1, 0, 0.0, 1, 0.025)
    assert done(voice, voice_step(2)) == (0, False, []), "three are there, five make a phrase"
    assert done(voice, voice_step(0, end=True)) == (2400, True, [40, 5, 5400])
    assert done(voice, voice_step(0)) == (600, False, [40, 6, 6000])
    assert done(voice, voice_step(1, join=True)) == (0, False, []), "another reply takes the row"


def test_a_transcript_is_as_long_as_what_was_said() -> None:
    ears, recording = RecordingEncoder(), AudioPart(bytes(4 * 32_000), 77)
    ears.run(EncodeStep("ears", 0, (recording,), ""))
    writer = Transcriber(cascade_config().ar["transcriber"], ears)
    ids = ints([5, 6])
    prompt = StagePrompt(ids, ids, (Span(77, "audio", 0, 2),), 0, NO_INTS)
    join = Join(0, 9, prompt, 0, Sampling(max_tokens=20), np.zeros((0, 1), np.int64))
    tokens: list[int] = []
    for start, count in ((0, 2), *((at, 1) for at in range(2, 20))):
        columns = ints([0]), ints([start]), ints([count]), ints([1])
        joins = (join,) if start == 0 else ()
        fact = writer.run(ArStep("transcriber", 0, joins, NO_INTS, (), NO_INTS, NO_INTS, *columns, ""))
        assert isinstance(fact, StepDone)
        tokens.append(int(fact.tokens[0, 0]))
    assert tokens.index(1) == round(2.0 * TOKENS_PER_S)
    for key in range(KEPT_RECORDINGS):
        ears.run(EncodeStep("ears", 0, (AudioPart(bytes(4), key + 100),), ""))
    assert ears.seconds(77) == 0.0


def test_a_prompt_has_the_transcript_in_the_recordings_place() -> None:
    prompter = SimPrompter(find_graph("cascade"))
    recording = AudioPart(bytes(400), 77)
    items = (Item("i", "user", (recording, TextPart("and more"))),)
    order = RenderPrompt(3, items, True, transcripts={77: (901, 902, 903)})
    answer = prompter.render(order)
    assert [*answer.prompts] == ["thinker"]
    ids = answer.prompts["thinker"].token_ids.tolist()
    assert ids[3:6] == [901, 902, 903]
    assert answer.prompts["thinker"].spans == ()


@pytest.mark.parametrize("turns", ["manual", "server_vad"])
@pytest.mark.parametrize("workload", ["smoke", "barge-in"])
def test_people_talk_with_a_cascade(workload: str, turns: str) -> None:
    changes = {"turn_detection": turns, "load": {"closed": {"concurrency": 2, "sessions": 4}}}
    made = Simulation(setup(workload, settings=changes, engine=engine()))
    outcome = made.play(started())
    assert outcome.reason == "finished"
    ends = [event for event in outcome.events if isinstance(event, ResponseEnded)]
    assert ends
    assert {event.status for event in ends} <= {"completed", "cancelled", "incomplete"}
    spoken = [event.response for event in outcome.events if isinstance(event, AudioDelta)]
    assert spoken
    made.agenda.run(made.agenda.now + 60.0, lambda: False)
    node = made.driver.node
    node.check_integrity()
    assert node.stats()["antiphon_responses_open"] == node.stats()["antiphon_sessions"] == 0


def test_a_turn_beyond_what_is_heard_at_once_is_written_down_in_pieces() -> None:
    """A piece of the 25 s is no longer than 10, and each has a transcript of its own."""
    served = engine()
    heard = replace(served.served, max_recording_s=10.0)
    changes = {
        "load": {"closed": {"concurrency": 1, "sessions": 1}},
        "people.talker.turns": 1,
        "people.talker.speech": {"seconds": 25.0, "max_s": 30.0},
    }
    longest: list[float] = []
    for one in (served, SimEngine(heard, served.block_bytes)):
        made = Simulation(setup("voice-chat", settings=changes, engine=one))
        with pytest.MonkeyPatch.context() as patched:
            lengths: list[float] = []
            run = RecordingEncoder.run
            patched.setattr(
                RecordingEncoder,
                "run",
                lambda ears, step, lengths=lengths, run=run: (
                    lengths.extend(part.num_samples / 16_000 for part in step.media) or run(ears, step)
                ),
            )
            assert made.play(started()).reason == "finished"
        longest.append(max(lengths))
    assert longest[0] > 20.0
    assert longest[1] <= 10.0


def test_a_phrase_may_be_longer_than_a_reply_may_be_ahead() -> None:
    """Held for long enough, its thinker would never write the rest of it."""
    config = cascade_config()
    decoders = {name: replace(one, sampling=Sampling(max_tokens=200)) for name, one in config.ar.items()}
    config = with_preset(replace(config, ar=decoders), "liveserve")
    slow = Reading(first_tokens=3, phrase_tokens=60, token_samples=7200, window_samples=2400)
    settings = {
        "load": {"closed": {"concurrency": 2, "sessions": 3}},
        "people.talker.max_output_tokens": 120,
        "people.talker.reply_s": 36.0,
        "people.talker.barge_in.probability": 0,
    }
    outcome = Simulation(setup("barge-in", settings=settings, engine=engine(slow, config))).play(started())
    ends = [event for event in outcome.events if isinstance(event, ResponseEnded)]
    assert len(ends) >= 3
    assert {event.status for event in ends} <= {"completed", "incomplete"}
    assert max(event.t_s for event in outcome.events) < 1000


def test_what_cannot_be_simulated_is_said() -> None:
    with pytest.raises(ConfigError, match="how the voice reads a text aloud; measure the model"):
        Simulation(setup("smoke", engine=engine(reading=None)))
    node = cascade_config()
    assert list(unsuited(named("voice-chat"), node)) == []
    assert any("does not see" in clause for clause in unsuited(named("mixed"), node))


def test_what_hears_is_beside_what_reads_and_the_voice_has_a_device_of_its_own() -> None:
    units = placed(cascade_config(), Replicas(thinkers=2))
    assert [(unit.name, unit.device) for unit in units] == [
        ("ears", "thinker.0"),
        ("transcriber.0", "thinker.0"),
        ("transcriber.1", "thinker.1"),
        ("thinker.0", "thinker.0"),
        ("thinker.1", "thinker.1"),
        ("voice", "voice"),
    ]


@cache
def span_s(preset: str) -> float:
    """In which three people who share one row have their long replies."""
    load = {"closed": {"concurrency": 3, "sessions": 3}}
    people = {"people.talker.turns": 1, "people.talker.max_output_tokens": 600}
    served = engine(config=with_preset(cascade_config(rows=1, reply_tokens=800), preset))
    made = simulate(
        setup("voice-chat", settings={"load": load, **people}, engine=served, patience_s=900.0), started()
    )
    found = figures(fold(made.events), Slo())
    assert found["completed_turns"] == 3
    assert not made.incidents
    return found["span_s"]


@pytest.mark.parametrize("preset", ["liveserve", "tokenflow"])
def test_long_replies_take_the_one_row_in_turn(preset: str) -> None:
    """Whoever has drawn all that the voice has asked for lets another write."""
    assert span_s(preset) < 1.2 * span_s("baseline")
