"""A step that raises loses its own requests and nothing else; sampled replies don't know their neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon import Omni, Sampling
from antiphon.core.conversation import Item
from antiphon.engine.load import Engine
from antiphon.runtime.omni import Content, parts_of
from exactness.talk import SIZES, Talk

SAMPLED = {
    "thinker": Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, max_tokens=8, seed=5),
    "talker": Sampling(temperature=0.9, top_k=50, repetition_penalty=1.05, max_tokens=12, seed=6),
}


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    """fp64, so that the shape of a batch cannot be felt."""
    return Omni(tiny_checkpoint, device="cpu", dtype="float64", max_rows=4, **SIZES).engine


def say(content: Content) -> Item:
    return Item("q", "user", parts_of(content))


def tone(seed: int, seconds: float = 1.2) -> Content:
    samples = np.random.default_rng(seed).standard_normal(int(16000 * seconds))
    return [{"audio": (0.1 * samples).astype(np.float32)}, "hm?"]


def reply(talk: Talk, session: str = "s") -> tuple[list, list, list]:
    said = talk.said[session]
    assert said.end.status in ("completed", "incomplete"), said.end
    return said.text, said.codes, said.audio


def alone(engine: Engine, content: Content) -> tuple[list, list, list]:
    talk = Talk(engine)
    talk.open("s", say(content))
    talk.ask("s", sampling=SAMPLED)
    talk.run()
    return reply(talk)


def test_a_sampled_reply_is_the_same_alone_and_among_others(engine: Engine) -> None:
    want = alone(engine, tone(0))
    assert want == alone(engine, tone(0))
    for before in (1, 2, 3):
        talk = Talk(engine)
        for other in range(before):
            talk.open(f"other{other}", say(tone(1 + other)))
            hot = Sampling(temperature=1.2, max_tokens=9, seed=other)
            talk.ask(f"other{other}", sampling={"thinker": hot})
            talk.step(other)
        talk.open("s", say(tone(0)))
        talk.ask("s", sampling=SAMPLED)
        talk.run()
        assert reply(talk)[:2] == want[:2]


def test_another_seed_another_reply(engine: Engine) -> None:
    talk = Talk(engine)
    for seed in range(3):
        talk.open(str(seed), say("hello"))
        talk.ask(
            str(seed), sampling={"thinker": Sampling(temperature=1.5, max_tokens=8, seed=seed)}, speech=False
        )
    talk.run()
    assert len({tuple(talk.said[str(seed)].text) for seed in range(3)}) == 3


@pytest.mark.parametrize(
    ("stage", "method"),
    [
        ("thinker", "join"),
        ("thinker", "run"),
        ("talker", "join"),
        ("talker", "run"),
        ("code2wav", "decode"),
        ("encoders", "_encode"),
    ],
)
def test_a_failing_step_loses_its_own_requests_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stage: str, method: str
) -> None:
    """One request is well on its way; the next one's first step raises in one stage."""
    want = alone(engine, tone(0))
    talk = Talk(engine)
    talk.open("s", say(tone(0)))
    talk.ask("s", sampling=SAMPLED)
    talk.step(12)
    executor = engine.executors[stage]
    target = getattr(executor, "runner", executor)
    works = getattr(target, method)
    failed: list[object] = []

    def breaks(order: object) -> object:
        if not failed and (method == "join" or not names_first(talk, stage, order)):
            failed.append(order)
            raise RuntimeError("out of luck")
        return works(order)

    monkeypatch.setattr(target, method, breaks)
    talk.open("unlucky", say(tone(1)))
    talk.ask("unlucky", sampling=SAMPLED)
    talk.run()
    assert failed
    end = talk.said["unlucky"].end
    assert (end.status, end.reason) == ("failed", "stage_failed")
    assert "out of luck" in end.message
    if talk.said["s"].end.status != "failed":
        assert reply(talk)[:2] == want[:2]
    else:
        assert method == "join", "it can only have been in the very step that failed"
    talk.open("later", say(tone(0)))
    talk.ask("later", sampling=SAMPLED)
    talk.run()
    assert reply(talk, "later")[:2] == want[:2]
    talk.close("s", "unlucky", "later")
    talk.run()
    talk.check_all_free()


def names_first(talk: Talk, stage: str, order: object) -> bool:
    """Does this step work for the first request? Then it shall not fail."""
    if stage == "encoders":
        return False
    if stage == "code2wav":
        return 1 in order.requests.tolist()
    seated = engine_requests(talk, stage)
    return 1 in [seated[row] for row in order.rows.tolist()]


def engine_requests(talk: Talk, stage: str) -> dict[int, int]:
    return talk.engine.executors[stage]._requests


def test_inputs_of_others_survive_a_failing_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step carries text for rows that don't run in it: a failing join must not swallow it."""
    want = alone(engine, tone(0))
    runner = engine.executors["talker"].runner
    works = runner.join
    budget = {"talker": {"step_tokens": 1}}
    talk = Talk(engine, **budget)
    talk.open("s", say(tone(0)))
    talk.ask("s", sampling=SAMPLED)
    while not talk.said["s"].codes:
        talk.step()
    broken: list[bool] = []

    def breaks(join: object) -> None:
        if not broken:
            broken.append(True)
            raise RuntimeError("out of luck")
        works(join)

    monkeypatch.setattr(runner, "join", breaks)
    talk.open("unlucky", say("hello"))
    talk.ask("unlucky", sampling=SAMPLED)
    talk.run()
    assert broken
    assert talk.said["unlucky"].end.status == "failed"
    if talk.said["s"].end.status != "failed":
        assert reply(talk)[:2] == want[:2]


def test_what_failed_to_encode_is_not_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = engine.executors["encoders"]
    store = executor._features
    before = dict(store._features)

    def breaks(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(executor._model._image, "patches_of", breaks)
    pixels = np.zeros((64, 64, 3), np.uint8)
    talk = Talk(engine)
    talk.open("s", say([{"image": pixels}, *tone(77)]))
    talk.ask("s")
    talk.run()
    assert talk.said["s"].end.status == "failed"
    assert store._features == before


def test_an_ended_stream_does_not_hold_its_batch(engine: Engine) -> None:
    """A row's state is as large as one stream, however many were decoded with it."""
    talk = Talk(engine)
    for index in range(4):
        talk.open(str(index), say("hello"))
        talk.ask(str(index), sampling=SAMPLED)
    talk.run()
    for state in engine.executors["code2wav"]._states.values():
        for part in state:
            assert part.untyped_storage().nbytes() == part.nbytes


def test_payloads_of_requests_that_never_join_are_dropped(engine: Engine) -> None:
    """Handed over, then cancelled while it waits for one of the talker's rows. Who speaks keeps its own."""
    talk = Talk(engine, talker={"max_rows": 1})
    for session in ("a", "b"):
        talk.open(session, say(tone(3)))
        talk.ask(session, sampling=SAMPLED)
    payloads = engine.executors["talker"].runner._payloads
    while len(payloads) < 2 or not talk.said["a"].codes:
        talk.step()
    talk.cancel("b")
    talk.step()
    assert len(payloads) == 1
    talk.run()
    assert not payloads
    assert talk.said["a"].end.status in ("completed", "incomplete")
