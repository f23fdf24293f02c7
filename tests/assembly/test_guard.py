"""A policy that raises, answers nonsense or is slow costs its own decision, and what became of it is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from antiphon.assembly.guard import MAX_EVENTS, Guard
from antiphon.assembly.node import Node
from antiphon.assembly.preset import with_preset
from antiphon.assembly.watched import LEAST_WAKE_S, LIMIT_S, MOST_SLOW, Watched
from antiphon.core.config import NodeConfig
from antiphon.core.facts import PolicySuspended
from antiphon.metrics.names import Metric, parse_key
from antiphon.policy.base import DeviceChoice, Hold, Refuse, StepChoice, Told
from antiphon.policy.memory import Selection
from fakes.broken import preset_with
from fakes.world import toy_config

INTS, NONE = np.array([0, 1]), np.zeros(0, np.int64)


def view(**others: Any) -> Any:
    """Of three candidates, two of which have a row."""
    base = {
        "row": np.array([0, 1, -1]),
        "num_rows": 2,
        "ready": np.ones(3, np.bool_),
        "num_blocks": 8,
        "groups": ("kv",),
        "loads": [0, 0],
        "has": lambda owner: owner in ("a", "b"),
        "waiting": lambda: iter(["w"]),
    }
    return SimpleNamespace(**base | others)


def asked(
    decision: str, answer: Any, seen: Any = None, *, times: int = 1, **guarded: Any
) -> tuple[Any, Guard]:
    """What comes of a policy's answer; "baseline" if the baseline was asked instead."""
    guard = Guard(**guarded)
    says = (lambda *_: answer) if not callable(answer) else answer
    baseline: Any = Selection(("b", "z"), 1, "baseline") if isinstance(answer, Selection) else "baseline"
    policy, other = SimpleNamespace(decide=says, name="own"), type("B", (), {"decide": lambda *_: baseline})()
    watched = guard.watched(decision, "u", policy, other)
    last: Any = None
    for _ in range(times):
        last = watched.decide(view() if seen is None else seen, *((None,) if decision == "step" else ()), 5.0)
    return last, guard


def raises(*_: Any) -> Any:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("decision", "answer", "said"),
    [
        ("step", raises, "KeyError: 'x'"),
        ("step", None, "NoneType is not a StepChoice"),
        ("step", StepChoice(np.array([0, 0]), ""), "order: a candidate is named twice"),
        ("step", StepChoice(np.array([7]), ""), "order: candidate 7 is not one of 3"),
        ("step", StepChoice(np.array([-1]), ""), "order: candidate"),
        ("step", StepChoice(np.array([0.0]), ""), "order: it must be a column of integers"),
        ("step", StepChoice([0], ""), "order: it must be a column of integers"),  # type: ignore[arg-type]
        ("step", StepChoice(INTS, "", counts=np.array([1])), "counts: 1 entries for 2 candidates"),
        ("step", StepChoice(INTS, "", counts=np.array([1, 0])), "counts: 0 is below 1"),
        ("step", StepChoice(INTS, "", preempt=np.array([2])), "preempt: candidate 2 is not one of 2"),
        ("step", StepChoice(INTS, "", keeps=np.ones(3, np.bool_)), "keeps: it must be a mask over 0"),
        ("step", StepChoice(INTS, "", wake_at=float("nan")), "wake_at: nan is not a time"),
        ("step", StepChoice(NONE, "", wake_at=float("inf")), "wake_at: inf is not a time"),
        ("step", StepChoice(NONE, ""), "order: it has nothing that could run"),
        ("pace", Hold(np.ones(2, np.bool_), ""), "held: it must be a mask over 3"),
        ("pace", Hold(np.array([np.nan] * 3), ""), "held: it must be a mask over 3"),  # type: ignore[arg-type]
        ("pace", Hold(np.ones(3, np.bool_), ""), "held: all that could run is, and wake_at does not say"),
        ("admission", True, "bool is not a Refuse"),
        ("admission", Refuse("", retry_s=float("nan")), "retry_s: nan is not a time to wait"),
        ("device", DeviceChoice(9), "index: 9 is not one of 2"),
        ("device", DeviceChoice(0.5), "index: 0.5 is not one of 2"),  # type: ignore[arg-type]
        ("replica", None, "the replica: None is not one of 2"),
        ("replica", 2, "the replica: 2 is not one of 2"),
        ("evict", Selection((), float("nan"), ""), "count: nan is not a number of blocks"),  # type: ignore[arg-type]
        ("evict", Selection((), -1, ""), "count: -1 is not a number of blocks"),
        ("evict", Selection((), 1, "", groups=("x",)), "groups: ['x']; the KV groups are kv"),
        ("evict", Selection(3, 1, ""), "owners: int is not a sequence of names"),  # type: ignore[arg-type]
        ("evict", Selection((), 1, "", reach={"a": float("nan")}), "reach: nan is not a number"),  # type: ignore[dict-item]
    ],
)
def test_the_baseline_decides_instead(decision: str, answer: Any, said: str) -> None:
    heads = [SimpleNamespace(urgency=0), SimpleNamespace(urgency=0)]
    made, guard = asked(decision, answer, heads if decision == "device" else None)
    assert made == "baseline" or made.reason == "baseline"
    event = "raised" if answer is raises else "nonsense"
    assert dict(guard.counts) == {("u", "own", event): 1}
    (incident,) = guard.incidents()
    assert said in str(incident)
    assert str(incident).startswith(f"policy own ({decision} of u): {event}, and the baseline decided")
    assert not guard.incidents()


