"""What has been made ahead of what was heard, by stage, for many responses at once."""

from __future__ import annotations

from math import inf, isnan, nan

import numpy as np
import pytest

from antiphon.core.playback import Source
from antiphon.interaction.frontier import AUTO_LEAD_S, NOWHERE, Frontier
from fakes.readings import num_taken

THINKER, TALKER, VOCODER = range(3)


def at(*slots: int) -> np.ndarray:
    return np.array(slots, np.intp)


def test_a_column_grows_and_its_slots_are_used_again() -> None:
    frontier = Frontier(3, 0.08, size=2)
    slots = [frontier.take(float(index), True) for index in range(9)]
    assert len({NOWHERE, *slots}) == 10
    assert num_taken(frontier) == 9
    for index, slot in enumerate(slots):
        frontier.play(slot, 10.0 + index)
    leads_s = frontier.heard_leads_s(at(*slots), 12.0)
    assert leads_s.tolist() == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert frontier.ages_s(at(*slots[:2]), 12.0).tolist() == [12.0, 11.0]
    frontier.make(TALKER, slots[8], 4)
    frontier.begin(slots[8])
    frontier.free(slots[8])
    again = frontier.take(12.0, True)
    assert np.isnan(frontier.heard_leads_s(at(again, NOWHERE), 12.0)).all()
    assert not frontier.begun(at(again)).any()
    assert [frontier.made(stage, again) for stage in range(3)] == [0, 0, 0]
    assert num_taken(frontier) == 9


def test_a_stage_leads_by_what_those_behind_it_have_not_taken_up() -> None:
    """A talker takes up a token a frame; 0.08 s a frame."""
    frontier = Frontier(3, 0.08)
    slot, other = frontier.take(0.0, True), frontier.take(0.0, True)
    frontier.make(THINKER, at(slot, other), 50)
    frontier.make(TALKER, at(slot, other), np.array([30, 60]))
    frontier.make(VOCODER, slot, 25)
    assert isnan(frontier.leads_s(TALKER, at(slot), 5.0)[0]), "nothing has come"
    frontier.play(slot, 6.5)
    assert frontier.leads_s(VOCODER, at(slot), 5.0).tolist() == [1.5]
    assert frontier.leads_s(TALKER, at(slot), 5.0).tolist() == pytest.approx([1.5 + 5 * 0.08])
    assert frontier.leads_s(THINKER, at(slot), 5.0).tolist() == pytest.approx([1.5 + 25 * 0.08])
    frontier.play(other, 6.0)
    assert frontier.leads_s(THINKER, at(other), 5.0).tolist() == pytest.approx([1.0 + 60 * 0.08])


def test_what_is_written_of_a_phrase_without_an_end_is_ahead_of_nobody() -> None:
    """Of a voice that reads: it takes up no half phrase. 0.3 s a token."""
    frontier = Frontier(2, 0.3)
    slot = frontier.take(0.0, True)
    frontier.play(slot, 6.5)
    frontier.make(THINKER, slot, 20)
    frontier.make(TALKER, slot, 8)
    assert frontier.leads_s(THINKER, at(slot), 5.0).tolist() == pytest.approx([1.5 + 12 * 0.3])
    before = frontier.num_changes(at(slot))
    frontier.fall_short(slot, True)
    assert frontier.leads_s(THINKER, at(slot), 5.0).tolist() == [1.5]
    assert frontier.num_changes(at(slot)) == before + 1
    frontier.fall_short(slot, True)
    assert frontier.num_changes(at(slot)) == before + 1
    frontier.fall_short(slot, False)
    assert frontier.leads_s(THINKER, at(slot), 5.0).tolist() == pytest.approx([1.5 + 12 * 0.3])
    frontier.fall_short(slot, True)
    frontier.free(slot)
    assert frontier.take(9.0, True) == slot
    frontier.play(slot, 10.0)
    frontier.make(THINKER, slot, 2)
    assert frontier.leads_s(THINKER, at(slot), 9.0).tolist() == pytest.approx([1.6]), (
        "the next one in its slot"
    )


def test_what_is_only_read_leads_by_what_was_not_read() -> None:
    frontier = Frontier(3, 0.08)
    slot = frontier.take(0.0, False)
    frontier.make(THINKER, slot, 50)
    frontier.play(slot, 6.0)
    assert frontier.leads_s(THINKER, at(slot), 5.0).tolist() == [1.0]


def test_a_model_of_one_stage_has_no_stage_behind_it() -> None:
    frontier = Frontier(1, 0.0)
    slot = frontier.take(0.0, False)
    frontier.make(0, slot, 50)
    frontier.play(slot, 6.0)
    assert frontier.leads_s(0, at(slot), 5.0).tolist() == [1.0]


