"""Policies that are observed: asked, counted, told of in the story, and without any effect."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.assembly.guard import Guard
from antiphon.assembly.node import Node
from antiphon.assembly.observed import MOST_OWNERS, ObservedHead, effects
from antiphon.assembly.preset import read_preset, replayable, with_preset
from antiphon.assembly.story import What
from antiphon.assembly.storyteller import Storyteller
from antiphon.assembly.watched import LIMIT_S, MOST_SLOW
from antiphon.core.errors import ConfigError
from antiphon.core.facts import ItemCut, PolicySuspended
from antiphon.policy.base import Budget, DeviceChoice, Hold, Refuse, StepChoice
from antiphon.policy.memory import KvState, Selection
from antiphon.runtime.record import Entry, RecordWriter, encode, read_record, replay
from antiphon.sim.model import released
from antiphon.sim.run import Outcome
from fakes.world import toy_config
from sim.runs import SMALL, outcome

SHORT = replace(SMALL, kv_tokens=608, max_context_tokens=592, host_kv_tokens=16384)
PRESETS = Path(__file__).parents[2] / "src" / "antiphon" / "assembly" / "presets"


def liveserve(folder: Path, name: str, **lines: str) -> str:
    """LiveServe's preset with some lines of one's own, and so little weight of KV that replies are held even
    where each has a large share of it."""
    text = (PRESETS / "liveserve.yaml").read_text().replace("beta: 40.0", "beta: 1.0")
    kept = [line for line in text.splitlines() if line.partition(":")[0] not in lines]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join([*kept, *(f"{key}: {value}" for key, value in lines.items())]) + "\n")
    return str(path)


@dataclass(frozen=True)
class Played:
    """A run, and its record."""

    preset: str
    record: Path
    outcome: Outcome
    entries: list[Entry]

    @property
    def encoded(self) -> list[bytes]:
        return [encode(entry) for entry in self.entries]

    @property
    def num_differed(self) -> dict[str, int]:
        """By decision."""
        found: dict[str, int] = {}
        for one in self.outcome.observed:
            found[one.decision] = found.get(one.decision, 0) + one.num_differed
        return found


def played(preset: str, record: Path, people: int, duration_s: float) -> Played:
    """People who interrupt, with memory that is short."""
    engine = released(preset, sizes=SHORT)
    writer = RecordWriter(record, engine.node, engine.depth)
    load = {"load": {"closed": {"concurrency": people, "duration_s": duration_s}}}
    made = outcome("barge-in", settings=load, engine=engine, recorder=writer)
    writer.close()
    assert not made.incidents
    return Played(preset, record, made, list(read_record(record)[1]))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("observed")
    return played(liveserve(folder, "observed", observe="true"), folder / "record", 8, 11.0)


def test_what_is_done_is_the_baselines_to_the_byte(observed: Played, tmp_path: Path) -> None:
    baseline = played("baseline", tmp_path / "record", 8, 11.0)
    assert observed.encoded == baseline.encoded
    facts = [fact for entry in baseline.entries for fact in entry.facts]
    assert any(isinstance(fact, ItemCut) for fact in facts), "nobody barged in"
    assert not baseline.outcome.observed
    assert observed.num_differed.keys() == {"step", "pace", "device", "evict", "write", "fetch"}
    assert all(observed.num_differed.values()), "a run in which both do the same would show nothing"
    assert any(one.num_differed < one.num_decisions for one in observed.outcome.observed)
    assert not observed.outcome.overruled
    said = [str(one) for one in observed.outcome.observed if (one.unit, one.decision) == ("talker", "step")]
    assert re.fullmatch(
        r"step of talker: observed, urgency would have decided otherwise in \d+ of \d+ decisions", said[0]
    )


def test_one_decision_may_be_observed_alone(tmp_path: Path) -> None:
    """Policies that are carried out keep what they remember apart from those that are not."""
    evict = "{policy: next-use, observe: true}"
    plain = played(liveserve(tmp_path, "plain", evict="lru"), tmp_path / "plain.rec", 6, 14.0)
    alone = played(liveserve(tmp_path, "alone", evict=evict), tmp_path / "alone.rec", 6, 14.0)
    assert alone.encoded == plain.encoded
    assert alone.num_differed.keys() == {"evict"}
    assert alone.num_differed["evict"] > 0


def test_the_record_tells_what_would_have_been_done(observed: Played) -> None:
    tellers: list[Storyteller] = []

    def make(*given: Any) -> Storyteller:
        tellers.append(Storyteller(*given))
        return tellers[0]

    assert replay(observed.record, observed.preset, make) == (len(observed.entries), [])
    told = [event for story in tellers[0].stories.values() for event in story.events]
    found = {event.what for event in told}
    assert {
        What.WOULD_RUN,
        What.WOULD_WAIT,
        What.WOULD_HOLD,
        What.WOULD_EVICT,
        What.WOULD_KEEP,
        What.WOULD_WRITE,
        What.WOULD_FETCH,
    } <= found
    held = next(event for event in told if event.what is What.WOULD_HOLD)
    assert (held.reason, held.where) == ("far enough ahead of what is heard", "talker")
    assert held.response
    assert not found & {What.HELD, What.PRELOADED, What.WRITTEN}, "these were not done"


# -- one decision -------------------------------------------------------------------------------------


class Own:
    """Says what it is told to."""

    name = "own"
    prepares = True

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.events = {"mine": 2}
        self.times = 0

    def decide(self, *_: Any) -> Any:
        self.times += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Base:
    """The baseline."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, *_: Any) -> Any:
        return self.answer


