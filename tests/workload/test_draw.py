"""What is drawn is valid, the same for the same seed, and one law's alone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.workload.script import JobScript, PersonScript, Script, TurnScript
from workload.shapes import drawn, people, talkers, workload

SEEDS = st.integers(0, 2**40)
PROBABILITIES = st.sampled_from([0.0, 0.3, 1.0])

DIALOGUES = st.fixed_dictionaries(
    {
        "turns": st.sampled_from([1, {"uniform": [1, 4]}, {"fitted": "burstgpt_turns"}]),
        "typed": PROBABILITIES,
        "speech": st.sampled_from(
            [
                {},
                {"seconds": {"uniform": [0, 3]}},
                {"max_s": 1.5, "pauses": {"stretch_s": {"exponential": {"mean": 0.5}}, "pause_s": 0.3}},
            ]
        ),
        "pictures": st.sampled_from([None, {"probability": 0.5, "count": {"uniform": [1, 3]}}]),
        "clips": st.sampled_from([None, {"probability": 0.5, "max_s": 8, "fps": 2}]),
        "reply_s": st.sampled_from([2, {"lognormal": {"median": 5, "p90": 20}}]),
        "barge_in": st.builds(lambda p: {"probability": p}, PROBABILITIES),
        "backchannels": st.sampled_from([{"per_reply": 0}, {"per_reply": 3}]),
        "failed_barge_ins": st.sampled_from([{"per_reply": 0}, {"per_reply": 0.5}]),
        "acks": st.sampled_from([None, {"jitter_s": 0.1, "loss": 0.2}, {"share": 0.5}]),
    }
)


def check_turn(turn: TurnScript) -> None:
    assert bool(turn.voice) != bool(turn.text)
    assert all(voiced.speech_s > 0 and voiced.pause_s >= 0 for voiced in turn.voice)
    assert all(voiced.speech_s > 0 for voiced in turn.interjections)
    assert turn.think_s >= 0
    assert turn.typing_s >= 0
    assert turn.max_output_tokens is None or turn.max_output_tokens >= 1
    assert all(1 <= clip.num_frames <= 16 for clip in turn.clips), "eight seconds of two frames at most"
    ends = [one.after_s + one.speech_s for one in turn.interjections]
    begins = [one.after_s for one in turn.interjections]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert "barge_in" not in [one.kind for one in turn.interjections[:-1]]
    assert turn.wants == "speech" or not turn.interjections


@settings(max_examples=60, deadline=None)
@given(DIALOGUES, SEEDS)
def test_scripts_are_valid_and_the_same_again(laws: dict[str, Any], seed: int) -> None:
    chosen = talkers(4, **laws)
    scripts = people(chosen, seed)
    assert len(scripts) == 4
    for script in scripts:
        assert script.turns
        for turn in script.turns:
            check_turn(turn)
    assert people(chosen, seed) == scripts
    assert msgspec.json.decode(msgspec.json.encode(scripts), type=list[PersonScript]) == scripts


CHANGES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "think_s": ({"think_s": {"uniform": [5, 9]}}, {"think_s"}),
    "speech": ({"speech": {"seconds": {"gamma": {"mean": 3, "cv": 2}}}}, {"voice"}),
    "pauses": ({"speech": {"pauses": {"stretch_s": 0.4, "pause_s": {"uniform": [0.2, 0.4]}}}}, {"voice"}),
    "typing": ({"typing": {"words_per_s": 9}}, {"typing_s"}),
    "text": ({"typing": {"words": {"gamma": {"mean": 20, "cv": 1}}}}, {"text", "typing_s"}),
    "pictures": ({"pictures": {"count": {"uniform": [1, 3]}}}, {"pictures"}),
    "clips": ({"clips": {"count": {"uniform": [1, 3]}}}, {"clips"}),
    "tokens": ({"max_output_tokens": {"uniform": [3, 9]}}, {"max_output_tokens"}),
    "barge_in": ({"barge_in": {"probability": 1}}, {"interjections"}),
    "murmurs": ({"backchannels": {"per_reply": 5}}, {"interjections"}),
    "reply_s": ({"reply_s": 2}, {"interjections"}),
    "reading": ({"reading_tokens_per_s": 99}, {"reading_tokens_per_s"}),
    "telling": ({"tells_rate": True}, {"tells_rate"}),
    "acks": ({"acks": None}, {"acks"}),
}


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_one_law_changes_its_own_field_alone(change: str, seed: int) -> None:
    laws, fields = CHANGES[change]
    before = {"turns": {"uniform": [2, 4]}, "typed": 0.5, "barge_in": {"probability": 0.3}}
    old_people, new_people = (people(talkers(**each), seed) for each in (before, {**before, **laws}))
    for old, new in zip(old_people, new_people, strict=True):
        assert without(old, fields) == without(new, fields)


@pytest.mark.parametrize("change", CHANGES)
def test_a_law_changes_something(change: str) -> None:
    before = {"typed": 0.5, "barge_in": {"probability": 0.3}}
    assert people(talkers(20, **before)) != people(talkers(20, **{**before, **CHANGES[change][0]}))


def without(script: Script, fields: set[str]) -> Any:
    raw = msgspec.to_builtins(script)
    for holder in (raw, *raw["turns"]):
        for field in fields:
            holder.pop(field, None)
    return raw


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_more_turns_leave_the_first_ones_and_other_sessions_alone(seed: int) -> None:
    for short, long in zip(people(talkers(turns=2), seed), people(talkers(turns=6), seed), strict=True):
        assert long.turns[:2] == short.turns
        assert (long.seed, long.acks) == (short.seed, short.acks)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_more_likely_barge_ins_are_the_same_and_others(seed: int) -> None:
    def cuts(probability: float) -> set[tuple[int, int, float]]:
        scripts = people(talkers(20, turns=3, barge_in={"probability": probability}), seed)
        return {
            (index, at, one.after_s)
            for index, script in enumerate(scripts)
            for at, turn in enumerate(script.turns)
            for one in turn.interjections
        }

    assert cuts(0) == set()
    assert cuts(0.3) <= cuts(0.7) <= cuts(1)
    assert len(cuts(1)) == 60


def test_arrivals_don_t_touch_people() -> None:
    def turns(arrivals: dict[str, Any]) -> list[Any]:
        load = {"open": {"arrivals": arrivals, "sessions": 6}}
        return [script.turns for script in people(workload(load))]

    assert turns({"poisson": {"rate_per_s": 1}}) == turns({"uniform": {"rate_per_s": 9}})


def test_statistics_follow_the_laws() -> None:
    laws = {
        "turns": {"choice": {"values": [1, 3]}},
        "think_s": {"exponential": {"mean": 4}},
        "barge_in": {"probability": 0.4},
        "backchannels": {"per_reply": 0.7},
        "reply_s": 30,
        "acks": {"share": 0.25},
        "typed": 0.2,
    }
    scripts = people(talkers(800, **laws))
    turns = [turn for script in scripts for turn in script.turns]
    replies = [turn for turn in turns if turn.wants == "speech"]
    cut = [turn for turn in replies if turn.interjections and turn.interjections[-1].kind == "barge_in"]
    uncut = [turn for turn in replies if turn not in cut]
    assert len(turns) / 800 == pytest.approx(2, rel=0.05)
    assert np.mean([t.think_s for s in scripts for t in s.turns[1:]]) == pytest.approx(4, rel=0.1)
    assert len(cut) / len(replies) == pytest.approx(0.4, rel=0.1)
    assert {turn.interjections[-1].after_s for turn in cut} == {30}
    assert np.mean([len(turn.interjections) for turn in uncut]) == pytest.approx(0.7, rel=0.1)
    assert np.mean([script.acks is not None for script in scripts]) == pytest.approx(0.25, rel=0.2)
    assert len(replies) / len(turns) == pytest.approx(0.8, rel=0.05)


def test_pauses_lie_between_stretches() -> None:
    pauses = {"stretch_s": {"exponential": {"mean": 0.5}}, "pause_s": 0.2}
    for script in people(talkers(20, speech={"seconds": 3, "pauses": pauses})):
        for turn in script.turns:
            assert sum(voiced.speech_s for voiced in turn.voice) == pytest.approx(3)
            assert [voiced.pause_s for voiced in turn.voice[:-1]] == [0.2] * (len(turn.voice) - 1)
            assert turn.voice[-1].pause_s == 0
            assert turn.speech_s == pytest.approx(3 + 0.2 * (len(turn.voice) - 1))


def test_shares_and_wanted_replies() -> None:
    groups = {"a": {"share": 3}, "b": {"typed": 1}, "c": {"share": 0}, "d": {"replies": "text"}}
    chosen = workload({"closed": {"concurrency": 1, "sessions": 1000}}, people=groups)
    scripts = people(chosen)
    by_group = {name: [s for s in scripts if s.name.startswith(f"{name}-")] for name in groups}
    assert len(by_group["a"]) == pytest.approx(600, rel=0.1)
    assert not by_group["c"]
    assert {turn.wants for script in by_group["a"] for turn in script.turns} == {"speech"}
    assert {turn.speech_s for script in by_group["b"] for turn in script.turns} == {0}
    assert {turn.wants for script in by_group["b"] for turn in script.turns} == {"text"}
    assert {turn.wants for script in by_group["d"] for turn in script.turns} == {"text"}
    assert len({script.name for script in scripts}) == 1000


def test_jobs_come_beside_the_load() -> None:
    jobs = {
        "own": {
            "arrivals": {"uniform": {"rate_per_s": 1}},
            "call": {"words": 30, "max_output_tokens": 7},
            "rate": "auto",
        }
    }
    load = {"open": {"arrivals": {"poisson": {"rate_per_s": 0.5}}, "duration_s": 20}}
    scripts = drawn(workload(load, people={"talker": {}}, jobs=jobs))
    assert [script.arrival_s for script in scripts] == sorted(script.arrival_s for script in scripts)
    own = [script for script in scripts if isinstance(script, JobScript)]
    assert [script.arrival_s for script in own] == list(range(20))
    for script in own:
        (call,) = script.calls
        assert (len(call.prompt.split()), call.max_output_tokens, call.after) == (30, 7, ())
        assert (script.tier, script.rate) == ("best_effort", "auto")
    assert people(workload(load, people={"talker": {}})) == [
        s for s in scripts if isinstance(s, PersonScript)
    ]