def test_nothing_is_made_of_a_response_without_a_slot() -> None:
    frontier = Frontier(2, 0.08)
    slot = frontier.take(0.0, True)
    frontier.make(0, at(slot, NOWHERE), np.array([2, 3]))
    frontier.make(0, NOWHERE, 3)
    assert [frontier.made(stage, NOWHERE) for stage in range(2)] == [0, 0]
    assert [frontier.made(stage, slot) for stage in range(2)] == [2, 0]


def test_the_vocoder_tells_how_long_a_frame_sounds() -> None:
    frontier = Frontier(2, 0.08)
    assert frontier.frame_s == 0.08
    frontier.sound(3, 0)
    assert frontier.frame_s == 0.08, "nothing has sounded"
    frontier.sound(7, 4800)
    assert frontier.frame_s == pytest.approx(0.02)


def test_what_nobody_will_speak_is_ahead_of_nobody() -> None:
    """A pace policy would otherwise hold the rest of it for ever."""
    frontier = Frontier(3, 0.08)
    slot, written = frontier.take(0.0, True), frontier.take(0.0, False)
    frontier.make(THINKER, slot, 50)
    frontier.make(TALKER, slot, 5)
    frontier.play(slot, 2.0)
    assert frontier.leads_s(THINKER, at(slot), 1.0).tolist() == pytest.approx([1.0 + 50 * 0.08])
    frontier.end_speech(slot)
    assert np.isnan(frontier.leads_s(THINKER, at(slot), 1.0)).all()
    assert frontier.leads_s(TALKER, at(slot), 1.0).tolist() == pytest.approx([1.0 + 5 * 0.08])
    assert frontier.rates(TALKER, at(slot)).tolist() == pytest.approx([12.5])
    assert np.isnan(frontier.rates(THINKER, at(slot))).all(), "nobody takes up what is only written"
    assert np.isnan(frontier.rates(TALKER, at(written))).all()
    frontier.free(slot)
    again = frontier.take(2.0, True)
    frontier.play(again, 3.0)
    assert frontier.leads_s(THINKER, at(again), 2.0).tolist() == [1.0]


def test_what_its_client_stopped_playing_never_runs_dry() -> None:
    """Unlike what has run dry, though no more of either is heard."""
    frontier = Frontier(3, 0.08, size=2)
    slot, dry = frontier.take(0.0, True), frontier.take(0.0, True)
    for one in (slot, dry):
        frontier.play(one, 2.0)
    frontier.stop(slot)
    for stage in (THINKER, TALKER, VOCODER):
        assert frontier.leads_s(stage, at(slot, dry), 3.0).tolist() == [inf, 0.0]
    assert frontier.heard_leads_s(at(slot), 3.0).tolist() == [0.0], "its client has nothing to play"
    frontier.free(slot)
    again = frontier.take(3.0, True)
    frontier.play(again, 3.0)
    assert frontier.leads_s(TALKER, at(again), 3.0).tolist() == [0.0]


def test_a_reader_leads_by_the_tokens_they_have_not_read() -> None:
    """Four tokens a second, from the first one on."""
    frontier = Frontier(1, 0.0)
    slot, other = frontier.take(0.0, False, rate=4.0), frontier.take(0.0, False)
    assert isnan(frontier.leads_s(THINKER, at(slot), 1.0)[0]), "nothing to read yet"
    frontier.make(THINKER, at(slot, other), now=1.0)
    frontier.make(THINKER, at(slot, other), np.array([7, 7]), now=1.1)
    assert frontier.leads_s(THINKER, at(slot), 1.5).tolist() == [1.5]
    assert frontier.rates(THINKER, at(slot, other)).tolist() == pytest.approx([4.0, nan], nan_ok=True)
    assert isnan(frontier.leads_s(THINKER, at(other), 1.5)[0]), "nobody knows who reads it"
    assert frontier.leads_s(THINKER, at(slot), 9.0).tolist() == [0.0]
    assert frontier.num_gaps(at(slot)).tolist() == [0]
    frontier.make(THINKER, slot, 2, now=9.0)
    assert frontier.leads_s(THINKER, at(slot), 9.25).tolist() == [0.25], "what was late was waited for"
    assert frontier.num_gaps(at(slot)).tolist() == [1]
    assert frontier.sources(at(slot)).tolist() == [Source.ESTIMATED]
    frontier.free(slot)
    again = frontier.take(10.0, False)
    frontier.make(THINKER, again, now=10.0)
    assert isnan(frontier.leads_s(THINKER, at(again), 10.0)[0])