def candidates() -> Any:
    """Of three requests of 4 tokens each; the last one waits."""
    return SimpleNamespace(
        row=np.array([0, 1, -1]),
        num_rows=2,
        ready=np.ones(3, np.bool_),
        request=np.array([10, 11, 12]),
        tokens=np.array([4, 4, 4]),
        context=np.zeros(3, np.int64),
        cost=None,
        num_blocks=8,
        groups=("kv",),
    )


def column(*values: int) -> Any:
    return np.array(values, np.int64)


def compared(decision: str, answer: Any, baseline: Any, view: Any, *more: Any) -> tuple[Any, dict[str, int]]:
    """What is carried out, and what was counted."""
    guard = Guard()
    watched = guard.watched(decision, "u", Own(answer), Base(baseline), True)
    made = watched.decide(view, *more, 5.0)
    return made, {event: n for (_, _, event), n in guard.counts.items()}


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (StepChoice(column(1, 0), "own"), "step_agreed"),
        (StepChoice(column(1, 2), "own"), "step_differed"),
        (StepChoice(column(0, 1, 2), "own"), "step_agreed"),
        (StepChoice(column(0, 1, 2), "own", counts=column(4, 3, 1)), "step_differed"),
        (StepChoice(column(0, 1), "own", preempt=column(1)), "step_differed"),
        (StepChoice(column(0, 1), "own", wake_at=7.0, urgency=column(2, 1)), "step_agreed"),
    ],
)
def test_steps_are_the_same_if_they_run_the_same(answer: StepChoice, event: str) -> None:
    """The budget has room for two of three requests, whichever come first."""
    base = StepChoice(column(0, 1), "baseline")
    made, counts = compared("step", answer, base, candidates(), Budget(8, 3))
    assert made is base
    assert counts == {event: 1}
    rows_only = effects("step", candidates(), StepChoice(column(2, 1, 0), ""), Budget(100, 1))
    assert rows_only == {("run", 12): None}


def test_what_does_nothing_is_not_counted() -> None:
    nothing = StepChoice(column(), "nothing")
    idle = candidates()
    idle.ready = np.zeros(3, np.bool_)
    assert compared("step", nothing, nothing, idle, Budget(8, 3))[1] == {}
    assert compared("pace", Hold(None, ""), Hold(None, ""), candidates())[1] == {}
    heads = (SimpleNamespace(unit="a", place=0, urgency=0),)
    assert compared("device", DeviceChoice(0), DeviceChoice(0), heads)[1] == {}
    assert compared("replica", 0, 0, SimpleNamespace(loads=[1]))[1] == {}
    assert compared("admission", None, None, candidates(), None)[1] == {}


def test_every_other_decision_is_held_to_the_baselines() -> None:
    held = Hold(np.array([True, False, False]), "ahead", wake_at=9.0)
    made, counts = compared("pace", held, Hold(None, "free"), candidates())
    assert (made.held, made.wake_at, counts) == (None, None, {"pace_differed": 1})
    made, counts = compared("admission", Refuse("full"), None, candidates(), None)
    assert (made, counts) == (None, {"admission_differed": 1}), "nobody was refused"
    assert compared("replica", 1, 0, SimpleNamespace(loads=[1, 1])) == (0, {"replica_differed": 1})
    heads = tuple(SimpleNamespace(unit=name, place=at, urgency=0) for at, name in enumerate("ab"))
    assert compared("device", DeviceChoice(1), DeviceChoice(0), heads)[1] == {"device_differed": 1}


