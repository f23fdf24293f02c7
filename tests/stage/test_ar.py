"""One decoder stage alone: limits, chunks, what is kept of the KV, and what steps in flight protect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from antiphon.core.config import ArConfig
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import NO_INTS, Span, StagePrompt, StepDone
from antiphon.core.graph import KvGroup, Stage, StageKind, Survives
from antiphon.core.plans import ArStep, ints
from antiphon.core.sampling import Sampling
from antiphon.policy.base import Budget, StepChoice, StepView
from antiphon.policy.lru import Lru
from antiphon.policy.memory import KvPolicies
from antiphon.policy.on_demand import OnDemand
from antiphon.policy.prefill_first import PrefillFirst
from antiphon.policy.unlimited import Unlimited
from antiphon.policy.unpaced import Unpaced
from antiphon.policy.write_back import WriteBack
from antiphon.stage.ar import ArRequest, ArScheduler, RequestProgress
from antiphon.stage.candidates import Surroundings
from antiphon.stage.kv_ledger import MAX_REQUESTS_HASHED_PER_STEP
from antiphon.stage.policies import StagePolicies
from fakes.readings import num_shared

STOP = 1
KV = KvPolicies(Lru(), WriteBack(), OnDemand())
BASELINE = StagePolicies(PrefillFirst(), Unpaced(), Unlimited(), KV)


def scheduler(
    survives: Survives = Survives.ALL,
    conditioned: bool = False,
    around: Surroundings | None = None,
    **sizes: Any,
) -> ArScheduler:
    stage = Stage("s", StageKind.AR, (KvGroup("kv"),), survives, conditioned)
    sizes = {"max_rows": 2, "block_size": 2, "num_blocks": 8, "step_tokens": 4, **sizes}
    return ArScheduler(stage, ArConfig(**sizes, stop_ids=(STOP,)), BASELINE, around=around)


def prompt(length: int, num_stable: int = 0, first: int = 100) -> StagePrompt:
    ids = np.arange(first, first + length)
    return StagePrompt(ids, ids, (), num_stable, NO_INTS)


def request(number: int, length: int, max_tokens: int = 3, **more: int) -> ArRequest:
    return ArRequest(number, f"session-{number}", prompt(length, **more), Sampling(max_tokens=max_tokens))


def planned(stage: ArScheduler, step: int) -> ArStep:
    order = stage.plan(step, 0.0) or stage.join_early(step, 0.0)
    assert order is not None
    stage.check_integrity()
    return order


def done(stage: ArScheduler, order: ArStep, *tokens: int) -> list[RequestProgress]:
    requests = stage._flights[order.step].requests[order.emits == 1]
    drawn = np.array(tokens, np.int64).reshape(-1, 1)
    progress = stage.observe(StepDone("s", order.step, requests, drawn, NO_INTS, NO_INTS))
    stage.check_integrity()
    return progress


def test_a_prompt_longer_than_a_step_runs_in_chunks_beside_nobody() -> None:
    stage = scheduler()
    stage.submit(request(1, 6))
    assert stage.num_waiting == 1
    first, second = planned(stage, 0), planned(stage, 1)
    assert (first.starts.tolist(), first.counts.tolist(), first.emits.tolist()) == ([0], [4], [0])
    assert (second.starts.tolist(), second.counts.tolist(), second.emits.tolist()) == ([4], [2], [1])
    assert done(stage, first) == []
    (progress,) = done(stage, second, 7)
    assert progress.end is None
    assert stage.num_running == 1


def test_the_last_token_of_the_limit_ends_it() -> None:
    stage = scheduler()
    stage.submit(request(1, 2, max_tokens=2))
    ends = [done(stage, planned(stage, step), 7)[0].end for step in range(2)]
    assert ends == [None, "length"]
    assert not stage.has_work


def test_what_a_step_in_flight_draws_after_the_stop_is_dropped_and_counted() -> None:
    stage = scheduler()
    stage.submit(request(1, 2))
    first, second = planned(stage, 0), planned(stage, 1)
    (progress,) = done(stage, first, STOP)
    assert (progress.tokens, progress.end) == (None, "stop")
    assert done(stage, second, 9) == []
    assert stage.num_surplus_tokens == 1


def test_blocks_and_rows_of_an_aborted_request_wait_for_the_step_in_flight() -> None:
    stage = scheduler(Survives.NONE, max_rows=1)
    stage.submit(request(1, 4))
    order = planned(stage, 0)
    stage.abort(1)
    assert stage.abort(1) is None
    assert stage.kv.blocks.num_pending_free == 2
    stage.submit(request(2, 2))
    assert stage.plan(1, 0.0) is None, "there is no row"
    done(stage, order, 7)
    following = planned(stage, 1)
    assert following.leaves.tolist() == [0]
    assert [join.request for join in following.joins] == [2]


def test_parked_blocks_beyond_what_is_kept_wait_as_well() -> None:
    stage = scheduler()
    stage.submit(request(1, 4))
    order = planned(stage, 0)
    stage.abort(1)
    assert (stage.kv.blocks.num_idle, stage.kv.blocks.num_pending_free) == (0, 2), (
        "no reported step has filled anything"
    )
    done(stage, order, 7)
    assert stage.kv.blocks.num_free == 8


@pytest.mark.parametrize(("survives", "kept"), [(Survives.ALL, 3), (Survives.PROMPT, 2), (Survives.NONE, 0)])
def test_what_survives(survives: Survives, kept: int) -> None:
    """Four positions of prompt of which three are stable, and one token of reply that was fed back."""
    stage = scheduler(survives)
    stage.submit(request(1, 4, num_stable=3))
    done(stage, planned(stage, 0), 7)
    done(stage, planned(stage, 1), STOP)
    assert stage.kv.blocks.num_idle == kept
    stage.forget("session-1")
    assert stage.kv.blocks.num_free == 8


def test_cache_that_a_prompt_begins_with_is_no_room_for_the_rest_of_it() -> None:
    stage = scheduler(step_tokens=20)
    for number, first in ((1, 100), (2, 500)):
        stage.submit(request(number, 8, first=first))
        done(stage, planned(stage, number), STOP)
    stage.forget("session-1", as_cache=True)
    assert (stage.kv.blocks.num_free, stage.kv.blocks.num_cache, stage.kv.blocks.num_idle) == (4, 4, 4)
    following = request(3, 9)
    assert not stage.has_spare(following), "all that is free is what it begins with"
    assert following.found == 8
    stage.forget("session-2")
    assert stage.has_spare(following)
    stage.submit(following)
    assert [join.cached for join in planned(stage, 3).joins] == [8]


def test_a_reply_is_cut_where_the_kv_ends_and_a_prompt_that_leaves_no_room_is_refused() -> None:
    stage = scheduler(step_tokens=99)
    stage.check(prompt(15))
    with pytest.raises(LimitExceeded, match="s context tokens: 17 is over the limit of 16"):
        stage.check(prompt(16))
    stage.submit(request(1, 14, max_tokens=1000))
    ends = [done(stage, planned(stage, step), 7)[0].end for step in range(2)]
    assert ends == [None, "length"]


def test_the_first_in_the_queue_is_not_passed_by_a_smaller_one() -> None:
    stage = scheduler(step_tokens=99)
    stage.submit(request(1, 9, max_tokens=3))
    stage.submit(request(2, 9, max_tokens=3))
    stage.submit(request(3, 1, max_tokens=1))
    order = planned(stage, 0)
    assert [join.request for join in order.joins] == [1]
    assert stage.num_waiting == 2
    done(stage, order, STOP)
    assert [join.request for join in planned(stage, 1).joins] == [2, 3]


def test_text_for_a_row_that_left_is_forgotten() -> None:
    stage = scheduler(Survives.NONE, conditioned=True, max_rows=1)
    stage.submit(request(1, 2))
    done(stage, planned(stage, 0), 7)
    stage.push(1, 50)
    stage.abort(1)
    stage.push(1, 51)
    stage.close(1)
    stage.submit(request(2, 2))
    stage.push(2, 60)
    order = planned(stage, 1)
    assert order.inputs_tokens.tolist() == [60]
    assert order.rows.tolist() == order.inputs_rows.tolist() == ints([0]).tolist()


def test_a_conditioned_row_runs_on_padding_once_its_text_is_over() -> None:
    stage = scheduler(Survives.NONE, conditioned=True)
    stage.submit(request(1, 2, max_tokens=9))
    done(stage, planned(stage, 0), 7)
    assert stage.plan(1, 0.0) is None
    stage.push(1, 50)
    assert planned(stage, 1).inputs_tokens.tolist() == [50]
    assert stage.plan(2, 0.0) is None
    stage.close(1)
    assert not len(planned(stage, 2).inputs_tokens)


def test_what_all_rows_filled_at_once_is_named_a_few_a_step_and_all_of_it_once_somebody_asks() -> None:
    rows = 2 * MAX_REQUESTS_HASHED_PER_STEP
    stage = scheduler(Survives.ALL, max_rows=rows + 1, num_blocks=4 * rows, step_tokens=2 * rows)
    for number in range(rows):
        stage.submit(request(number, 2, max_tokens=9, first=100 * number))
    order = planned(stage, 0)
    assert [delta.blocks.tolist() for delta in order.blocks] == [list(range(rows))]
    done(stage, order, *[7] * rows)
    order = planned(stage, 1)
    assert [delta.blocks.tolist() for delta in order.blocks] == [list(range(rows, 2 * rows))]
    assert order.blocks[0].index.tolist() == [1] * rows
    named = [len(active.sequence.chain) for active in stage._requests.values() if active.sequence]
    assert named == [1] * MAX_REQUESTS_HASHED_PER_STEP + [0] * (rows - MAX_REQUESTS_HASHED_PER_STEP)
    last = rows - 1
    newcomer = ArRequest(rows, "another", prompt(4, first=100 * last), Sampling(max_tokens=1))
    stage.submit(newcomer)
    joins = planned(stage, 2).joins
    assert [(join.request, join.cached) for join in joins] == [(rows, 2)], (
        "the block of the last row is shared"
    )
    assert num_shared(stage.kv.blocks) == 1


def test_a_request_that_is_not_ready_holds_up_nobody() -> None:
    stage = scheduler()
    early, late = request(1, 2), request(2, 2, first=200)
    early.waits_for_payload = True
    stage.submit(early)
    stage.submit(late)
    assert [join.request for join in planned(stage, 0).joins] == [2]
    stage.arrived(1)
    assert [join.request for join in planned(stage, 1).joins] == [1]


def test_a_request_that_does_not_fit_is_not_overtaken() -> None:
    stage = scheduler(max_rows=3)
    for number, length in ((1, 10), (2, 8), (3, 2)):
        stage.submit(request(number, length, first=100 * number))
    assert [join.request for join in planned(stage, 0).joins] == [1]
    assert stage.num_waiting == 2


def test_media_are_asked_for_when_the_stage_has_its_turn_and_not_when_somebody_looks() -> None:
    stage = scheduler(max_rows=1)
    sees = request(1, 4)
    sees.prompt = msgspec.structs.replace(sees.prompt, spans=(Span(7, "audio", 0, 2),))
    sees.media = frozenset()
    stage.submit(sees)
    view, _ = stage.choose(0.0)
    assert not view.could_run.any()
    assert not stage.waiting.is_lacking
    assert stage.plan(0, 0.0) is None
    assert stage.waiting.lacking() == {1: frozenset({7})}
    stage.tell_time(1.0)
    sees.sought = frozenset()
    stage.choose(1.0)
    stage.abort(1)
    stage.tell_time(2.0)
    stage.submit(request(2, 2))
    assert [join.request for join in planned(stage, 1).joins] == [2]
    assert not stage.waiting.is_lacking, "it is over"


def test_media_that_a_waiting_request_lacks_are_told_of_once() -> None:
    stage = scheduler(max_rows=1)
    sees = request(1, 4)
    sees.prompt = msgspec.structs.replace(sees.prompt, spans=(Span(7, "audio", 0, 2),))
    sees.media = frozenset()
    stage.submit(sees)
    assert stage.plan(0, 0.0) is None
    assert stage.waiting.is_lacking
    assert stage.waiting.lacking() == {1: frozenset({7})}
    assert stage.plan(1, 0.0) is None
    assert not stage.waiting.is_lacking
    sees.media = frozenset({7})
    assert [join.request for join in planned(stage, 2).joins] == [1]


def test_a_request_that_lacks_media_holds_up_nobody_behind_the_first() -> None:
    stage = scheduler(max_rows=3, step_tokens=12)
    first, sees, last = (request(number, 2, first=100 * number) for number in (1, 2, 3))
    sees.prompt = msgspec.structs.replace(sees.prompt, spans=(Span(7, "audio", 0, 2),))
    sees.media = frozenset()
    for one in (first, sees, last):
        stage.submit(one)
    assert [join.request for join in planned(stage, 0).joins] == [1, 3]
    assert stage.waiting.lacking() == {2: frozenset({7})}


@dataclass
class InTurn:
    """A step policy that chooses requests in the order of `numbers`; what is named first may end the step."""

    numbers: tuple[int, ...]
    stops: bool
    name: str = "in-turn"

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        found: list[int] = view.request.tolist()
        order = ints([found.index(number) for number in self.numbers if number in found])
        return StepChoice(order, "in turn", stops=self.stops, wake_at=now + 1.0)


def after_two(stops: bool, *numbers: int, **sizes: int) -> ArScheduler:
    """Request 1 holds a block that is full, request 2 two blocks with room in the last."""
    stage = scheduler(**{"max_rows": 3, "step_tokens": 12, "headroom_blocks": 0, **sizes})
    for number, length in ((1, 2), (2, 3)):
        stage.submit(request(number, length, first=100 * number))
    done(stage, planned(stage, 0), 7, 7)
    stage._policies = replace(stage._policies, step=InTurn(numbers, stops))
    stage.reopen()
    return stage


def ran(stage: ArScheduler) -> list[int]:
    """Requests of the next step."""
    order = stage.plan(1, 0.0)
    return [] if order is None else stage.rows.request[order.rows].tolist()


@pytest.mark.parametrize(("stops", "runs"), [(False, [2]), (True, [])])
def test_a_step_may_end_at_the_first_row_that_gets_no_block(stops: bool, runs: list[int]) -> None:
    """As in LiveServe's Algorithm 1: what is less urgent does not run past it."""
    assert ran(after_two(stops, 1, 2, num_blocks=3)) == runs


@pytest.mark.parametrize(("stops", "runs"), [(False, [1, 2]), (True, [])])
@pytest.mark.parametrize("sizes", [{"max_rows": 2}, {"num_blocks": 6}])
def test_a_step_may_end_at_the_first_request_without_a_row(
    stops: bool, runs: list[int], sizes: dict[str, int]
) -> None:
    stage = after_two(stops, 3, 1, 2, **sizes)
    stage.submit(request(3, 8, first=300))
    assert ran(stage) == runs


def test_a_request_may_go_on_behind_what_ends_others() -> None:
    stage = scheduler()
    goes_on = Sampling(max_tokens=3, ignore_eos=True)
    stage.submit(ArRequest(1, "s", prompt(2), goes_on))
    told = [done(stage, planned(stage, step), STOP)[0] for step in range(3)]
    assert [(one.first, one.end) for one in told] == [(STOP, None), (STOP, None), (STOP, "length")]
