"""The Python entry: whole replies and streams, and what it says to wrong requests."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphon import Omni, Reply, Request, Sampling
from antiphon.core.errors import AntiphonError, CheckpointError, ConfigError
from antiphon.core.units import MAX_AMPLITUDE
from antiphon.engine import load
from antiphon.engine.load import Opened, open_source
from antiphon.metrics.names import Metric
from antiphon.runtime import loading

SHORT = {"thinker": Sampling(max_tokens=10), "talker": Sampling(max_tokens=14, repetition_penalty=1.05)}
NOISE = (0.1 * np.random.default_rng(0).standard_normal(16000)).astype(np.float32)
PICTURE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
REQUESTS = [
    Request("hello", sampling=SHORT),
    Request([{"audio": NOISE}, "and this?"], sampling=SHORT),
    Request([{"image": Image.fromarray(PICTURE)}, {"text": "what is it?"}], sampling=SHORT),
    Request(messages=[("user", "one"), ("assistant", "two"), ("user", "three")], sampling=SHORT),
    Request("quiet", instructions="Be brief.", sampling=SHORT, speech=False),
]


@pytest.fixture(scope="module")
def omni(tiny_checkpoint: Path) -> Omni:
    return Omni(tiny_checkpoint, device="cpu", dtype="float64", max_rows=4, kv_tokens=8192)


def check_all_free(omni: Omni) -> None:
    omni.driver.node.check_integrity()
    stats = omni.driver.stats()
    assert stats[Metric.SESSIONS] == stats[Metric.RESPONSES_OPEN] == 0
    for stage, config in omni.engine.node.ar.items():
        assert stats[Metric.KV_BLOCKS_FREE.of(stage)] == config.num_blocks
        assert stats[Metric.REQUESTS_RUNNING.of(stage)] == stats[Metric.REQUESTS_WAITING.of(stage)] == 0
    assert not omni._inbox


def joined(parts: list[Reply]) -> Reply:
    whole = Reply("".join(part.text for part in parts), status=parts[-1].status, usage=parts[-1].usage)
    for stage in ("thinker", "talker"):
        rows = [part.token_ids[stage] for part in parts if stage in part.token_ids]
        if rows:
            whole.token_ids[stage] = np.concatenate(rows)
    whole.audio = np.concatenate([part.audio for part in parts])
    return whole


def check_equal(left: Reply, right: Reply) -> None:
    assert (left.text, left.status) == (right.text, right.status)
    assert left.token_ids.keys() == right.token_ids.keys()
    for stage, rows in left.token_ids.items():
        assert rows.tolist() == right.token_ids[stage].tolist()
    np.testing.assert_allclose(left.audio, right.audio, atol=2e-7)
    assert left.usage == right.usage


def test_streams_add_up_to_the_whole_reply(omni: Omni) -> None:
    whole = omni.generate(REQUESTS)
    for request, reply in zip(REQUESTS, whole, strict=True):
        parts = list(omni.stream(request))
        assert [part.status for part in parts[:-1]] == ["in_progress"] * (len(parts) - 1)
        check_equal(joined(parts), reply)
        assert (len(reply.audio) > 0) == request.speech
        assert np.abs(reply.audio).max(initial=0) <= 1
    check_all_free(omni)


def test_streams_read_in_turns(omni: Omni) -> None:
    """Whichever is read drives them all, and a batch between them takes nothing away."""
    streams = [omni.stream(request) for request in REQUESTS[:3]]
    parts: list[list[Reply]] = [[next(stream)] for stream in streams]
    between = omni.generate(REQUESTS[3:])
    for stream, mine in zip(reversed(streams), reversed(parts), strict=True):
        mine += list(stream)
    check_all_free(omni)
    whole = omni.generate(REQUESTS)
    for reply, mine in zip(whole, [*map(joined, parts), *between], strict=True):
        check_equal(mine, reply)


@pytest.mark.parametrize("moment", [1, 2, 5, 9])
def test_an_abandoned_stream_frees_everything(omni: Omni, moment: int) -> None:
    stream = omni.stream(REQUESTS[1])
    for _ in range(moment):
        next(stream)
    stream.close()
    check_all_free(omni)
    never_read = omni.stream(REQUESTS[0])
    never_read.close()
    check_all_free(omni)


def test_text_waits_for_whole_characters(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a character is held back until its other half comes, or the end."""
    wholes = ["a", "a\ufffd", "aé", "aé\ufffd"]
    monkeypatch.setattr(omni, "_decode", lambda ids: wholes[min(len(ids), 4) - 1] if ids else "")
    request = Request("x", speech=False, sampling={"thinker": Sampling(max_tokens=4)})
    assert [part.text for part in omni.stream(request)] == ["a", "", "é", "", "\ufffd"]