def kv(tier: str = "device") -> Any:
    """Three owners: on the device, on both tiers, on the host."""
    on_device, on_host = {"a": 3, "b": 2, "c": 0}, {"a": 0, "b": 2, "c": 4}
    return SimpleNamespace(
        tier=tier,
        groups=("kv",),
        num_blocks=16,
        has=lambda owner: owner in on_device,
        waiting=lambda: iter(()),
        num_below=8,
        state=lambda owner: KvState.RESTING if owner in on_device else None,
        device=on_device.get if tier == "device" else None,
        on_host=on_host.get if tier == "host" else None,
        num_away=lambda owner: 4 if owner == "c" else 0,
    )


@pytest.mark.parametrize(
    ("decision", "tier", "owners", "count", "done"),
    [
        ("evict", "device", "abc", 3, "a"),
        ("evict", "device", "abc", 4, "ab"),
        ("evict", "device", "cba", 9, "ba"),
        ("evict", "host", "abc", 2, "b"),
        ("write", "device", "abc", 9, "ab"),
        ("write", "device", "abc", 3, "a"),
        ("fetch", "device", "abc", 9, "c"),
        ("fetch", "device", "xc", 9, "c"),
        ("evict", "device", "abc", 0, ""),
    ],
)
def test_kv_moves_as_far_as_blocks_were_asked_for(
    decision: str, tier: str, owners: str, count: int, done: str
) -> None:
    found = effects(decision, kv(tier), Selection(iter(owners), count, ""), 5.0)
    assert found == {(decision, owner): None for owner in done}


def test_what_would_be_done_with_kv_is_read_of_a_few_owners_and_as_the_policys_time() -> None:
    """No more is written than the host has room for; the time is the policy's, its owners' and that of
    reading what they have."""
    room = kv()
    room.num_below = 2
    assert effects("write", room, Selection("ab", 9, ""), 5.0) == {("write", "a"): None}
    many = [f"s{at}" for at in range(100)]
    busy = kv()
    busy.has = lambda owner: True
    busy.state = lambda owner: KvState.RESTING
    asked: list[str] = []
    busy.device = lambda owner: asked.append(owner) or 1
    assert len(effects("evict", busy, Selection(many, 1000, ""), 5.0)) == len(asked) == MOST_OWNERS
    now = [0.0]

    def device(owner: str) -> int:
        now[0] += LIMIT_S
        return 1

    busy.device, busy.num_blocks = device, 1000
    guard = Guard(lambda: now[0])
    base = Base(Selection((), 0, ""))
    guard.watched("evict", "u", Own(Selection(many, 1000, "own")), base, True).decide(busy, 5.0)
    assert guard.counts == {("u", "own", "slow"): 1, ("u", "own", "evict_differed"): 1}


def test_an_answer_that_is_none_tells_no_urgency() -> None:
    guard = Guard()
    own = Own(StepChoice(column(0), "own", urgency=column(3)))
    watched = guard.watched("step", "u", own, Base(StepChoice(column(0), "baseline")), True)
    watched.decide(candidates(), Budget(8, 3), 5.0)
    guard.suspend(PolicySuspended("u", "evict"))
    assert guard.urgency == {"u": 3}
    own.answer = ValueError("no")
    watched.decide(candidates(), Budget(8, 3), 6.0)
    assert not guard.urgency


def test_owners_that_are_only_looked_at_are_left_for_the_baseline() -> None:
    base = Base(None)
    base.decide = lambda *_: Selection(iter("ab"), 5, "baseline")  # type: ignore[method-assign]
    guard = Guard()
    watched = guard.watched("evict", "u", Own(Selection(iter("ba"), 2, "own")), base, True)
    assert list(watched.decide(kv(), 5.0).owners) == ["a", "b"]
    assert guard.counts == {("u", "own", "evict_differed"): 1}
    wrong = guard.watched("evict", "v", Own(Selection(iter("bx"), 9, "own")), base, True)
    assert list(wrong.decide(kv(), 5.0).owners) == ["a", "b"]
    assert guard.counts["v", "own", "nonsense"] == 1


def test_a_column_that_only_it_reads_is_read_again() -> None:
    """Columns stay as they were when they were read first, and the engine reads them later."""

    class View:
        ready = np.ones(1, np.bool_)

        def __init__(self) -> None:
            self.num_free = 5

    view = View()

    class Meddles:
        def decide(self, seen: Any, now: float) -> Hold:
            seen.num_free = 0
            return Hold(None, "")

    Guard().watched("pace", "u", Meddles(), Base(Hold(None, "")), True).decide(view, 5.0)
    assert view.num_free == 5


