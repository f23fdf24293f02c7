"""Simulated runs: the same seed the same bytes, people who keep to their scripts, nothing lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from antiphon.assembly.preset import read_preset, readers_of
from antiphon.core.facts import Fact, ResponseRequested
from antiphon.core.plans import Decision
from antiphon.core.ports import Prompter
from antiphon.graphs import find_graph
from antiphon.metrics.log import (
    AckSent,
    AudioDelta,
    Event,
    Interrupted,
    ResponseEnded,
    ResponseStarted,
    SessionEnded,
    SessionQueued,
    SessionStarted,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.links import Network
from antiphon.sim.model import released
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.run import Simulation, simulate
from antiphon.wire.readers import ReaderRates
from antiphon.workload.draw import draw
from antiphon.workload.script import JobScript, PersonScript
from sim.linear import LinearCosts
from sim.runs import SMALL, TWO_EACH, outcome, setup, started

KINDS = ["voice-chat", "barge-in", "mixed", "agents", "best-effort", "readers", "sharegpt-speech"]
VAD = {"turn_detection": "server_vad"}
BRIEF = {"load": {"closed": {"concurrency": 4, "duration_s": 12.0}}}
FEW_TURNS = {"people.talker.turns": 2}


def kinds(events: list[Event], kind: type) -> list:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("workload", ["barge-in", "mixed", "agents"])
def test_same_seed_same_bytes(workload: str) -> None:
    how = {"engine": released(sizes=SMALL, replicas=TWO_EACH), "settings": BRIEF}
    first, second = (outcome(workload, seed=3, **how) for _ in range(2))
    assert first.log == second.log
    assert first.log != outcome(workload, seed=4, **how).log


class Told:
    """Implements sim.driver.Recorder: keeps the rates at which written replies are read, by session."""

    def __init__(self) -> None:
        self.rates: dict[str, Any] = {}

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        asked = (fact for fact in facts if isinstance(fact, ResponseRequested) and not fact.speech)
        self.rates |= {fact.session: fact.rate for fact in asked}


@pytest.mark.parametrize("preset", ["tokenflow", "baseline"])
@pytest.mark.parametrize("tells", [False, True])
def test_the_engine_is_told_of_readers_as_a_server_tells_it(preset: str, tells: bool) -> None:
    """Where a preset goes by reading, what is not said is as the server has it, of jobs too."""
    told, engine = Told(), replace(released(preset, SMALL), readers=ReaderRates(reading=8.0))
    said = {"people.reader.tells_rate": tells, "agents.survey.rate": "auto" if tells else None}
    made = setup("agents", 0, said, engine=engine, recorder=told)
    simulate(made, started())
    assumed = readers_of(read_preset(preset), engine.readers).of(None, is_streamed=True)
    assert assumed == (8.0 if preset == "tokenflow" else None)
    own = {script.name: script for script in islice(draw(made.workload, made.seed), 99)}
    assert {type(own[name]) for name in told.rates} == {PersonScript, JobScript}
    for name, rate in told.rates.items():
        script = own[name]
        if isinstance(script, JobScript):
            assert rate == (script.rate or assumed)
        else:
            assert rate == (script.reading_tokens_per_s if tells or assumed is None else assumed)
    if tells:
        assert "auto" in told.rates.values()


def test_jitter_is_drawn_from_the_seed() -> None:
    network = Network(0.02, 0.01)
    first, second = (outcome(seed=3, network=network).log for _ in range(2))
    assert first == second != outcome(seed=3).log


@pytest.mark.parametrize("workload", KINDS)
@pytest.mark.parametrize("turns", ["manual", "server_vad"])
def test_every_response_has_one_end(workload: str, turns: str) -> None:
    """Of a session that was played to its end; and what is left behind in the nodes is nothing."""
    sessions = 3 if workload == "sharegpt-speech" else 4  # replies are long there
    settings = {"turn_detection": turns, "load": {"closed": {"concurrency": 3, "sessions": sessions}}}
    if workload == "best-effort":
        settings["load"] = {"open": {"arrivals": {"poisson": {"rate_per_s": 0.5}}, "duration_s": 20.0}}
    made = Simulation(setup(workload, settings=settings))
    outcome = made.play(started())
    events = outcome.events
    begun = [event.response for event in kinds(events, ResponseStarted)]
    ended = Counter(event.response for event in kinds(events, ResponseEnded))
    assert len(begun) == len(set(begun)) > 0
    assert set(ended.values()) == {1}
    assert set(ended) <= set(begun)
    last_s = {event.session: event.t_s for event in kinds(events, SessionEnded)}
    assert set(last_s) == {event.session for event in kinds(events, SessionStarted)}
    assert all(event.t_s <= last_s[event.session] for event in kinds(events, TextDelta))
    assert outcome.reason == ("duration" if workload == "best-effort" else "finished")
    made.agenda.run(made.agenda.now + 60.0, lambda: False)
    node = made.driver.node
    node.check_integrity()
    assert node.stats()["antiphon_responses_open"] == 0
    if outcome.reason == "finished":
        assert node.stats()["antiphon_sessions"] == 0


@pytest.mark.parametrize("settings", [{}, VAD])
def test_nobody_hears_what_they_have_barged_into(settings: dict) -> None:
    """What was under way may still come; after that the reply is silent. `heard_s` is what had played."""
    delay_s = 0.05
    events = outcome(settings=settings, network=Network(delay_s), seed=1).events
    barged = {e.response: e for e in kinds(events, Interrupted) if e.kind == "barge_in"}
    received: dict[str, float] = defaultdict(float)
    late = 0
    for event in events:
        if isinstance(event, AudioDelta):
            cut = barged.get(event.response)
            if cut is not None and event.t_s > cut.t_s:
                late += 1
                assert event.t_s <= cut.t_s + 2 * delay_s + 1e-9
            else:
                received[event.response] += event.audio_s
    assert barged
    assert all(cut.heard_s <= received[response] + 1e-9 for response, cut in barged.items())
    rows = {row.response: row for row in fold(events).responses}
    assert all(rows[response].barged_in for response in barged)


def test_a_slow_talker_is_cancelled_when_barged_into() -> None:
    """Replies that are still being made end as cancelled, soon after the person began to speak."""
    slow = LinearCosts(speech_s=0.06)
    events = outcome(settings=VAD, costs=slow, seed=1).events
    ends = {event.response: event for event in kinds(events, ResponseEnded)}
    cancelled = [
        ends[e.response] for e in kinds(events, Interrupted) if e.kind == "barge_in" and e.response in ends
    ]
    assert any(end.status == "cancelled" and end.reason == "turn_detected" for end in cancelled)


def test_people_keep_to_their_scripts() -> None:
    """One after another in a closed loop: thinking, speaking and listening take as long as they say."""
    made = setup("voice-chat", settings={"load": {"closed": {"concurrency": 1, "sessions": 3}}})
    events = simulate(made, started()).events
    scripts = [script for script in draw(made.workload, 0) if isinstance(script, PersonScript)]
    assert [event.session for event in kinds(events, SessionStarted)] == [script.name for script in scripts]
    rows = {(row.session, row.turn): row for row in fold(events).responses}
    for script in scripts:
        began = [e for e in kinds(events, TurnStarted) if e.session == script.name]
        ended = [e for e in kinds(events, TurnEnded) if e.session == script.name]
        assert len(began) == len(ended) == len(script.turns)
        for number, turn in enumerate(script.turns):
            assert ended[number].speech_end_s - began[number].t_s == pytest.approx(turn.speech_s)
            if number:
                before = rows[script.name, number - 1]
                silent_s = max(before.audio_at_s[0] + before.received_s + sum(before.gaps), before.ended_s)
                assert began[number].t_s - silent_s == pytest.approx(turn.think_s)


def bounded(most: int, **others: Any) -> dict[str, Any]:
    return {"load": {"open": {"arrivals": {"uniform": {"rate_per_s": 4}}, "max_concurrency": most, **others}}}


def test_arrivals_beyond_the_bound_wait_for_a_place_in_order() -> None:
    settings = bounded(3, sessions=12) | {"people.talker.turns": 1}
    events = outcome("voice-chat", settings=settings).events
    begun = kinds(events, SessionStarted)
    assert [event.session for event in begun] == [f"talker-{number}" for number in range(12)]
    queued_s = {event.session: event.t_s for event in kinds(events, SessionQueued)}
    assert set(queued_s) == {event.session for event in begun[3:]}
    ends_s = sorted(event.t_s for event in kinds(events, SessionEnded))
    for number, event in enumerate(begun):
        assert event.arrival_s == pytest.approx(number / 4)
        assert event.waited_s == pytest.approx(event.t_s - event.arrival_s)
        if number >= 3:
            assert event.t_s == ends_s[number - 3] > queued_s[event.session]
    found = figures(fold(events))
    assert found["place_wait_s.mean"] == pytest.approx(sum(event.waited_s for event in begun) / 12)
    assert found["unplaced_sessions"] == 0


def test_the_wait_for_a_place_counts_in_no_latency() -> None:
    free, bound = (
        figures(fold(outcome("voice-chat", settings=bounded(most, sessions=6) | FEW_TURNS).events))
        for most in (6, 1)
    )
    assert bound["place_wait_s.p99"] > 10 > free["place_wait_s.p99"] == 0.0
    assert bound["ttfp_s.p90"] < 1.2 * free["ttfp_s.p90"]


def test_a_place_is_free_again_when_who_had_it_gives_up() -> None:
    stuck = LinearCosts(launch_s=100.0)
    settings = bounded(1, sessions=3)
    events = outcome("voice-chat", settings=settings, costs=stuck, patience_s=2.0).events
    assert [event.reason for event in kinds(events, SessionEnded)] == ["failed"] * 3
    begun, ended = kinds(events, SessionStarted), kinds(events, SessionEnded)
    assert [event.t_s for event in begun[1:]] == [event.t_s for event in ended[:-1]]


def test_a_place_may_be_free_once_its_reply_has_come() -> None:
    closed = {"concurrency": 2, "sessions": 6, "until": "received"}
    settings = {"load": {"closed": closed}, "people.talker.turns": 2}
    events = outcome("voice-chat", settings=settings).events
    begun, ended = kinds(events, SessionStarted), kinds(events, SessionEnded)
    assert [event.reason for event in ended] == ["done"] * 6
    replies: dict[str, list[float]] = defaultdict(list)
    for event in kinds(events, ResponseEnded):
        replies[event.session].append(event.t_s)
    assert all(len(times) == 2 for times in replies.values())
    received_s = sorted(times[-1] for times in replies.values())
    assert [event.t_s for event in begun[2:]] == received_s[:4]
    assert received_s[0] < min(event.t_s for event in ended)


def test_a_place_among_arrivals_may_be_free_once_its_reply_has_come() -> None:
    settings = bounded(2, sessions=6, until="received") | {"people.talker.turns": 1}
    events = outcome("voice-chat", settings=settings).events
    begun, received = kinds(events, SessionStarted), kinds(events, ResponseEnded)
    assert [event.reason for event in kinds(events, SessionEnded)] == ["done"] * 6
    assert [event.t_s for event in begun[2:]] == [event.t_s for event in received[:4]]
    assert received[0].t_s < min(event.t_s for event in kinds(events, SessionEnded))


def test_a_place_that_is_free_early_is_given_away_once() -> None:
    """Also where the person gives up, or barges in when the reply has come."""
    closed = {"concurrency": 2, "sessions": 8, "until": "received"}
    settings = {"load": {"closed": closed}, "people.talker.barge_in.probability": 1.0} | FEW_TURNS
    for patience_s in (0.05, 60.0):
        events = outcome("voice-chat", settings=settings, patience_s=patience_s).events
        assert len(kinds(events, SessionStarted)) == len(kinds(events, SessionEnded)) == 8


def test_who_still_waits_at_the_end_is_counted() -> None:
    outcome_ = outcome("voice-chat", settings=bounded(2, duration_s=5.0))
    assert outcome_.reason == "duration"
    found = figures(fold(outcome_.events))
    assert found["unplaced_sessions"] == 20 - found["sessions"] > 0


def test_backchannels_stop_nobody_who_commits_by_hand() -> None:
    events = outcome(settings={"people": {"talker": {"turns": 4, "backchannels": {"per_reply": 3}}}}).events
    murmured = {e.response for e in kinds(events, Interrupted) if e.kind == "backchannel"}
    assert murmured
    assert all(e.status == "completed" for e in kinds(events, ResponseEnded) if e.response in murmured)


def test_playback_is_reported_as_it_is_heard() -> None:
    events = outcome("voice-chat").events
    acks = kinds(events, AckSent)
    rows = {row.response: row for row in fold(events).responses}
    assert acks
    assert all(0 < ack.played_s <= rows[ack.response].received_s + 1e-9 for ack in acks)


def test_jobs_wait_for_each_other() -> None:
    made = setup("agents", settings={"load": {"closed": {"concurrency": 3, "sessions": 6}}})
    events = simulate(made, started()).events
    ends = {event.response: event.t_s for event in kinds(events, ResponseEnded)}
    answered = {(event.session, event.turn): ends[event.response] for event in kinds(events, ResponseStarted)}
    asked = {(event.session, event.turn): event.t_s for event in kinds(events, TurnStarted)}
    jobs = [script for script in islice(draw(made.workload, 0), 6) if isinstance(script, JobScript)]
    assert jobs
    for job in jobs:
        for number, call in enumerate(job.calls):
            for before in call.after:
                due_s = answered[job.name, before] + call.wait_s
                assert asked[job.name, number] >= due_s - 1e-9


def test_who_hears_nothing_gives_up() -> None:
    stuck = LinearCosts(launch_s=100.0)
    events = outcome(costs=stuck, patience_s=2.0).events
    gone = kinds(events, SessionEnded)
    assert {event.reason for event in gone} >= {"failed"}
    assert all("no sign of the reply for 2 s" in event.message for event in gone if event.reason == "failed")


@pytest.mark.parametrize("asked", [90, 100, 150])
def test_a_reply_is_as_long_as_its_client_says_though_the_server_would_say_the_same(asked: int) -> None:
    """Of a server whose own limit is 100 tokens, which bounds more."""
    engine = released(sizes=SMALL)
    thinker = engine.node.ar["thinker"]
    limited = msgspec.structs.replace(thinker.sampling, max_tokens=100)
    ar = engine.node.ar | {"thinker": msgspec.structs.replace(thinker, sampling=limited)}
    served = msgspec.structs.replace(engine.served, node=msgspec.structs.replace(engine.node, ar=ar))
    settings = {"people.talker.max_output_tokens": asked, "people.talker.barge_in.probability": 0}
    run = outcome("barge-in", settings=settings, engine=replace(engine, served=served))
    ended = [event for event in kinds(run.events, ResponseEnded) if event.status != "cancelled"]
    assert len(ended) > 3
    assert {event.output_text_tokens for event in ended} <= {min(asked, 100) - 1, min(asked, 100)}


def test_jobs_come_beside_people_all_of_whose_replies_are_limited() -> None:
    """A job says of each call how long its reply may be."""
    call = {"words": 20, "max_output_tokens": 10}
    settings = {"people.talker.max_output_tokens": 50, "jobs.job": {"share": 1.0, "call": call}}
    run = outcome("barge-in", settings=settings, engine=released(sizes=SMALL))
    lengths = {event.output_text_tokens for event in kinds(run.events, ResponseEnded)}
    assert {9, 10} & lengths


def test_dearer_steps_make_slower_replies() -> None:
    quick, slow = (
        figures(fold(outcome("voice-chat", costs=LinearCosts(launch_s=launch_s)).events))
        for launch_s in (0.002, 0.02)
    )
    assert quick["ttfp_s.p50"] < slow["ttfp_s.p50"]
    assert quick['utilisation{stage="talker"}'] < slow['utilisation{stage="talker"}'] <= 1.0


def test_decisions_take_their_time() -> None:
    free, dear = (
        figures(fold(outcome("voice-chat", costs=LinearCosts(decide_s=decide_s)).events))
        for decide_s in (0.0, 0.01)
    )
    assert dear["ttfp_s.p50"] > free["ttfp_s.p50"] + 0.02


@examples(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 4),
    launch_s=st.floats(0.001, 0.05),
    vad=st.booleans(),
    depth=st.integers(0, 1),
)
def test_all_figures_come_from_any_log(seed: int, rows: int, launch_s: float, vad: bool, depth: int) -> None:
    """Whatever the machine, a run folds, and nobody hears more than came."""
    settings = BRIEF | (VAD if vad else {})
    made = setup(seed=seed, settings=settings, costs=LinearCosts(launch_s=launch_s))
    made = replace(made, engine=released(sizes=replace(SMALL, max_rows=rows, depth=depth)))
    run = fold(simulate(made, started()).events)
    found = figures(run)
    assert found["sessions"] >= 1
    for row in run.responses:
        assert -1e-9 <= row.heard_s <= row.received_s + 1e-9
        assert row.status in (None, "completed", "cancelled", "incomplete")


def test_implements_the_port() -> None:
    prompter: Prompter = SimPrompter(find_graph("qwen3_omni_moe"))
    assert prompter is not None


@pytest.mark.parametrize("preset", ["baseline", "fcfs", "liveserve", "tokenflow"])
def test_more_who_speak_than_there_are_rows_are_all_answered(preset: str) -> None:
    """What has begun to be said keeps its row in the vocoder, whoever has its row in the talker."""
    sizes = replace(SMALL, max_rows=2, host_kv_tokens=1 << 16)
    load = {"load": {"closed": {"concurrency": 8, "sessions": 8}}}
    made = outcome(settings=load | FEW_TURNS, engine=released(preset, sizes), patience_s=600.0)
    found = figures(fold(made.events), Slo())
    assert found["completed_turns"] == found["turns"] >= 10
    assert found["span_s"] < 300
    assert not made.incidents