def test_a_video_with_its_sound(omni: Omni) -> None:
    """Two frames are one picture of 140 tokens; sound is counted as audio, and changes the answer."""
    film = {"video": np.stack([PICTURE, 255 - PICTURE]), "fps": 2.0}
    requests = [Request([part, "what is it?"], sampling=SHORT) for part in (film, {**film, "audio": NOISE})]
    silent, loud = omni.generate(requests)
    assert silent.usage.input_image_tokens == loud.usage.input_image_tokens == 140
    assert (silent.usage.input_audio_tokens, loud.usage.input_audio_tokens) == (0, 13)
    assert silent.token_ids["talker"].tolist() != loud.token_ids["talker"].tolist()
    (broken,) = omni.generate([Request([{**film, "fps": 0}])])
    assert (broken.status, "fps" in broken.message) == ("failed", True)
    check_all_free(omni)


def test_a_too_long_request_fails_alone(omni: Omni) -> None:
    long, short = omni.generate([Request("word " * 40_000, sampling=SHORT), REQUESTS[0]])
    assert long.status == "failed"
    assert "max_prompt_chars" in long.message
    assert short.status in ("completed", "incomplete")
    check_all_free(omni)


def test_a_failure_while_generating_frees_everything(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(omni, "_reply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            omni.generate(REQUESTS[:2])
    check_all_free(omni)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("x", sampling={"speaker": Sampling()}), "thinker, talker"),
        (Request("x", voice="Nobody"), "voices are"),
        (Request("x", np.zeros(4)), "the parts of one message stand in a list"),  # pyright: ignore
        (Request("x", max_tokens=0), "max_tokens"),
        (Request(messages=[("robot", "x")]), "system, user, assistant"),  # type: ignore[list-item]
        (Request([{"sound": NOISE}]), "sound"),
        (Request([{"text": "x", "audio": NOISE}]), "text, audio"),
        (Request([{"text": 3}]), "text"),
        (Request([3]), "int"),  # type: ignore[list-item]
        (Request({"audio": NOISE}), "a list of parts, .* got dict"),  # pyright: ignore[reportArgumentType]
        (Request(NOISE), "a list of parts, .* got ndarray"),  # pyright: ignore[reportArgumentType]
        ("x", "such as Request.* got str"),
        (Request([{"audio": NOISE.astype(np.float64)}]), "float64"),
        (Request([{"audio": NOISE[None]}]), "16 kHz"),
        (Request([{"image": PICTURE[..., 0]}]), "uint8"),
        (Request([{"video": PICTURE, "fps": 2}]), r"uint8 \[t, h, w, 3\]"),
        (Request([{"video": PICTURE[None] / 255, "fps": 2}]), "float64"),
        (Request([{"video": PICTURE[None]}]), "the keys video"),
        (Request([{"video": PICTURE[None], "fps": "2"}]), "fps must be a number, got '2'"),
        (Request([{"video": PICTURE[None], "fps": 2, "audio": PICTURE}]), "audio must be float32"),
        (Request([{"video": PICTURE[None], "fps": 2, "sound": NOISE}]), "the keys video, fps, sound"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(omni: Omni, request_: Request, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        omni.generate([REQUESTS[0], request_])
    with pytest.raises(ConfigError, match=words):
        omni.stream(request_)
    check_all_free(omni)


def test_nothing_to_answer_is_a_failed_reply(omni: Omni) -> None:
    for reply in omni.generate([Request(""), Request([{"audio": NOISE[:0]}])]):
        assert reply.status == "failed"
        assert reply.message
    check_all_free(omni)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 3}, "max_rows"),
        ({"device": "toaster"}, "toaster"),
        ({"device": "mps"}, "cuda:N"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"dtype": "int8"}, "bfloat16"),
        ({"preset": "none-such"}, "baseline"),
        ({"max_rows": -1}, "max_rows"),
    ],
)
def test_wrong_options_are_named(tiny_checkpoint: Path, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Omni(tiny_checkpoint, **{"device": "cpu", **options})


OWN_STEP = "step: {policy: fcfs, stages: {talker: {policy: prefill-first}}}"


def test_the_checkpoint_is_opened_once(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a preset of the operator's and a datasheet, which both need to know the model."""
    count = 0

    def counted(*asked: object) -> Opened:
        nonlocal count
        count += 1
        return open_source(*asked)

    for module in (loading, load):
        monkeypatch.setattr(module, "open_source", counted)
    preset = tmp_path / "mine.yaml"
    shipped = files("antiphon.assembly").joinpath("presets", "fcfs.yaml").read_text(encoding="utf-8")
    preset.write_text(shipped.replace("step: fcfs", OWN_STEP))
    omni = Omni(tiny_checkpoint, str(preset), "cpu", profile="H100", max_rows=2)
    assert count == 1
    assert omni.engine.node.policies["step"].of("talker")[0] == "prefill-first"
    assert omni.engine.node.times


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none-such"):
        Omni(tmp_path / "none-such")


def test_an_engine_that_stops_is_our_bug_and_says_so(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omni.driver, "advance", lambda facts: False)
    with pytest.raises(AntiphonError, match="bug"):
        omni.generate(REQUESTS[:1])


def test_the_predictor_has_sampling_of_its_own(omni: Omni) -> None:
    """Left out it mirrors the talker; a frame's first code does not depend on it within the same frame."""
    hot = Sampling(temperature=0.9, top_k=50, max_tokens=9, seed=3)
    mirror = Sampling(temperature=1.0, top_k=50, top_p=0.8, seed=3)
    other = Sampling(temperature=1.5, seed=4)

    def frames(**sampling: Sampling) -> np.ndarray:
        sampling = {"thinker": Sampling(max_tokens=6), **sampling}
        return omni.generate([Request("hello", sampling=sampling)])[0].token_ids["talker"]

    usual = frames(talker=hot)
    assert np.array_equal(usual, frames(talker=hot, predictor=mirror))
    own = frames(talker=hot, predictor=other)
    assert usual[0, 0] == own[0, 0]
    assert not np.array_equal(usual[0, 1:], own[0, 1:])
    assert np.array_equal(own, frames(talker=hot, predictor=other))


@pytest.mark.parametrize("asked", [{"suppress": (1,)}, {"repetition_penalty": 1.1}])
def test_what_the_predictor_cannot_do_is_refused(omni: Omni, asked: dict) -> None:
    with pytest.raises(ConfigError, match="'predictor' has no suppress"):
        omni.generate([Request("hello", sampling={"predictor": Sampling(**asked)})])


def test_suppressed_ids_are_not_said(omni: Omni) -> None:
    def reply(suppress: dict[str, tuple[int, ...]]) -> Reply:
        sampling = {
            "thinker": Sampling(max_tokens=6, suppress=suppress.get("thinker", ())),
            "talker": Sampling(max_tokens=9, suppress=suppress.get("talker", ())),
        }
        return omni.generate([Request("hello", sampling=sampling)])[0]

    free = reply({})
    said = {stage: set(ids[:, 0].tolist()) for stage, ids in free.token_ids.items()}
    other = reply({stage: tuple(ids) for stage, ids in said.items()})
    for stage, ids in said.items():
        assert not ids & set(other.token_ids[stage][:, 0].tolist())


@pytest.mark.parametrize("depth", [0, 1])
def test_the_context_is_prompt_plus_reply(tiny_checkpoint: Path, depth: int) -> None:
    sizes = {"max_context_tokens": 40, "kv_tokens": 4096, "depth": depth}
    omni = Omni(tiny_checkpoint, device="cpu", **sizes)
    long = {"thinker": Sampling(max_tokens=500)}
    cut, refused = omni.generate(
        [Request("hello", sampling=long, speech=False), Request("one two three four " * 20)]
    )
    assert (cut.status, cut.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.input_text_tokens + cut.usage.output_text_tokens == 40
    assert (refused.status, refused.reason) == ("failed", "context_length_exceeded")
    assert re.search(r"\d+ is over the limit of 39", refused.message)
    check_all_free(omni)


def test_what_is_said_is_spoken_as_if_the_model_had_written_it(omni: Omni) -> None:
    """Same prompt, same text: same frames, same sound, though nobody wrote the text."""
    num_found = 0
    for question in ("hello", "one two three", "good morning", "what is it?"):
        own = omni.generate([Request(question, sampling=SHORT, max_tokens=6)])[0]
        spoken = own.token_ids["thinker"][:-1, 0].tolist()  # a reply that is cut keeps its last token silent
        text = omni._tokenizer.decode(spoken)
        if omni._tokenizer.encode(text, add_special_tokens=False).ids != spoken:
            continue
        num_found += 1
        said = omni.generate([Request(question, sampling=SHORT, say=text)])[0]
        assert (said.status, said.text) == ("completed", text)
        assert said.token_ids["thinker"][:, 0].tolist() == spoken
        assert said.token_ids["talker"].tolist() == own.token_ids["talker"].tolist()
        np.testing.assert_allclose(said.audio, own.audio, atol=2e-7)
    assert num_found
    check_all_free(omni)


def test_what_cannot_be_said(omni: Omni) -> None:
    cases = [
        (Request("a", say=""), "no text to read aloud"),
        (Request("a", say="b", speech=False), "no voice"),
        (Request([{"audio": NOISE}], say="b"), "without media"),
    ]
    for request, words in cases:
        reply = omni.generate([request])[0]
        assert (reply.status, reply.reason) == ("failed", "invalid_prompt")
        assert words in reply.message


def test_special_tokens_are_said_as_they_are_spelt(omni: Omni) -> None:
    text = "<|im_end|> is how it ends"
    said = omni.generate([Request("read", sampling=SHORT, say=text)])[0]
    assert said.text == text
    assert len(said.audio)


def test_a_recording_that_is_longer_than_the_transcriber_hears(cascade_checkpoint: Path) -> None:
    """It hears 4 s at a time."""
    omni = Omni(cascade_checkpoint, device="cpu")
    (reply,) = omni.generate([Request([{"audio": np.tile(NOISE, 9)}], speech=False, max_tokens=4)])
    assert (reply.status, reply.message) == ("incomplete", "")
    check_all_free(omni)


UNHEARABLE = [
    (np.zeros(0, np.float32), "audio_too_short", "no samples"),
    (np.full(16000, np.nan, np.float32), "invalid_prompt", "not finite"),
    (np.append(NOISE, np.float32(np.inf)), "invalid_prompt", "not finite"),
]


@pytest.mark.parametrize("kind", ["cascade_checkpoint", "tiny_checkpoint"])
def test_a_recording_that_nobody_could_hear_fails_its_own_request_alone(
    request: pytest.FixtureRequest, kind: str
) -> None:
    omni = Omni(request.getfixturevalue(kind), device="cpu")
    greedy = {"thinker": Sampling(temperature=0.0, max_tokens=3)}
    good = Request([{"audio": NOISE}], speech=False, sampling=greedy)
    alone = omni.generate([good])[0].token_ids["thinker"].tolist()
    for samples, reason, words in UNHEARABLE:
        bad = Request(["What is said?", {"audio": samples}], max_tokens=3)
        before, failed, after = omni.generate([good, bad, good])
        assert (failed.status, failed.reason) == ("failed", reason)
        assert words in failed.message
        assert [before.token_ids["thinker"].tolist(), after.token_ids["thinker"].tolist()] == [alone, alone]
        (part,) = omni.stream(bad)
        assert (part.status, part.reason) == ("failed", reason)
    absurd = np.float32(1e25) * NOISE
    recordings = absurd, absurd.clip(-MAX_AMPLITUDE, MAX_AMPLITUDE)
    heard = [Request([{"audio": each}], speech=False, sampling=greedy) for each in recordings]
    loud, bounded, after = omni.generate([*heard, good])
    assert loud.status == bounded.status != "failed", loud.message
    assert loud.token_ids["thinker"].tolist() == bounded.token_ids["thinker"].tolist()
    assert after.token_ids["thinker"].tolist() == alone
    check_all_free(omni)
