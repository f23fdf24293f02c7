"""Whoever asks for what was said is told it piece by piece, and leaves the stages to others meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from antiphon.core.facts import ResponseCancelled, SessionOpened, UnitLost, UnitReady
from antiphon.core.plans import TokensOut
from antiphon.policy.base import Candidate, Refuse, StepView, Tier
from fakes import transcribing
from fakes.transcribing import World, recording, transcription, wanted, written


@pytest.mark.parametrize("is_empty", [False, True])
def test_who_asks_for_what_was_said_is_told_it_and_no_more(monkeypatch: pytest.MonkeyPatch, is_empty: bool):
    """Beside the reply to the same recording, of which there is one transcript."""
    if is_empty:
        for names in (globals(), vars(transcribing)):
            monkeypatch.setitem(names, "written", lambda number: ())
    world = World()
    world.ask("s", recording(1))
    world.facts.append(transcription(1, session="s", tier="best_effort"))
    world.run()
    assert world.text["t"] == list(written(1))
    end = world.ends["t"]
    assert (end.status, end.usage.output_text_tokens) == ("completed", len(written(1)))
    assert world.ends["s"].status == ("cancelled" if is_empty else "completed")
    assert world.encoded == [1]
    assert len(world.read) == (not is_empty), "a transcript is not spoken"
    world.check_empty()


def test_a_transcript_is_told_as_it_is_written():
    """Of several recordings in order: the first has been written down already, the last is."""
    world = World()
    world.ask("s", recording(1))
    world.run()
    begin = len(world.log)
    world.facts.append(transcription(1, 2, 3, session="s"))
    world.run()
    told = [
        output.tokens[:, 0].tolist()
        for _, _, decision in world.log[begin:]
        for output in decision.outputs
        if isinstance(output, TokensOut)
    ]
    assert told[0] == list(written(1))
    assert [token for tokens in told for token in tokens] == [*written(1), *written(2), *written(3)]
    assert len(told) > 3, "token by token where it is being written"
    assert world.ends["t"].status == "completed"
    assert len(world.prompts) == 1, "a transcript has no prompt"
    world.check_empty()


def test_a_transcript_that_breaks_off_ends_what_was_told_of_it():
    world = World()
    world.bad = {2}
    world.facts += [SessionOpened("s"), transcription(1, 2, session="s")]
    world.run()
    assert world.ends["t"].status == "failed"
    assert world.ends["t"].message == "The input could not be encoded: too loud"
    assert world.text["t"]
    assert world.text["t"] == list(written(1))[: len(world.text["t"])]
    world.check_empty()


def test_a_piece_that_fails_when_it_is_begun_ends_its_response_at_once():
    """The transcriber is lost with the report that ends the pieces before it; nothing happens after that."""
    for turns in range(1, 12):
        world = World()
        world.facts += [SessionOpened("t"), transcription(*range(1, 7)), wanted(9, "t")]
        for _ in range(turns):
            world.turn()
        assert not world.ends
        world.facts.append(UnitLost("transcriber", "killed"))
        world.turn()
        assert world.ends["t"].reason == "stage_lost"
        world.facts.clear()
        assert not world.turn(), "nothing of it is left"
        world.rows.pop("transcriber", None)
        world.facts.append(UnitReady("transcriber"))
        world.check_empty()


@dataclass
class Door:
    """Refuses once it is shut."""

    name: str = "door"
    is_shut: bool = False

    def decide(self, view: StepView, candidate: Candidate, now: float) -> Refuse | None:
        return Refuse("the queue is long", 4.0, 7.0) if self.is_shut else None


def test_who_was_told_the_beginning_of_a_recording_is_not_refused_its_end():
    world, door = World(), Door()
    transcriber = world.node.stages.ar["transcriber"]
    transcriber._policies = replace(transcriber._policies, admission=door)
    world.facts += [SessionOpened("t"), transcription(*range(1, 6))]
    while not world.text["t"]:
        world.turn()
    door.is_shut = True
    world.ask("s", recording(9))
    world.run()
    assert world.ends["t"].status == "completed"
    assert world.text["t"] == [token for number in range(1, 6) for token in written(number)]
    assert world.ends["s"].reason == "server_overloaded"
    world.check_empty()


def test_a_long_recording_leaves_the_stages_to_others_meanwhile():
    """Two of its pieces at a time."""
    world = World()
    world.facts += [SessionOpened("t"), transcription(*range(1, 7))]
    world.turn()
    world.ask("s", recording(9))
    world.run()
    assert world.encoded == [1, 2, 9, 3, 4, 5, 6]
    assert world.text["t"] == [token for number in range(1, 7) for token in written(number)]
    world.check_empty()


def test_a_transcript_is_as_urgent_as_who_waits_for_it():
    world = World()
    world.facts += [SessionOpened("t"), transcription(*range(1, 5), tier="best_effort")]
    world.ask("s", recording(9))
    world.turn()
    world.turn()
    assert world.encoded[0] == 9, "a person waits for that"

    def tiers() -> dict[int, Tier]:
        requests = world.node.stages.ar["transcriber"]._requests.values()
        return {one.prompt.spans[0].key: one.tier for one in requests}

    while {1, 2} - tiers().keys():
        world.turn()
    assert {key: tier for key, tier in tiers().items() if key != 9} == dict.fromkeys((1, 2), Tier.BEST_EFFORT)
    world.ask("u", recording(2))
    world.turn()
    assert (tiers()[1], tiers()[2]) == (Tier.BEST_EFFORT, Tier.LATENCY)
    world.facts.append(ResponseCancelled("u", "u"))
    world.run()
    assert world.text["t"] == [token for number in range(1, 5) for token in written(number)]
    assert world.ends["s"].status == "completed"
    world.check_empty()
