"""Measuring a tiny engine: every stage gets figures, whatever was measured leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon import Omni, Request
from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.errors import StageFailed
from antiphon.core.rng import stream
from antiphon.core.sampling import Sampling
from antiphon.engine.load import Engine
from antiphon.graphs import find_graph
from antiphon.latency.features import SpeechFeatures, ar_features, codec_features, encode_features
from antiphon.latency.models import ArModel, EncoderModel, SpeechModel
from antiphon.latency.profile import Profile, Provenance, SoundWindow
from antiphon.metrics.log import AudioDelta, ResponseEnded
from antiphon.runtime.profiler import Subject, load_subject, profile
from antiphon.runtime.stage_times import Effort, Stopwatch, done, measure_stages, spoken_tokens, timed
from antiphon.runtime.synthetic_speech import TEXTS, SpeechSynthesis, drawn_speaking, speaking
from antiphon.runtime.synthetic_steps import (
    ArMix,
    ArSynthesis,
    Chunk,
    CodecMix,
    CodecSynthesis,
    chunking,
    doublings,
    drawing,
    drawn_decoding,
    drawn_mix,
    recording,
)
from antiphon.sim.model import engine_of
from antiphon.sim.run import Setup, Simulation
from antiphon.workload.load import changed, named
from sim.runs import started

LITTLE = Effort(rounds=1, fitted_steps=12, held_out_steps=4)
SIZES: dict[str, Any] = {
    "device": "cpu",
    "max_rows": 4,
    "kv_tokens": 1024,
    "step_tokens": 96,
    "max_context_tokens": 256,
}
OPTIONS = EngineOptions(**SIZES)


def quiet(what: str, done: int, total: int) -> None:
    """Shows nothing."""


def subject(checkpoint: Path, depth: int = 0) -> Subject:
    options = msgspec.structs.replace(OPTIONS, depth=depth)
    return load_subject(str(checkpoint), options, "tiny", quiet)


@pytest.mark.parametrize("depth", [0, 1])
def test_every_stage_of_an_engine_is_measured(tiny_checkpoint: Path, depth: int) -> None:
    seen: list[str] = []
    made = profile(
        subject(tiny_checkpoint, depth),
        Provenance(model="tiny"),
        lambda what, done, total: seen.append(what),
        LITTLE,
    )
    assert [*made.stages] == ["encoders", "thinker", "talker", "code2wav"]
    assert made.source == "measured"
    assert made.served is not None
    assert (made.served.depth, made.served.node.ar["thinker"].max_rows) == (depth, 4)
    assert made.served.node.ar["thinker"].host_blocks == 0
    assert made.served.frame_samples > made.served.delay_samples > 0
    assert Profile.from_json(made.to_json()) == made
    for stage in made.stages.values():
        assert stage.residuals is not None
        assert stage.residuals.num_steps == LITTLE.held_out_steps
        assert stage.residuals.mean >= 0
    assert {"host", "device"} == {*made.links}
    assert made.decide_s > 0
    talker, thinker = made.stages["talker"], made.stages["thinker"]
    assert isinstance(talker.model, ArModel)
    assert talker.model.frame is not None
    assert thinker.cpu_attention is not None
    assert thinker.block_bytes == {"kv": 4 * 2 * 16 * 2 * 32 * 4, "hidden": 16 * 64 * 4}
    assert any("Algorithm 1" in what for what in seen)
    assert Profile.from_json(made.to_json()) == made


def test_an_engine_says_afterwards_what_it_said_before(tiny_checkpoint: Path) -> None:
    """Rows are given up, and what lies in the blocks is nobody's."""
    greedy = {"thinker": Sampling(max_tokens=8), "talker": Sampling(max_tokens=12)}
    asked = Request("hello", sampling=greedy)
    omni = Omni(tiny_checkpoint, **SIZES)
    engine: Engine = omni.engine
    graph = find_graph(engine.info.family)
    assert [*measure_stages(engine, graph, LITTLE, quiet).stages] == [stage.name for stage in graph.stages]
    executor = engine.executors["thinker"]
    assert executor._requests == {}  # type: ignore[attr-defined]
    assert engine.executors["encoders"]._features._features == {}  # type: ignore[attr-defined]
    fresh = Omni(tiny_checkpoint, **SIZES).generate([asked])[0]
    again = omni.generate([asked])[0]
    assert again.text == fresh.text
    assert (again.token_ids["talker"] == fresh.token_ids["talker"]).all()
    assert (again.audio == fresh.audio).all()


def test_a_step_that_fails_is_told(tiny_checkpoint: Path) -> None:
    engine = subject(tiny_checkpoint).engine
    graph = find_graph(engine.info.family)
    craft = ArSynthesis(graph.stage("thinker"), engine.node.ar["thinker"], stream(0, "x"), 256)
    mix = ArMix(chunks=(Chunk(0, 5),))
    for step in craft.prepare(mix):
        timed(engine, step, Stopwatch())
    broken = msgspec.structs.replace(craft.step(mix), starts=craft.step(mix).starts + 10**6)
    with pytest.raises(StageFailed, match="made to be measured failed"):
        timed(engine, broken, Stopwatch())


