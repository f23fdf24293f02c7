"""Qwen2.5-Omni against transformers: text and codes exact whatever the engine does, sound nearly so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from antiphon import Omni, Request, Sampling
from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import Unit
from antiphon.core.conversation import Item
from antiphon.models.qwen2_5_omni import flow
from antiphon.runtime.omni import Content
from exactness.conftest import World, mixed_contents, user
from exactness.oracle import Expected
from exactness.oracle25 import Oracle25
from exactness.talk import MAX_TEXT, SIZES, Said, Talk
from exactness.test_preemption import disturb
from exactness.test_reference import watch_joins

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:transformers")


@pytest.fixture(scope="module", params=[0, pytest.param(3, marks=pytest.mark.slow)])
def world25(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    path = make_demo(
        tmp_path_factory.mktemp("q25") / "tiny", model="qwen2_5_omni", size="tiny", seed=request.param
    )
    omni = Omni(path, device="cpu", dtype="float64", step_tokens=4096, **SIZES)
    return World(
        path, omni, Oracle25(path, omni.engine.prompter), mixed_contents(request.param), request.param
    )


@pytest.fixture
def sound() -> None:
    """Of tests that compare it with the reference's."""


@pytest.fixture(autouse=True)
def flow_in_one_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From noise to sound at once, where no more is asked of it than its length."""
    if "sound" not in request.fixturenames:
        monkeypatch.setattr(flow, "NUM_TIMES", 2)


def check(said: Said, expected: Expected, eos: int) -> None:
    text = expected.text.tolist()
    cut = len(text) == MAX_TEXT and text[-1] != eos
    assert said.text == [token for token in text if token != eos]
    assert said.codes == expected.codes.tolist()
    assert len(said.wav) == 480 * len(said.codes)
    assert said.end is not None
    assert said.end.status == ("incomplete" if cut else "completed")


def ask_all(world: World, talk: Talk, indices: range | list[int], pause: int = 0) -> None:
    """Everybody asks; `pause` steps pass between two arrivals."""
    for index in indices:
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
        talk.step(pause)
    talk.run()
    for index in indices:
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    talk.close(*map(str, indices))
    talk.run()
    talk.check_all_free()


def test_the_reference_says_different_things(world25: World) -> None:
    """What proves nothing elsewhere: replies that are all alike, or of one token over and over."""
    expected = [world25.expect_content(index) for index in range(len(world25.contents))]
    assert len({tuple(e.text.tolist()) for e in expected}) == len(expected)
    assert len({tuple(e.codes[:, 0].tolist()) for e in expected}) == len(expected)
    assert np.mean([len(set(e.codes[:, 0].tolist())) for e in expected]) > 5


def test_batched(world25: World) -> None:
    ask_all(world25, world25.talk(), range(len(world25.contents)))


def test_alone(world25: World) -> None:
    for index in range(len(world25.contents)):
        ask_all(world25, world25.talk(), [index])


@pytest.mark.parametrize("pause", [1, 3, 8])
def test_arrivals_while_others_run(world25: World, pause: int) -> None:
    ask_all(world25, world25.talk(), range(len(world25.contents)), pause)


@pytest.mark.parametrize("step_tokens", [7, 33])
def test_prompts_in_chunks(world25: World, step_tokens: int) -> None:
    ask_all(world25, world25.talk(step_tokens=step_tokens), range(len(world25.contents)), 2)


def test_fewer_rows_than_requests(world25: World) -> None:
    ask_all(world25, world25.talk(max_rows=2), range(len(world25.contents)))


@pytest.mark.parametrize("fps", [2.0, 3.7])
def test_videos_without_sound(world25: World, fps: float) -> None:
    """Frames stand at whole positions, 25 a second; what follows goes on after them."""
    rng = np.random.default_rng(4)
    frames = rng.integers(0, 255, (7, 56, 84, 3), dtype=np.uint8)
    contents: list[Content] = [
        [{"video": frames, "fps": fps}, "What happens?"],
        ["look ", {"video": frames[:2], "fps": fps}, " and ", *world25.contents[2], *world25.contents[1]],
    ]
    talk = world25.talk(step_tokens=33)
    for index, content in enumerate(contents):
        talk.open(str(index), user(content))
        talk.ask(str(index))
    talk.run()
    for index, content in enumerate(contents):
        check(talk.said[str(index)], world25.expect((user(content),)), world25.eos)


@pytest.mark.parametrize(("fps", "seconds"), [(2.0, 3.5), (1.0, 7.2), (0.6, 4.0), (8.0, 0.6)])
def test_videos_with_their_sound(world25: World, fps: float, seconds: float) -> None:
    """Frames and sound take turns every two seconds; one is over before the other."""
    rng = np.random.default_rng(5)
    sound = (0.1 * rng.standard_normal(int(16000 * seconds))).astype(np.float32)
    video = {"video": rng.integers(0, 255, (9, 56, 84, 3), dtype=np.uint8), "fps": fps, "audio": sound}
    contents: list[Content] = [[video, "What happens?"], ["look ", video, " and ", *world25.contents[3]]]
    never = 3  # one of the replies would end at once, where transformers crashes
    talk = world25.talk(step_tokens=33, thinker={"stop_ids": (never,)})
    for index, content in enumerate(contents):
        talk.open(str(index), user(content))
        talk.ask(str(index))
    talk.run()
    for index, content in enumerate(contents):
        check(talk.said[str(index)], world25.expect((user(content),), eos=never), never)


def test_one_step_in_flight(world25: World) -> None:
    """A state is handed over beside the steps; what is decided meanwhile changes nothing."""
    omni = Omni(world25.path, device="cpu", dtype="float64", depth=1, **SIZES)
    ask_all(world25, Talk(omni.engine), range(len(world25.contents)), 1)


@pytest.mark.parametrize(
    ("stage", "every", "keep"), [("thinker", 3, False), ("thinker", 5, True), ("talker", 3, False)]
)
def test_preempted(world25: World, stage: str, every: int, keep: bool) -> None:
    """States of a text that was computed again are those handed over before."""
    talk = world25.talk(step_tokens=40 if every == 5 else 4096)
    for index in (1, 3, 4):
        talk.open(str(index), world25.item(index))
        talk.ask(str(index))
    disturb(talk, (stage,), every, keep)
    for index in (1, 3, 4):
        check(talk.said[str(index)], world25.expect_content(index), world25.eos)
    talk.close("1", "3", "4")
    talk.run()
    talk.check_all_free()


def test_a_conversation_reuses_what_it_has_seen(world25: World) -> None:
    talk = world25.talk()
    talk.open("s")
    items: list[Item] = []
    starts = watch_joins(talk)
    for number, content in enumerate((world25.contents[1], "And now?", world25.contents[4], "Thanks.")):
        items.append(user(content, f"user-{number}"))
        talk.add("s", items[-1])
        talk.ask("s", f"r{number}")
        talk.run()
        check(talk.said[f"r{number}"], world25.expect(tuple(items)), world25.eos)
        items.append(talk.driver.node._orchestrator._sessions.record("s").items[-1])
    for cached in starts:
        assert all((tokens > 0) == (turn > 0) for turn, tokens in enumerate(cached))


@pytest.mark.parametrize("at", [1, 2, 5])
def test_the_text_ends_by_itself(world25: World, at: int) -> None:
    """A token that the reference is seen to write is made the end: the shortest spoken reply is of one."""
    found = 0
    for index in range(len(world25.contents)):
        free = world25.expect_content(index).text.tolist()
        if at >= len(free) or free[at] in free[:at]:
            continue
        found += 1
        talk = world25.talk(thinker={"stop_ids": (free[at],)})
        talk.open("s", world25.item(index))
        talk.ask("s")
        talk.run()
        check(talk.said["s"], world25.expect((world25.item(index),), eos=free[at]), free[at])
    assert found


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_reply_cut_short(world25: World, max_tokens: int) -> None:
    """The last token of a text is never spoken: of one there is no sound, of two the first is heard."""
    talk = world25.talk()
    talk.open("s", world25.item(1))
    talk.ask("s", max_tokens=max_tokens)
    talk.run()
    said = talk.said["s"]
    assert said.text == world25.expect_content(1).text[:max_tokens].tolist()
    assert bool(said.codes) == bool(len(said.wav)) == (max_tokens == 2)
    assert (said.end.status, said.end.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("moment", [1, 2, 3, 6, 12, 25, 40])
def test_an_abort_touches_nobody_else(world25: World, moment: int) -> None:
    talk = world25.talk(max_rows=2)
    for index in (3, 1, 4):
        talk.open(str(index), world25.item(index))
        talk.ask(str(index))
    talk.step(moment)
    talk.cancel("3")
    talk.run()
    for index in (1, 4):
        check(talk.said[str(index)], world25.expect_content(index), world25.eos)
    talk.close("1", "3", "4")
    talk.run()
    talk.check_all_free()


def test_speech_may_be_over_before_the_text_is(world25: World) -> None:
    """Nothing is handed over to who has gone."""
    talk = world25.talk(talker={"stop_ids": tuple(range(400))})
    talk.open("s", world25.item(0))
    talk.ask("s")
    talk.run()
    assert len(talk.said["s"].text) == MAX_TEXT
    assert not talk.said["s"].codes
    talk.close("s")
    talk.run()
    talk.check_all_free()


def test_what_it_does_not_take_is_refused_in_words(world25: World) -> None:
    long = {"audio": np.zeros(480001, np.float32)}
    for request in (Request([long, "what is this?"]), Request("hello", say="good morning")):
        (reply,) = world25.omni.generate([request])
        assert reply.status == "failed"
        assert "at most 480000 samples" in reply.message or "only what it writes itself" in reply.message


SPOKEN = {
    "thinker": Sampling(max_tokens=MAX_TEXT),
    "talker": Sampling(max_tokens=90, repetition_penalty=1.05),
}


@pytest.mark.usefixtures("sound")
def test_windows_sound_like_the_whole(world25: World) -> None:
    """The first sound comes before the last code; no sample differs by more than 16 bits would show."""
    talk = world25.talk()
    for index in (0, 2):
        talk.open(str(index), world25.item(index))
        talk.ask(str(index), sampling=SPOKEN)
    talk.run()
    for index in (0, 2):
        said = talk.said[str(index)]
        codes = np.array(said.codes)[:, 0]
        assert len(codes) == 90
        assert len(said.audio) > 3
        whole = world25.oracle.wave(world25.oracle.mel(codes))
        assert np.sqrt(np.mean(whole**2)) > 0.03
        assert np.sqrt(np.mean((said.wav - whole) ** 2)) < 3e-4 * np.sqrt(np.mean(whole**2))
        np.testing.assert_allclose(said.wav, whole, atol=1e-3)


@pytest.mark.usefixtures("sound")
def test_one_window_is_the_reference(world25: World) -> None:
    """Without anything cut off, what is left is the rounding of fp32; a voice changes the sound."""
    model = world25.omni.engine.executors["token2wav"]._model
    codes = np.random.default_rng(1).integers(0, 256, 30)
    with torch.inference_mode():
        ethan, chelsie = (
            model.decode([model.open(voice)], [codes[:, None]], [True])[0].numpy()
            for voice in ("Ethan", None)
        )
    np.testing.assert_allclose(ethan, world25.oracle.wave(world25.oracle.mel(codes)), atol=2e-5)
    assert np.abs(ethan - chelsie).max() > 1e-2


SPLIT = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.p", "thinker", "b", role="prefill"),
    Unit("thinker.d", "thinker", "c", role="decode"),
    Unit("talker", "talker", "d"),
    Unit("token2wav", "token2wav", "d"),
)


@pytest.mark.parametrize("depth", [0, 1])
def test_prompts_and_replies_apart(world25: World, depth: int) -> None:
    """States of the prompt that were moved, and those of the reply, are handed over where it is written."""
    omni = Omni(world25.path, device="cpu", dtype="float64", depth=depth, units=SPLIT, **SIZES)
    talk = Talk(omni.engine)
    for index in range(len(world25.contents)):
        talk.open(str(index), world25.item(index))
        talk.ask(str(index))
    talk.run()
    for index in range(len(world25.contents)):
        check(talk.said[str(index)], world25.expect_content(index), world25.eos)
    assert talk.driver._steps["thinker.d"]
