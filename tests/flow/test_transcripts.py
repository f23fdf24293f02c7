"""What was said is written down before a prompt shows it: once, for whoever shows it, while somebody does."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.assembly.node import Node
from antiphon.core.config import EncoderConfig
from antiphon.core.facts import ResponseCancelled, SessionClosed, StepDone, UnitLost, UnitReady
from antiphon.flow import transcripts
from fakes.transcribing import CONFIG, World, recording, written


def test_a_prompt_waits_for_all_that_it_shows():
    world = World()
    world.ask("s", recording(1), "and", recording(2))
    world.run()
    (prompt,) = world.prompts
    assert prompt.transcripts == {1: written(1), 2: written(2)}
    assert world.ends["s"].status == "completed"
    assert world.encoded == [1, 2]
    world.check_empty()


def test_a_prompt_that_shows_many_recordings_has_them_written_down_together():
    """As far as the stages take them: none of them is of use alone."""
    ar = CONFIG.ar | {
        "transcriber": msgspec.structs.replace(CONFIG.ar["transcriber"], max_rows=6, num_blocks=40)
    }
    ears = EncoderConfig(step_media=6, cached_media=6)
    turns: list[int] = []
    for count in (1, 6):
        world = World()
        world.node = Node(msgspec.structs.replace(CONFIG, ar=ar, encoder={"ears": ears}))
        world.ask("s", *(recording(number) for number in range(1, count + 1)))
        while not world.prompts:
            world.turn()
        turns.append(len(world.log))
        world.run()
        world.check_empty()
    assert turns[0] == turns[1]


def test_what_two_people_say_alike_is_written_down_once():
    world = World()
    world.ask("a", recording(1))
    world.turn()
    world.ask("b", recording(1))
    world.run()
    world.ask("c", recording(1))
    world.run()
    assert world.encoded == [1]
    assert sum(stage == "transcriber" for stage, _ in world.drawn) == 1
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}] * 3
    assert {end.status for end in world.ends.values()} == {"completed"}
    world.check_empty()


def test_a_recording_that_cannot_be_heard_ends_those_who_show_it():
    world = World()
    world.bad = {2}
    world.ask("a", recording(1))
    world.ask("b", recording(2))
    world.ask("c", "hello", recording(2), recording(3))
    world.run()
    assert world.ends["a"].status == "completed"
    for name in "bc":
        end = world.ends[name]
        assert (end.status, end.reason) == ("failed", "stage_failed")
        assert end.message == "The input could not be encoded: too loud"
    assert len(world.prompts) == 1
    world.check_empty()


def test_a_recording_that_cannot_be_heard_costs_one_reply_and_not_the_conversation():
    world = World()
    world.bad = {2}
    world.ask("c", "hello", recording(2))
    world.run()
    assert world.ends["c"].status == "failed"
    world.bad = set()
    world.ask("d", "hello", recording(2), recording(3))
    world.run()
    assert world.ends["d"].status == "completed"


@pytest.mark.parametrize("turns", range(1, 5))
def test_what_nobody_waits_for_is_not_written_down(turns: int):
    world = World()
    world.ask("s", recording(1))
    for _ in range(turns):
        world.turn()
    world.facts.append(ResponseCancelled("s", "s"))
    world.run()
    assert world.ends["s"].status == "cancelled"
    assert not world.prompts
    world.check_empty()


def test_a_session_that_ends_takes_nobody_elses_transcript():
    world = World()
    world.ask("a", recording(1))
    world.ask("b", recording(1))
    world.turn()
    world.facts.append(SessionClosed("a"))
    world.run()
    assert world.ends["a"].status == "cancelled"
    assert world.ends["b"].status == "completed"
    world.check_empty()


@pytest.mark.parametrize("unit", ["ears", "transcriber"])
@pytest.mark.parametrize("turns", [0, 2])
def test_a_unit_that_is_lost_fails_what_it_was_to_write(unit: str, turns: int):
    world = World()
    if turns:
        world.ask("s", recording(1))
        for _ in range(turns):
            world.turn()
        world.facts.append(UnitLost(unit, "killed"))
    else:
        world.facts.append(UnitLost(unit, "killed"))
        world.turn()
        world.ask("s", recording(1))
    world.facts = [fact for fact in world.facts if not isinstance(fact, StepDone) or fact.stage != unit]
    world.run()
    assert (world.ends["s"].status, world.ends["s"].reason) == ("failed", "stage_lost")
    world.rows.pop(unit, None)
    world.facts.append(UnitReady(unit))
    world.ask("again", recording(2))
    world.run()
    assert world.ends["again"].status == "completed"
    world.check_empty()


def test_transcripts_that_nobody_shows_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transcripts, "MOST_KEPT", 1)
    world = World()
    for number in (1, 2, 1):
        world.ask(f"s{number}{len(world.ends)}", recording(number))
        world.run()
    assert world.encoded[:2] == [1, 2]
    assert sum(stage == "transcriber" for stage, _ in world.drawn) == 3
    world.check_empty()