class Speechless(Exception):
    """An error without words."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Speechless(), "decided: Speechless"),
        (ValueError("\ud800"), "decided: ValueError: ?"),
        (ValueError("x" * 10**6), "decided: ValueError: xxx"),
    ],
)
def test_an_error_that_cannot_be_logged_is_an_error_like_others(error: Exception, told: str) -> None:
    def fails(*_: Any) -> Any:
        raise error

    def names(*_: Any) -> Any:
        return Selection(map(fails, "x"), 3, "")

    assert asked("pace", fails)[0] == "baseline"
    for answer in (fails, names):
        guard = Guard()
        policy = SimpleNamespace(decide=answer, name="own")
        watched = guard.watched("evict", "u", policy, Base())
        assert list(watched.decide(view(), 5.0).owners) == ["b"]
        (incident,) = guard.incidents()
        assert told in str(incident)
        assert len(str(incident).encode()) < 400


@pytest.mark.parametrize("value", [property(lambda _: 1 / 0), np.ones(2)])
def test_whether_a_policy_prepares_may_be_unreadable(value: Any) -> None:
    kind = type("Own", (), {"decide": lambda *_: None, "prepares": value, "name": "own"})
    guard = Guard()
    assert not guard.watched("fetch", "u", kind(), Base()).prepares
    assert guard.counts == {("u", "own", "raised"): 1}
    assert "its `prepares` cannot be read" in str(guard.incidents()[0])


def test_a_good_answer_is_carried_out() -> None:
    choice = StepChoice(INTS, "own", counts=np.array([1, 2]), wake_at=6.0)
    made: StepChoice = asked("step", choice)[0]
    assert (made.order.tolist(), made.reason, made.wake_at) == ([0, 1], "own", 6.0)
    assert made.counts is not None
    assert made.counts.tolist() == [1, 2]
    hold = Hold(np.ones(3, np.bool_), "all, for a while", wake_at=6.0)
    assert asked("pace", hold)[0].held.all()
    some = Hold(np.array([True, True, False]), "some")
    assert asked("pace", some)[0].held.tolist() == [True, True, False]
    nothing = StepChoice(NONE, "nothing is ready")
    assert asked("step", nothing, view(ready=np.zeros(3, np.bool_)))[0].reason == nothing.reason


@pytest.mark.parametrize(
    ("wished", "counted"), [(4.0, True), (5.0, False), (np.nextafter(5.0, 6.0), False), (5.0005, False)]
)
def test_a_wish_for_the_past_or_for_at_once_is_clamped(wished: float, counted: bool) -> None:
    made, guard = asked("pace", Hold(None, "", wake_at=wished))
    assert made.wake_at == 5.0 + LEAST_WAKE_S
    assert guard.counts == ({("u", "own", "wake_in_past"): 1} if counted else {})


@pytest.mark.parametrize(
    ("owners", "taken", "said"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["w", "a"], ["w", "a"], ""),
        (["a", "a"], ["a", "b", "z"], "'a' is named twice"),
        (["a", "nobody"], ["a", "b", "z"], "'nobody' has no KV here"),
        ((1 / 0 for _ in "x"), ["b", "z"], "ZeroDivisionError"),
    ],
)
def test_owners_are_looked_at_as_they_are_taken(owners: Any, taken: list[str], said: str) -> None:
    made, guard = asked("evict", Selection(owners, 3, ""))
    assert not guard.counts
    assert list(made.owners) == taken
    incidents = guard.incidents()
    assert said in "".join(map(str, incidents))
    assert len(incidents) == bool(said)


class Base:
    """The baseline."""

    def decide(self, *_: Any) -> Selection:
        return Selection(["b"], 3, "")


class Wordy:
    """Two words take longer than `LIMIT_S`."""

    name = "wordy"

    def __init__(self, guard: list[Guard], clock: list[float]) -> None:
        self.guard, self.clock, self.asked = guard, clock, list[Watched | None]()

    def decide(self, seen: Any, now: float) -> Hold:
        return Hold(None, "")

    def tell(self, seen: Any, at: int, now: float) -> Told:
        self.asked.append(self.guard[0].asking)
        self.clock[0] += 0.6 * LIMIT_S
        return Told("", f"word {at}")


def test_words_that_take_too_long_are_asked_for_no_more() -> None:
    """All of one decision together; it decides on."""
    clock, guards = [0.0], list[Guard]()
    guards.append(Guard(lambda: clock[0]))
    policy = Wordy(guards, clock)
    watched = guards[0].watched("pace", "u", policy, Base())
    for round_ in range(MOST_SLOW + 1):
        watched.decide(view(), float(round_))
        told = [watched.tell(view(), at, float(round_)) for at in range(3)]
        words = [Told("", "word 0"), Told("", "word 1"), None]
        assert told == (words if round_ < MOST_SLOW else [None] * 3)
    assert policy.asked == [watched] * 2 * MOST_SLOW, "/health names it"
    assert guards[0].counts == {("u", "wordy", "slow_words"): MOST_SLOW, ("u", "wordy", "silenced"): 1}
    assert not guards[0].overdue(), "its decisions are in time"


@pytest.mark.parametrize(("error", "ends"), [(SystemExit(3), False), (KeyboardInterrupt(), True)])
def test_words_end_nothing_but_themselves(error: BaseException, ends: bool) -> None:
    def tell(*_: Any) -> Told:
        raise error

    guard = Guard()
    policy = SimpleNamespace(name="own", decide=lambda *_: Hold(None, ""), tell=tell)
    watched = guard.watched("pace", "u", policy, Base())
    watched.decide(view(), 5.0)
    if ends:
        with pytest.raises(KeyboardInterrupt):
            watched.tell(view(), 0, 5.0)
        return
    assert watched.tell(view(), 0, 5.0) is None
    (incident,) = guard.incidents()
    assert str(incident).endswith("what it tells of its decision is unusable: SystemExit: 3")
    assert guard.counts == {("u", "own", "untold"): 1}


def test_of_owners_that_the_baseline_chose_in_the_end_nothing_is_told() -> None:
    guard = Guard()
    selection = Selection(["a", "nobody"], 3, "")
    policy = SimpleNamespace(decide=lambda *_: selection, tell=lambda *_: Told("", "mine"))
    watched = guard.watched("fetch", "u", policy, Base())
    made = watched.decide(view(), 5.0)
    assert watched.tell(view(), "a", 5.0) == Told("", "mine")
    assert list(made.owners) == ["a", "b"]
    assert watched.tell(view(), "a", 5.0) is None


def test_the_log_is_told_ever_more_rarely() -> None:
    _, guard = asked("step", raises, times=9)
    assert guard.counts["u", "own", "raised"] == 9
    assert [str(one).endswith("times)") for one in guard.incidents()] == [False, True, True, True]


def test_slow_decisions_are_counted_and_after_some_the_baseline_decides() -> None:
    clock = iter(np.arange(0.0, 1000.0, LIMIT_S * 1.5))
    choice = StepChoice(INTS, "own")
    made, guard = asked("step", choice, times=MOST_SLOW, stopwatch=lambda: float(next(clock)))
    assert made.reason == "own"
    assert guard.counts["u", "own", "slow"] == MOST_SLOW
    (fact,) = guard.overdue()
    assert fact == PolicySuspended("u", "step")
    assert not guard.overdue()
    guard.suspend(fact)
    watched: Watched = guard._watched[0]
    assert watched.decide(view(), None, 6.0) == "baseline"
    (shown,) = guard.shown()
    assert (shown.decisions, shown.suspended, shown.events["suspended"]) == (("step",), ("step",), 1)


def test_what_a_policy_counts_itself_cannot_break_the_metrics() -> None:
    guard = Guard()
    events: dict[Any, Any] = {"fine": 3, 'q"\\\n': 1, "nan": float("nan"), 7: "x"}
    policy = SimpleNamespace(decide=raises, name='a "name"\n', events=events)
    guard.watched("step", "u", policy, policy)
    assert set(guard.events.values()) == {3, 1}
    for unit, name, event in guard.events:
        key = Metric.POLICY.of_policy(unit, name, event)
        assert "\n" not in key
        assert parse_key(key) == (Metric.POLICY, {"unit": unit, "policy": name, "event": event})
    events.update({f"event {index}": 1 for index in range(1000)})
    assert len(guard.events) <= MAX_EVENTS
    events.clear()
    events.update({"\ud800": 1, "huge": 1 << 63})
    assert list(guard.events) == [("u", policy.name, "?")]
    events[type("Odd", (), {"__str__": raises})()] = 1
    assert not guard.events


class Own:
    name = "own"

    def decide(self, *_: Any) -> Any:
        raise SystemExit(3)  # LINE


def test_where_it_raised_is_said() -> None:
    guard = Guard()
    watched = guard.watched("step", "u", Own(), SimpleNamespace(decide=lambda *_: "baseline"))
    assert watched.decide(view(), None, 5.0) == "baseline"
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(at for at, text in enumerate(lines) if text.endswith("# LINE"))
    assert f"SystemExit: 3 (test_guard.py:{line})" in str(guard.incidents()[0])


def test_ctrl_c_is_nobodys_error() -> None:
    def stops(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked("step", stops)


def test_a_refusal_is_counted_and_its_reason_told() -> None:
    made, guard = asked("admission", Refuse("full"), times=3)
    assert made == Refuse("full")
    assert guard.counts == {("u", "own", "refused"): 3}
    said = [str(one) for one in guard.incidents()]
    assert [one.partition("): ")[2] for one in said] == [
        "refused a request: full",
        "refused a request: full (2 times)",
    ]
    assert not guard.overruled


def test_what_the_baseline_decided_instead_is_told() -> None:
    answers = iter([None, Hold(None, ""), None, None])
    _, guard = asked("pace", lambda *_: next(answers) or raises(), times=4)
    (one,) = guard.overruled
    assert str(one) == "pace of u: 3 of 4 decisions were the baseline's (raised)"
    guard.suspend(PolicySuspended("u", "pace"))
    guard._watched[0].decide(view(), 5.0)
    (one,) = guard.overruled
    assert (one.num_decisions, one.reasons) == (5, {"raised": 3, "suspended": 1})


def test_numbers_of_numpy_are_numbers() -> None:
    made, _ = asked("pace", Hold(None, "", wake_at=np.float32(6.5)))  # type: ignore[arg-type]
    assert (made.wake_at, type(made.wake_at)) == (6.5, float)
    guard = Guard()
    policy = SimpleNamespace(decide=raises, name="own", events={"n": np.int64(3), "yes": True, "share": 0.5})
    guard.watched("step", "u", policy, policy)
    assert guard.events == {("u", "own", "n"): 3}


def test_time_is_whose_it_is() -> None:
    """A policy that asks another one is not slow because the other one is."""
    seconds = iter([0.0, 1.0, 11.0, 12.0])
    guard = Guard(lambda: next(seconds))
    inner = guard.watched("step", "u", SimpleNamespace(name="inner", decide=None), None)
    outer = guard.watched("device", "u", SimpleNamespace(name="outer", decide=None), None)
    with guard.timed(outer), guard.timed(inner):
        assert guard.asking is inner
    assert (inner.asked_s, outer.asked_s, guard.asking) == (10.0, 2.0, None)


def test_its_counts_are_in_the_metrics(tmp_path: Path) -> None:
    config: NodeConfig = with_preset(toy_config(), preset_with(tmp_path, "Raising"))
    node = Node(config)
    node.guard.counts["thinker", "Raising", "raised"] = 2
    assert node.stats()['antiphon_policy_total{unit="thinker",policy="Raising",event="raised"}'] == 2
    info = 'antiphon_policy_info{unit="thinker",decision="%s",policy="%s"}'
    assert node.stats()[info % ("step", "Raising")] == node.stats()[info % ("evict", "lru")] == 1
    node.guard.suspend(PolicySuspended("thinker", "step"))
    assert node.stats()[info % ("step", "Raising")] == 0


@pytest.mark.parametrize("preset", ["liveserve", "tokenflow", "fcfs"])
def test_a_stage_without_kv_counts_and_shows_nothing_of_it(preset: str) -> None:
    node = Node(toy_config(preset=preset))
    taken = dict[str, set[str]]()
    for one in node.guard.shown():
        taken.setdefault(one.unit, set()).update(one.decisions)
    assert taken["encoders"] == taken["code2wav"] == {"step", "pace"}
    assert taken["thinker"] == taken["talker"] == {"step", "pace", "admission", "evict", "write", "fetch"}
    counted = {unit for unit, _, event in node.guard.events if event == "preload_begun"}
    assert counted == ({"thinker", "talker"} if preset == "liveserve" else set())


def test_a_graph_without_encoders_shows_none() -> None:
    node = Node(msgspec.structs.replace(toy_config(preset="liveserve"), encoder={}))
    assert {one.unit for one in node.guard.shown()} >= {"thinker"}
    assert [one.decisions for one in node.guard.shown() if not one.unit] == [("replica",)]


def test_the_console_is_shown_which_policy_decides_what(tmp_path: Path) -> None:
    node = Node(with_preset(toy_config(), preset_with(tmp_path, "Raising")))
    node.watch(True)
    node.guard.counts["thinker", "Raising", "raised"] = 2
    shown = {(one.unit, one.policy): one for one in node.snapshot(0.0).policies}
    assert shown["thinker", "Raising"].decisions == ("step",)
    assert shown["thinker", "Raising"].events == {"raised": 2}
    assert shown["thinker", "lru"].decisions == ("evict",)
    assert shown["", "sticky"].decisions == ("replica",)
