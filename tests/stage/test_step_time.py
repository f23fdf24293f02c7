"""A step with prompts is bounded by time while others live beside it, on one stage or on one device."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.config import ArConfig, ClassBounds, CodecConfig, EngineOptions
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, Ints, Mask, StagePrompt, StepDone
from antiphon.core.graph import Edge, KvGroup, Stage, StageKind, Survives
from antiphon.core.plans import ArStep, ints
from antiphon.core.sampling import Sampling
from antiphon.interaction.frontier import Frontier
from antiphon.latency.cutting import LEAST_SHARE, LEAST_TOKENS, within
from antiphon.latency.features import ArFeatures, row_features
from antiphon.policy.base import Budget, StepChoice, StepPolicy, Tier
from antiphon.policy.fcfs import Fcfs
from antiphon.policy.lru import Lru
from antiphon.policy.memory import KvPolicies
from antiphon.policy.on_demand import OnDemand
from antiphon.policy.prefill_first import PrefillFirst
from antiphon.policy.unlimited import Unlimited
from antiphon.policy.unpaced import Unpaced
from antiphon.policy.write_back import WriteBack
from antiphon.stage.ar import ArRequest, ArScheduler
from antiphon.stage.beside import LEAD_SHARE, LEAST_S, USUAL_S, Beside, WaitBounds, patience
from antiphon.stage.candidates import Surroundings
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.policies import StagePolicies

KV = KvPolicies(Lru(), WriteBack(), OnDemand())
NOBODY = WaitBounds()
PERSON, JOB = int(Tier.LATENCY), int(Tier.BEST_EFFORT)


class Linear:
    """A millisecond a token, and of one whose scores are computed more, if it says so."""

    def __init__(self, token_s: float = 0.001, scores_s: float = 0.0, prompt_s: float = 0.0) -> None:
        """prompt_s: of a step that reads a prompt, beside all that."""
        self._token_s, self._scores_s, self._prompt_s = token_s, scores_s, prompt_s

    def _of(self, features: ArFeatures) -> float:
        prompt_s = self._prompt_s if features.prefill_rows else 0.0
        return self._token_s * features.num_tokens + self._scores_s * features.emits + prompt_s

    def seconds(self, counts: Ints, contexts: Ints) -> float:
        return self._of(row_features(counts, contexts))

    def within(self, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None) -> Ints | None:
        return within(self._of, budget, counts, contexts, told)


class Stages:
    """Decoders of one device."""

    def __init__(self, policy: StepPolicy | None = None, cost: Any = None, **bounds: ClassBounds) -> None:
        self.policies = StagePolicies(policy or Fcfs(), Unpaced(), Unlimited(), KV)
        self.frontier, self.beside = Frontier(2, 0.08), Beside()
        self._bounds, self._cost = bounds, cost or Linear()

    def around(self, place: int = 0) -> Surroundings:
        return Surroundings(self.frontier, place, self._bounds, self._cost, beside=self.beside)

    def add(self, name: str = "s", place: int = 0, **sizes: Any) -> ArScheduler:
        stage = Stage(name, StageKind.AR, (KvGroup("kv"),), Survives.NONE)
        sizes = {"max_rows": 8, "block_size": 16, "num_blocks": 4096, "step_tokens": 1024, **sizes}
        return ArScheduler(stage, ArConfig(**sizes), self.policies, name, None, self.around(place))


def request(number: int, length: int, max_tokens: int = 99, **more: Any) -> ArRequest:
    ids = np.arange(length) + 1000 * number
    prompt = StagePrompt(ids, ids, (), 0, NO_INTS)
    sampling = more.pop("sampling", Sampling(max_tokens=max_tokens))
    return ArRequest(number, f"session-{number}", prompt, sampling, **more)


def stepped(stage: ArScheduler, number: int, now: float = 0.0) -> ArStep:
    step = stage.plan(number, now)
    assert step is not None
    requests = stage._flights[number].requests[step.emits == 1]
    stage.observe(StepDone(stage.stage, number, requests, np.full((len(requests), 1), 7), NO_INTS, NO_INTS))
    stage.check_integrity()
    return step


def talking(stages: Stages, stage: ArScheduler, **more: Any) -> None:
    """One reply is drawn there."""
    stage.submit(request(1, 4, **more))
    assert stepped(stage, 0).emits.tolist() == [1]


@pytest.mark.parametrize("policy", [Fcfs(), PrefillFirst()])
def test_a_prompt_is_cut_while_a_reply_is_drawn_beside_it(policy: StepPolicy) -> None:
    stages = Stages(policy)
    stage = stages.add()
    talking(stages, stage)
    stage.submit(request(2, 1500))
    counts = [sorted(stepped(stage, number).counts.tolist()) for number in range(1, 9)]
    assert all(one == 1 and 180 < prompt < 200 for one, prompt in counts[:7]), "200 ms, a millisecond a token"
    assert sum(prompt for _, prompt in counts) <= 1500
    assert (stage.steps.num_cut, stage.steps.num_untimed) == (7, 0)


@pytest.mark.parametrize(("prompt_logprobs", "most"), [(True, 50), (False, 196)])
def test_what_is_told_of_a_prompt_takes_its_time_as_well(prompt_logprobs: bool, most: int) -> None:
    stages = Stages(cost=Linear(scores_s=0.003))
    stage = stages.add()
    talking(stages, stage)
    sampling = Sampling(max_tokens=9, logprobs=1, prompt_logprobs=prompt_logprobs)
    stage.submit(request(2, 1500, sampling=sampling))
    step = stepped(stage, 1)
    assert most * 16 / 17 - 1 < max(step.counts) <= most, "200 ms, four milliseconds a token that is told"


def test_it_is_not_cut_where_nobody_lives_beside_it() -> None:
    stage = Stages().add()
    stage.submit(request(1, 1500))
    stage.submit(request(2, 1500))
    assert stepped(stage, 0).counts.tolist() == [1024]
    assert stage.steps.num_cut == 0


@pytest.mark.parametrize(("step_s", "count"), [(0.0, 1000), (0.05, 49), (None, 199)])
def test_an_operator_says_how_long_a_step_may_take(step_s: float | None, count: int) -> None:
    stages = Stages()
    stage = stages.add(step_s=step_s)
    talking(stages, stage)
    stage.submit(request(2, 1000))
    step = stepped(stage, 1)
    assert count * 16 / 17 - 1 < step.counts[-1] <= count
    assert stage.steps.num_cut == (count < 1000)


def test_where_times_are_not_known_tokens_bound_the_step_and_it_is_counted() -> None:
    stages = Stages(cost=Linear(nan))
    stage = stages.add()
    talking(stages, stage)
    stage.submit(request(2, 3000))
    assert stepped(stage, 1).counts.tolist() == [1, 1023]
    assert (stage.steps.num_cut, stage.steps.num_untimed) == (0, 1)


def test_those_who_live_on_the_same_device_bound_it_too() -> None:
    stages = Stages(latency=ClassBounds(tpot_s=0.08))
    writer, talker = stages.add("writer"), stages.add("talker", place=1)
    talking(stages, talker)
    writer.submit(request(2, 1000))
    assert 70 < stepped(writer, 0).counts[0] <= 80
    talker.abort(1)
    assert stepped(writer, 1).counts[0] > 900, "nobody lives there any more"


def test_listeners_of_a_codec_bound_it_too() -> None:
    stages = Stages()
    writer = stages.add()
    edge = Edge("s", "code2wav", first_chunk=1, chunk=4)
    codec = CodecScheduler("code2wav", CodecConfig(), edge, stages.policies, around=stages.around(1))
    slot = stages.frontier.take(0.0, is_spoken=True)
    codec.open(9, None, slot)
    stages.frontier.begin(slot)
    stages.frontier.play(slot, dry_at=1.0)
    writer.submit(request(2, 1000))
    assert 230 < stepped(writer, 0).counts[0] <= 250, "a quarter of the lead"
    assert 45 < stepped(writer, 1, now=0.99).counts[0] <= 50, "a lead that is spent"


def begun(stages: Stages) -> int:
    """Where a reply is of which a person has the first, and nobody knows how far ahead it is."""
    slot = stages.frontier.take(0.0, is_spoken=True)
    stages.frontier.begin(slot)
    return slot


def listened_to(stages: Stages, dry_at: float) -> None:
    """Somebody hears a reply until then, unless more of it comes."""
    slot = stages.frontier.take(0.0, is_spoken=True)
    edge = Edge("s", "code2wav", first_chunk=1, chunk=4)
    codec = CodecScheduler("code2wav", CodecConfig(), edge, stages.policies, around=stages.around(1))
    codec.open(9, None, slot)
    stages.frontier.begin(slot)
    stages.frontier.play(slot, dry_at=dry_at)


def test_without_a_lead_prompts_get_a_fifth_of_the_time_in_pieces_worth_their_fixed_cost() -> None:
    cost = Linear(0.004, prompt_s=0.04)
    stages = Stages(cost=cost)
    stage = stages.add()
    talking(stages, stage, max_tokens=2000, slot=begun(stages))
    listened_to(stages, dry_at=1.0)
    stage.submit(request(2, 250))
    now, number, read, pieces_s, began = 1.0, 0, 0, list[float](), list[float]()
    while read < 250:
        step = stepped(stage, number := number + 1, now)
        took_s = cost.seconds(step.counts, step.starts)
        if step.counts.max() > 1:
            read += int(step.counts.max())
            began.append(now)
            pieces_s.append(took_s - 0.004)
        now += took_s
    assert len(began) == 6, "four times 52 ms each, of which 40 are not for tokens"
    assert max(pieces_s) <= 4 * 0.052 + 1e-9
    assert all(1.0 < gap_s < 1.06 for gap_s in np.diff(began)), "five times 208 ms, the last of them shorter"


def test_with_a_lead_to_spare_prompts_get_a_piece_of_every_step() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    talking(stages, stage)
    listened_to(stages, dry_at=9.0)
    stage.submit(request(2, 900))
    counts = [stepped(stage, number, 0.1 * number).counts.max() for number in range(1, 6)]
    assert all(145 < count < 160 for count in counts), "200 ms, 41 of them not for the prompt's tokens"


def test_a_stage_with_nothing_else_leaves_its_prompts_out_until_it_may_read_them() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    listened_to(stages, dry_at=1.0)
    stage.submit(request(2, 1500))
    assert 120 < stepped(stage, 0, 1.0).counts[0] <= 132
    assert not stage.steps.left_out
    stage.submit(request(3, 1500))
    assert stage.plan(1, 1.3) is None
    assert stage.num_waiting == 1, "nobody joins for nothing"
    assert stage.steps.left_out
    stage.be_alone(True)
    assert 120 < stepped(stage, 1, 1.3).counts[0] <= 132
    stage.be_alone(False)
    assert stage.plan(2, 2.1) is None
    assert 120 < stepped(stage, 2, 2.2).counts[0] <= 132


def test_a_unit_is_owed_its_time_whatever_short_prompts_another_reads() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    writer, talker = stages.add("writer"), stages.add("talker", place=1)
    listened_to(stages, dry_at=1.0)
    writer.submit(request(1, 1500))
    assert stepped(writer, 0, 1.0).counts[0] > 120
    for number, now in enumerate((1.3, 1.6, 1.9, 2.2), 1):
        talker.submit(request(10 + number, 5, 1))
        assert stepped(talker, number, now).counts.tolist() == [5]
    assert stepped(writer, 9, 2.2).counts[0] > 120


def test_where_the_first_of_a_reply_is_waited_for_each_step_counts() -> None:
    """A piece worth its fixed cost takes long on a slow machine, and others would hold it up."""
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    talking(stages, stage)
    listened_to(stages, dry_at=1.0)
    stage.submit(request(2, 200))
    counts = [stepped(stage, number, 1.0 + 0.06 * number).counts.max() for number in range(1, 5)]
    assert all(6 <= count <= 20 for count in counts), "50 ms, 41 of them not for tokens"


def test_nobody_joins_a_step_of_others_for_nothing() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    talking(stages, stage, slot=begun(stages))
    listened_to(stages, dry_at=1.0)
    for number, now in ((2, 1.0), (3, 1.1)):
        stage.submit(request(number, 100, 1))
        step = stepped(stage, number, now)
    assert (step.counts.tolist(), step.joins) == ([1], ())
    assert (stage.num_waiting, stage.steps.left_out) == (1, False)


def test_nobody_joins_for_nothing_where_the_others_wait_for_their_kv() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    talking(stages, stage, slot=begun(stages))
    listened_to(stages, dry_at=1.0)
    stage.submit(request(2, 100, 1))
    assert max(stepped(stage, 1, 1.0).counts) == 100
    stage.submit(request(3, 100))
    stage.steps._are_there = lambda rows: np.zeros(len(rows), np.bool_)
    step = stepped(stage, 2, 1.1)
    assert (step.counts.tolist(), step.joins) == ([1], ())


def test_a_prompt_whose_kv_is_on_its_way_lets_no_other_join_for_its_share() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04))
    stage = stages.add()
    listened_to(stages, dry_at=1.0)
    stage.submit(request(1, 150))
    read = int(stepped(stage, 0, 1.0).counts[0])
    stage.submit(request(2, 1500))
    stage.steps._are_there = lambda rows: rows != 0
    step = stepped(stage, 1, 1.4)
    assert (step.rows.tolist(), step.counts.tolist(), step.joins) == ([0], [150 - read], ())


class NewestFirst:
    """Who came last goes first."""

    name = "newest-first"

    def decide(self, view: Any, budget: Any, now: float) -> StepChoice:
        return StepChoice(view.ready.nonzero()[0][::-1], "")


def test_a_prompt_without_room_keeps_no_other_from_its_share() -> None:
    stages = Stages(NewestFirst(), Linear(prompt_s=0.04))
    stage = stages.add(num_blocks=16)
    listened_to(stages, dry_at=1.0)
    stage.submit(request(1, 150))
    assert 120 < stepped(stage, 0, 1.0).counts[0] < 138
    stage.submit(request(2, 250))
    assert stage.plan(1, 1.1) is None
    assert stage.steps.left_out
    assert stepped(stage, 1, 1.4).emits.tolist() == [1], "the rest of a prompt takes less than all of it"


def test_a_prompt_that_is_told_of_is_owed_what_that_takes() -> None:
    stages = Stages(cost=Linear(scores_s=0.01, prompt_s=0.04))
    stage = stages.add()
    listened_to(stages, dry_at=1.0)
    stage.submit(request(1, 100, 1))
    assert stepped(stage, 0, 1.0).counts.tolist() == [100]
    sampling = Sampling(max_tokens=9, logprobs=1, prompt_logprobs=True)
    stage.submit(request(2, 10, sampling=sampling))
    assert stage.plan(1, 1.4) is None
    assert (stage.num_waiting, stage.steps.left_out) == (1, True)
    assert stepped(stage, 1, 1.8).counts.tolist() == [10]


def test_what_is_promised_for_each_token_holds_for_each_step() -> None:
    stages = Stages(cost=Linear(prompt_s=0.04), latency=ClassBounds(tpot_s=0.08))
    stage = stages.add()
    talking(stages, stage)
    stage.submit(request(2, 200))
    counts = [stepped(stage, number).counts.max() for number in range(1, 5)]
    assert all(36 <= count <= 39 for count in counts), "80 ms, 41 of them not for the prompt's tokens"


def test_a_job_without_a_promise_bounds_nothing() -> None:
    for stages, most in ((Stages(), 1000), (Stages(best_effort=ClassBounds(tpot_s=0.1)), 99)):
        stage = stages.add()
        talking(stages, stage, tier=Tier.BEST_EFFORT)
        stage.submit(request(2, 1000))
        assert most * 16 / 17 - 1 < max(stepped(stage, 1).counts) <= most


def test_how_long_a_reply_can_wait() -> None:
    def of(tier: int, tpot_s: float, lead_s: float, begun: bool) -> WaitBounds:
        return patience(ints([tier]), np.array([tpot_s]), np.array([lead_s]), np.array([begun]))

    assert of(PERSON, inf, nan, True) == (inf, USUAL_S, inf)
    assert of(PERSON, inf, 8.0, False) == (USUAL_S, inf, inf), "the first of it is waited for"
    assert of(PERSON, inf, 8.0, True) == (inf, inf, LEAD_SHARE * 8.0)
    assert of(PERSON, inf, 0.0, True) == (inf, inf, LEAST_S)
    assert of(PERSON, 0.03, 8.0, True) == (0.03, inf, inf)
    assert of(PERSON, inf, inf, True) == NOBODY, "nobody listens any more"
    assert of(JOB, inf, nan, True) == NOBODY
    assert of(JOB, 0.5, nan, True) == (0.5, inf, inf)
    assert patience(NO_INTS, np.zeros(0), np.zeros(0), np.zeros(0, np.bool_)) == NOBODY


def test_of_all_on_a_device_the_least_counts() -> None:
    beside, budget = Beside(), Budget(10, 10)
    assert beside.bounded("unit 0", budget, 0.0) == budget, "nobody lives there"
    for number, seconds in enumerate((0.5, 0.2, 0.3)):
        beside.tell(f"unit {number}", lambda now, least_s=seconds: WaitBounds(inf, inf, least_s + now))
    beside.read("unit 0", 3.0)
    assert beside.bounded("unit 0", budget, 4.0) == Budget(10, 10, 4.2, unread_s=1.0)
    assert beside.bounded("unit 2", budget, 4.0).unread_s == inf, "it has read none"
    beside.tell("unknown", lambda now: WaitBounds(inf, 4.1))
    assert beside.bounded("unit 0", budget, 4.0) == Budget(10, 10, 4.1), "who is not known to have a lead"
    beside.tell("unknown", lambda now: WaitBounds())
    beside.tell("promised", lambda now: WaitBounds(5.0))
    assert beside.bounded("unit 0", budget, 4.0) == Budget(10, 10, 4.2), "a promise holds for every step"
    beside.tell("unit 1", lambda now: WaitBounds())
    assert beside.bounded("unit 0", budget, 4.8).seconds == 5.0


def test_a_bound_that_cannot_be_is_refused() -> None:
    for wrong in (-1.0, inf, nan):
        with pytest.raises(ConfigError, match="step_s"):
            EngineOptions(step_s=wrong)


class Whimsical:
    """Runs what is ready in some order, some tokens of each."""

    name = "any"

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def decide(self, view: Any, budget: Any, now: float) -> StepChoice:
        order = self._rng.permutation(view.ready.nonzero()[0])
        counts = None if self._rng.random() < 0.5 else self._rng.integers(1, 2000, len(order))
        return StepChoice(order, "", counts=counts)


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 30)), min_size=1, max_size=12),
    st.floats(0.001, 0.5),
    st.floats(0.0001, 0.01),
)
def test_whatever_a_policy_chooses_no_step_beside_others_takes_longer(
    seed: int, requests: list[tuple[int, int]], bound_s: float, token_s: float
) -> None:
    cost = Linear(token_s)
    stages = Stages(Whimsical(seed), cost, latency=ClassBounds(tpot_s=bound_s))
    stage = stages.add()
    for number, (length, limit) in enumerate(requests):
        stage.submit(request(number, length, limit))
    reads = sum(length for length, _ in requests)
    for number in range(reads + 12 * 30):
        if not stage.has_work:
            break
        is_lived = stages.beside.patience(0.0) != NOBODY
        step = stepped(stage, number)
        longer = step.counts > 1
        took_s = cost.seconds(step.counts, step.starts)
        least_s = token_s * (int((~longer).sum()) + LEAST_TOKENS)
        allowed_s = max(bound_s, least_s / (1 - LEAST_SHARE))
        assert not isnan(took_s)
        assert not is_lived or not longer.any() or took_s <= allowed_s * (1 + 1e-9)
        assert step.counts.sum() > 0, "something gets on"
    assert not stage.has_work, "every prompt is read to its end"
