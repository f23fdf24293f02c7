"""Tokens, frames and waveform equal transformers', whatever the engine does meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon import Omni, Request
from antiphon.core.plans import CodecStep, ints
from antiphon.engine import sampler
from exactness.conftest import World, make_world, user
from exactness.oracle import Expected
from exactness.talk import GREEDY, MAX_TEXT, Said, Talk

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")


def check(said: Said, expected: Expected, eos: int) -> None:
    text = expected.text.tolist()
    cut = len(text) == MAX_TEXT and text[-1] != eos
    assert said.text == [token for token in text if token != eos]
    assert said.codes == expected.codes.tolist()
    # Streamed in chunks here, decoded at once there: equal but for the rounding of fp32 in transport.
    np.testing.assert_allclose(said.wav, expected.wav, atol=2e-7)
    assert said.end is not None
    assert (said.end.status, said.end.reason) == (
        ("incomplete", "max_output_tokens") if cut else ("completed", "")
    )


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


def test_batched(world: World) -> None:
    ask_all(world, world.talk(), range(len(world.contents)))


def test_as_many_code_groups_as_released_checkpoints_have(tmp_path: Path) -> None:
    wide = make_world(tmp_path / "tiny", seed=0)
    assert wide.omni.engine.node.ar["talker"].width == 16
    ask_all(wide, wide.talk(), [0, 3], 2)


def test_alone(world: World) -> None:
    for index in range(len(world.contents)):
        ask_all(world, world.talk(), [index])


@pytest.mark.parametrize("pause", [1, 3, 8])
def test_arrivals_while_others_run(world: World, pause: int) -> None:
    ask_all(world, world.talk(), range(len(world.contents)), pause)


@pytest.mark.parametrize("step_tokens", [7, 33])
def test_prompts_in_chunks(world: World, step_tokens: int) -> None:
    """Chunks end inside audio and image spans; deepstack rows go with their part of the image."""
    ask_all(world, world.talk(step_tokens=step_tokens), range(len(world.contents)), 2)


def test_fewer_rows_than_requests(world: World) -> None:
    ask_all(world, world.talk(max_rows=2), range(len(world.contents)))


def test_conversation_reuses_what_it_has_seen(world: World) -> None:
    """Every reply equals the reference's on the whole conversation, with the earlier replies' exact tokens.

    Recordings here last a second or more: shorter ones are encoded as if alone, whatever came before, while
    the reference pads them as the longest of the conversation asks for.
    """
    talk = world.talk()
    thinker_starts, talker_starts = watch_joins(talk)
    converse(world, talk)
    assert all((cached > 0) == (turn >= 2) for turn, cached in enumerate(thinker_starts))
    assert all((cached > 0) == (turn >= 2) for turn, cached in enumerate(talker_starts))


def converse(world: World, talk: Talk) -> None:
    """Two sessions have the same conversation."""
    turns = [world.contents[1], "And now?", world.contents[5], world.contents[4], "Thanks."]
    for session in ("a", "b"):
        talk.open(session)
    items = []
    for number, content in enumerate(turns):
        items.append(user(content, f"user-{number}"))
        for session in ("a", "b"):
            talk.add(session, items[-1])
            talk.ask(session, f"{session}{number}")
        talk.run()
        expected = world.expect(tuple(items))
        for session in ("a", "b"):
            said = talk.said[f"{session}{number}"]
            check(said, expected, world.eos)
            assert (said.end.usage.cached_tokens > 0) == (number > 0)
        items.append(talk.driver.node._orchestrator._sessions.record("a").items[-1])
    talk.close("a", "b")
    talk.run()
    talk.check_all_free()


def watch_joins(talk: Talk) -> tuple[list[int], list[int]]:
    """Cached tokens of every join from now on, of thinker and talker."""
    found: tuple[list[int], list[int]] = ([], [])
    for name, joins in zip(("thinker", "talker"), found, strict=True):
        scheduler = talk.driver.node.stages.ar[name]
        plan = scheduler.plan

        def watched(step, now, plan=plan, joins=joins):
            order = plan(step, now)
            joins += [join.cached for join in order.joins] if order is not None else []
            return order

        scheduler.plan = watched
    return found


def test_the_text_ends_by_itself(world: World) -> None:
    """One of the tokens that the reference is seen to write is made the end of text."""
    found = 0
    for index in range(len(world.contents)):
        free = world.expect_content(index).text.tolist()
        stop = next((t for i, t in enumerate(free) if i >= 2 and t not in free[:i]), None)
        if stop is None:
            continue
        found += 1
        talk = world.talk(thinker={"stop_ids": (stop,)})
        talk.open("s", world.item(index))
        talk.ask("s")
        talk.run()
        check(talk.said["s"], world.expect((world.item(index),), eos=stop), stop)
        assert talk.said["s"].end.status == "completed"
    assert found >= 2


def test_an_empty_reply_has_no_sound(world: World) -> None:
    """End of text as first token: transformers crashes there; here the reply is empty and whole."""
    first = int(world.expect_content(0).text[0])
    talk = world.talk(thinker={"stop_ids": (first,)})
    talk.open("s", world.item(0))
    talk.ask("s")
    talk.run()
    said = talk.said["s"]
    assert (said.text, said.codes, said.audio) == ([], [], [])
    assert said.end.status == "completed"


def test_a_reply_of_one_token_has_no_sound(world: World) -> None:
    """The last token of a text is never spoken, so nothing is left; transformers crashes there."""
    talk = world.talk()
    talk.open("s", world.item(1))
    talk.ask("s", max_tokens=1)
    talk.run()
    said = talk.said["s"]
    assert said.text == world.expect_content(1).text[:1].tolist()
    assert (said.codes, said.audio) == ([], [])
    assert (said.end.status, said.end.reason) == ("incomplete", "max_output_tokens")


def test_text_only(world: World) -> None:
    talk = world.talk()
    for index in range(len(world.contents)):
        talk.open(str(index), world.item(index))
        talk.ask(str(index), speech=False)
    talk.run()
    for index in range(len(world.contents)):
        said = talk.said[str(index)]
        assert said.text == [t for t in world.expect_content(index).text.tolist() if t != world.eos]
        assert (said.codes, said.audio) == ([], [])


@pytest.mark.parametrize("moment", [0, 1, 2, 4, 7, 11, 18, 30, 50])
def test_an_abort_touches_nobody_else(world: World, moment: int) -> None:
    talk = world.talk(max_rows=2)
    for index in (3, 1, 2, 4):
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    talk.step(moment)
    talk.cancel("3")
    talk.cancel("2")
    talk.run()
    for index in (1, 4):
        check(talk.said[str(index)], world.expect_content(index), world.eos)
    for index in (3, 2):
        said, expected = talk.said[str(index)], world.expect_content(index)
        assert said.end is not None
        assert said.text == expected.text[: len(said.text)].tolist()
        assert said.codes == expected.codes[: len(said.codes)].tolist()
    talk.close("1", "2", "3", "4")
    talk.run()
    talk.check_all_free()


def test_cancelled_turns_leave_a_conversation_that_goes_on(world: World) -> None:
    """What was cancelled stays in the record as far as it got, and the KV with it."""
    talk = world.talk()
    first = user(world.contents[1], "user-0")
    talk.open("s", first)
    talk.ask("s", "r0")
    while len(talk.said["r0"].text) < 5:
        talk.step()
    talk.cancel("s", "r0")
    talk.run()
    second = user("Go on.", "user-1")
    talk.add("s", second)
    reply = talk.driver.node._orchestrator._sessions.record("s").items[1]
    assert reply.parts[0].token_ids == tuple(talk.said["r0"].text)
    talk.ask("s", "r1")
    talk.run()
    check(talk.said["r1"], world.expect((first, reply, second)), world.eos)
    assert talk.said["r1"].end.usage.cached_tokens > 0


def test_a_long_waveform_equals_one_decode(world: World) -> None:
    """transformers' generate() cuts what is beyond 300 frames into chunks that don't fit; the truth is one
    decode."""
    executor = world.omni.engine.executors["code2wav"]
    rng = np.random.default_rng(3)
    size, books = executor._model.config.codebook_size, world.omni.engine.node.ar["talker"].width
    codes = [rng.integers(0, size, (frames, books)) for frames in (330, 41)]
    heard: list[list[bytes]] = [[], []]
    done = [0, 0]
    for step in range(1000):
        left = [row for row in (0, 1) if done[row] < len(codes[row])]
        if not left:
            break
        chunk = 2 if not step else int(rng.integers(1, 40))
        counts = [min(chunk, len(codes[row]) - done[row]) for row in left]
        frames = [codes[row][done[row] : done[row] + count] for row, count in zip(left, counts, strict=True)]
        joins = ints([row for row in left if not done[row]])
        executor.submit(
            CodecStep(
                "code2wav", step, joins, ints(left), ints(left), ints(counts), np.concatenate(frames), ""
            )
        )
        (fact,) = executor.poll()
        for row, count, audio in zip(left, counts, fact.audio, strict=True):
            heard[row].append(audio)
            done[row] += count
    for row in (0, 1):
        wav = np.frombuffer(b"".join(heard[row]), np.float32)
        np.testing.assert_allclose(wav, world.oracle.decode(codes[row]), atol=2e-7)


def test_fp32_differs_only_at_near_ties(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fp64 engine is the reference here: its tokens are transformers', and it tells its margins."""
    margins: dict[str, list[float]] = {}
    draw = sampler.Draw.__call__

    def watched(self: sampler.Draw, logits: torch.Tensor, codebook: int = 0) -> torch.Tensor:
        top = logits.double().topk(2, -1).values
        margins["thinker" if self._stage == 0 else "talker"].append(float(top[0, 0] - top[0, 1]))
        return draw(self, logits, codebook)

    single = Omni(world.path, device="cpu", dtype="float32", step_tokens=4096)
    requests = [Request(content, voice="Ethan", sampling=GREEDY) for content in world.contents]
    replies = single.generate(requests)
    monkeypatch.setattr(sampler.Draw, "__call__", watched)
    for request, got in zip(requests, replies, strict=True):
        margins.update(thinker=[], talker=[])
        want = world.omni.generate([request])[0]
        for stage in ("thinker", "talker"):
            pairs = zip(got.token_ids[stage].ravel(), want.token_ids[stage].ravel(), strict=False)
            differs = next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
            if differs is not None:
                assert margins[stage][differs] < 1e-4
                break  # what follows was said after something else