def test_synthetic_steps_are_what_was_asked_for(tiny_checkpoint: Path) -> None:
    node, graph = subject(tiny_checkpoint).engine.node, find_graph("qwen3_omni_moe")
    craft = ArSynthesis(graph.stage("talker"), node.ar["talker"], stream(0, "ids"), 256)
    assert craft.reach_tokens == 256
    rng = stream(0, "mixes")
    for mix in (*drawing(craft), *chunking(craft, (1, 8, 96)), *(drawn_mix(craft, rng) for _ in range(200))):
        craft.prepare(mix)
        step = craft.step(mix)
        found = ar_features(step)
        assert found.num_tokens == len(mix.draws) + sum(chunk.count for chunk in mix.chunks)
        assert found.emits == len(mix.draws) + sum(chunk.finishes for chunk in mix.chunks)
        assert found.joins == sum(chunk.joins for chunk in mix.chunks)
        assert found.num_tokens <= craft.config.step_tokens
        assert len(set(step.rows.tolist())) == len(step.rows) > 0
        assert (step.starts + step.counts).max() <= craft.reach_tokens
    assert craft.leave().leaves.tolist() == [0, 1, 2, 3]


def test_synthetic_chunks_of_a_codec(tiny_checkpoint: Path) -> None:
    graph, rng = find_graph("qwen3_omni_moe"), stream(0, "codec")
    craft = CodecSynthesis(graph.stage("code2wav"), 16, rng)
    assert [step.joins.tolist() for step in craft.prepare(CodecMix((4, 4, 4), 1))] == [[1, 2]]
    for mix in [drawn_decoding(8, (2, 4), rng) for _ in range(50)]:
        assert all(step.stage == "code2wav" for step in craft.prepare(mix))
        step = craft.step(mix)
        assert codec_features(step)[:2] == (len(mix.frames), sum(mix.frames))
        assert step.frames.shape == (sum(mix.frames), 16)


def test_doublings_end_with_the_most() -> None:
    assert [doublings(n) for n in (1, 2, 5, 8)] == [(1,), (1, 2), (1, 2, 4, 5), (1, 2, 4, 8)]


def test_a_stopwatch_counts_what_a_thread_does() -> None:
    watch = Stopwatch()
    watch.start()
    before = time.thread_time()
    while time.thread_time() - before < 0.02:
        pass
    seconds = watch.stop()
    assert 0.015 < seconds < 5
    watch.start()
    time.sleep(0.02)
    assert watch.stop() >= 0.015


def test_a_cascade_is_measured_and_simulated(cascade_checkpoint: Path) -> None:
    """Ears by recordings alone, and a voice that begins phrases, sounds on and only reads."""
    asked = subject(cascade_checkpoint, depth=1)
    made = profile(asked, Provenance(model="cascade"), quiet, LITTLE)
    assert [*made.stages] == ["ears", "transcriber", "thinker", "voice"]
    assert Profile.from_json(made.to_json()) == made
    ears, voice = made.stages["ears"].model, made.stages["voice"].model
    assert isinstance(ears, EncoderModel)
    assert ears.visual_s == ears.visual_token_s == 0
    assert ears.seconds(encode_features((recording(stream(0, "x"), 2.0),))) > 0
    assert isinstance(voice, SpeechModel)
    reads, begins = SpeechFeatures(1), SpeechFeatures(1, 1, 1.0, 1, 0.064)
    assert voice.seconds(begins) > voice.seconds(reads) > 0
    assert made.served is not None
    reading = made.served.reading
    assert reading is not None
    assert reading.window_samples == 24 * 64, "frames, and samples of each"
    assert reading.first_tokens > 1
    assert not asked.engine.executors["voice"].inner._streams  # type: ignore[attr-defined]
    workload = changed(named("smoke"), {"load": {"closed": {"concurrency": 1, "sessions": 2}}})
    outcome = Simulation(Setup(workload, made, 0, engine_of(made))).play(started())
    assert outcome.reason == "finished"
    assert {event.status for event in outcome.events if isinstance(event, ResponseEnded)} == {"completed"}
    assert sum(event.audio_s for event in outcome.events if isinstance(event, AudioDelta)) > 0.5


def test_a_rehearsed_reply_is_spoken_again_as_it_was(cascade_checkpoint: Path) -> None:
    """What a row says at its place is what was heard there, beside other rows and when it comes back."""
    engine = subject(cascade_checkpoint).engine
    replies = [spoken_tokens(engine, text) for text in TEXTS]
    craft = SpeechSynthesis("voice", 4, replies, lambda step: done(engine, step))
    rng = stream(0, "speech")
    mixes = [*speaking(craft, rng), *(drawn_speaking(craft, rng) for _ in range(20))]
    assert {len(mix) for mix in mixes} == {1, 2, 3, 4}
    for mix in mixes:
        for step in craft.prepare(mix):
            done(engine, step)
        found = done(engine, craft.step(mix))
        assert found.samples.sum() / 24_000 == pytest.approx(craft.said.sound_s)
        assert (found.samples > 0).sum() == craft.said.windows
        assert craft.said.streams == len(mix)


@pytest.mark.slow
def test_windows_of_a_vocoder_are_measured_and_simulated(tmp_path: Path) -> None:
    make_demo(tmp_path / "q25", model="qwen2_5_omni", size="tiny")
    made = profile(
        load_subject(str(tmp_path / "q25"), OPTIONS, "q25", quiet), Provenance(model="q25"), quiet, LITTLE
    )
    assert made.served is not None
    assert (made.served.frame_samples, made.served.window) == (480, SoundWindow(12, 2))
    workload = changed(named("smoke"), {"load": {"closed": {"concurrency": 1, "sessions": 1}}})
    outcome = Simulation(Setup(workload, made, 0, engine_of(made))).play(started())
    heard = [event.audio_s for event in outcome.events if isinstance(event, AudioDelta)]
    assert outcome.reason == "finished"
    assert heard
    assert all(abs(seconds * 50 - round(seconds * 50)) < 1e-6 for seconds in heard), "whole codes"
    assert max(heard) > 1 / 50