def test_one_that_is_wrong_is_counted_and_one_that_is_slow_is_asked_no_more() -> None:
    made, counts = compared("pace", ValueError("no"), base := Hold(None, "baseline"), candidates())
    assert made is base
    assert counts == {"raised": 1}
    clock = iter(np.arange(0.0, 1000.0, LIMIT_S * 1.5))
    guard = Guard(lambda: float(next(clock)))
    own = Own(StepChoice(column(0), "own", urgency=column(3)))
    watched = guard.watched("step", "u", own, Base(StepChoice(column(0), "baseline")), True)
    for _ in range(MOST_SLOW):
        watched.decide(candidates(), Budget(8, 3), 5.0)
    assert guard.urgency == {"u": 3}
    (fact,) = guard.overdue()
    guard.suspend(fact)
    watched.decide(candidates(), Budget(8, 3), 6.0)
    assert own.times == MOST_SLOW
    assert not guard.urgency
    assert not guard.overruled
    assert not guard.may_hold_up("u")
    assert not guard.stalled("u"), "what stands still is the baseline's doing"


def test_units_are_as_urgent_as_their_observed_policies_say() -> None:
    head: Any = SimpleNamespace(unit="a", place=1, urgency=4, slack_s=2.0, step_s=0.5)
    assert ObservedHead(head, {}).urgency == 4
    seen = ObservedHead(head, {"a": 1})
    assert (seen.unit, seen.place, seen.urgency, seen.slack_s, seen.step_s) == ("a", 1, 1, 2.0, 0.5)


def test_counts_say_that_nothing_of_it_happened(tmp_path: Path) -> None:
    node = Node(with_preset(toy_config(), liveserve(tmp_path, "observed", observe="true")))
    stats, info = node.stats(), 'antiphon_policy_info{unit="thinker",decision="%s",policy="%s"}'
    assert stats[info % ("step", "urgency")] == 0
    assert stats[info % ("admission", "unlimited")] == 1
    event = 'antiphon_policy_total{unit="thinker",policy="next-use",event="%s"}'
    assert event % "observed_preload_begun" in stats
    assert event % "preload_begun" not in stats
    shown = {(one.unit, one.policy): one.observed for one in node.guard.shown()}
    assert shown["thinker", "urgency"] == ("step", "pace")
    assert shown["thinker", "unlimited"] == ()
    fetch = next(one for one in node.guard._watched if (one.unit, one.decision) == ("thinker", "fetch"))
    assert fetch.policy.prepares
    assert not fetch.prepares, "clients are told what is done"


# -- the preset ---------------------------------------------------------------------------------------


def test_stages_may_be_observed_alone(tmp_path: Path) -> None:
    evict = "{policy: next-use, stages: {talker: {observe: true}}}"
    choice = read_preset(liveserve(tmp_path, "one", evict=evict))["evict"]
    assert (choice.observes("talker"), choice.observes("thinker")) == (True, False)
    assert choice.of("talker") == ("next-use", {})
    excepted = read_preset(liveserve(tmp_path, "but", observe="true", evict="{policy: lru, observe: false}"))
    assert not excepted["evict"].observes("thinker")
    assert excepted["step"].observes("thinker")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"observe": "yes please"}, "observe is 'yes please'; it must be true or false"),
        ({"evict": "{policy: lru, observe: 1}"}, "evict: observe is 1; it must be true or false"),
        (
            {"evict": "{policy: lru, stages: {talker: {observe: 2}}}"},
            "evict: observe is 2; it must be true or false",
        ),
        ({"observ": "true"}, "no decision 'observ'; did you mean observe?"),
        (
            {"device": "{policy: most-urgent, observe: true}"},
            "device is observed and step, pace not everywhere",
        ),
    ],
)
def test_a_preset_that_is_wrong_says_what(lines: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"wrong\.yaml") as error:
        read_preset(liveserve(tmp_path, "wrong", **lines))
    assert said in str(error.value)


def test_a_record_replays_with_what_was_observed_then(tmp_path: Path) -> None:
    observed = liveserve(tmp_path, "observed", observe="true")
    config = with_preset(toy_config(), observed)
    assert replayable(config).policies == config.policies, "what ships needs no preset"
    with pytest.raises(ConfigError, match=r"with urgency \(safe_s: 1.0, .*observe: True\)"):
        replayable(config, "liveserve")