def test_an_agent_takes_all_there_is_and_is_never_far_behind_it() -> None:
    """What it has is told at 4 tokens a second, for 10 s at most, and is not kept waiting by a person's
    measure."""
    frontier = Frontier(1, 0.0)
    slot = frontier.take(0.0, False, rate="auto")
    assert frontier.rates(THINKER, at(slot)).tolist() == [inf]
    frontier.make(THINKER, slot, 8, now=1.0)
    assert frontier.leads_s(THINKER, at(slot), 1.0).tolist() == [2.0]
    frontier.make(THINKER, slot, 4000, now=1.0)
    assert frontier.leads_s(THINKER, at(slot), 1.0).tolist() == [AUTO_LEAD_S]
    frontier.make(THINKER, slot, now=60.0)
    assert frontier.num_gaps(at(slot)).tolist() == [0]
    frontier.free(slot)
    again = frontier.take(60.0, False, rate=4.0)
    frontier.make(THINKER, again, 400, now=60.0)
    assert frontier.leads_s(THINKER, at(again), 60.0).tolist() == [100.0], "the slot is a person's again"


def test_from_a_call_on_a_reply_is_taken_like_an_agents() -> None:
    frontier = Frontier(1, 0.0)
    slot, unread = frontier.take(0.0, False, rate=4.0), frontier.take(0.0, False)
    frontier.make(THINKER, at(slot, unread), 8, now=1.0)
    for one in (slot, unread, NOWHERE):
        frontier.call(one)
    frontier.make(THINKER, slot, 4000, now=2.0)
    assert frontier.rates(THINKER, at(slot, unread)).tolist() == pytest.approx([inf, nan], nan_ok=True)
    assert frontier.leads_s(THINKER, at(slot), 2.0).tolist() == [AUTO_LEAD_S]
    frontier.free(slot)
    again = frontier.take(60.0, False, rate=4.0)
    assert frontier.rates(THINKER, at(again)).tolist() == [4.0], "the slot is a person's again"


@pytest.mark.parametrize("rate", [0.0, -1.0, nan, inf])
def test_a_rate_at_which_nobody_can_read_is_not_known(rate: float) -> None:
    frontier = Frontier(1, 0.0)
    slot = frontier.take(0.0, False, rate=rate)
    frontier.make(THINKER, slot, 5, now=1.0)
    assert isnan(frontier.leads_s(THINKER, at(slot), 1.0)[0])
    assert isnan(frontier.rates(THINKER, at(slot))[0])
    frontier.free(slot)
    frontier.take(1.0, False, rate=4.0)
    assert frontier._num_read == 1


def test_what_a_reader_reports_takes_the_place_of_the_estimate() -> None:
    frontier = Frontier(1, 0.0)
    slot, agent = frontier.take(0.0, False, rate=4.0), frontier.take(0.0, False, rate="auto")
    frontier.read_to(slot, 1.0, 1.0)
    assert isnan(frontier.leads_s(THINKER, at(slot), 1.0)[0]), "nothing to read yet"
    frontier.make(THINKER, at(slot, agent), 8, now=1.0)
    changes = frontier.num_changes(at(slot))
    frontier.read_to(slot, 0.5, 2.0)
    assert frontier.num_changes(at(slot)) == changes + 1
    assert frontier.leads_s(THINKER, at(slot), 2.0).tolist() == [1.5], "half of what was thought"
    assert frontier.sources(at(slot)).tolist() == [Source.ACKED]
    frontier.make(THINKER, slot, 4, now=2.5)
    assert frontier.leads_s(THINKER, at(slot), 2.5).tolist() == [2.0]
    assert frontier.sources(at(slot)).tolist() == [Source.ACKED], "the clock goes on from the report"
    for bad in (0.25, nan, -1.0, -inf):
        frontier.read_to(slot, bad, 2.5)
    assert frontier.leads_s(THINKER, at(slot), 2.5).tolist() == [2.0], "less than before, or no number"
    frontier.read_to(slot, inf, 2.5)
    assert frontier.leads_s(THINKER, at(slot), 2.5).tolist() == [0.0], "all that there is"
    frontier.read_to(agent, 1.0, 1.0)
    assert frontier.sources(at(agent)).tolist() == [Source.ESTIMATED], "no person reads it"
    frontier.read_to(NOWHERE, 1.0, 1.0)
    frontier.free(slot)
    again = frontier.take(3.0, False, rate=4.0)
    frontier.make(THINKER, again, 2, now=3.0)
    frontier.read_to(again, 0.25, 3.5)
    assert frontier.leads_s(THINKER, at(again), 3.5).tolist() == [0.25], "the slot is another's"
    unread = frontier.take(3.0, False)
    frontier.make(THINKER, unread, 2, now=3.0)
    frontier.read_to(unread, 0.25, 3.5)
    assert isnan(frontier.leads_s(THINKER, at(unread), 3.5)[0])


def test_what_is_spoken_has_a_listener_and_no_reader() -> None:
    frontier = Frontier(3, 0.08)
    slot = frontier.take(0.0, True, rate=4.0)
    frontier.make(THINKER, slot, 5, now=1.0)
    assert frontier.rates(THINKER, at(slot)).tolist() == pytest.approx([12.5])
    assert isnan(frontier.heard_leads_s(at(slot), 1.0)[0])
