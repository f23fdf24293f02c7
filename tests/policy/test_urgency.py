"""LiveServe §4: classes, ranks within them, Algorithm 1, and what is held back."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.playback import Source
from antiphon.policy.base import Budget, StepChoice, StepView, Tier
from antiphon.policy.urgency import BEHIND, BUFFERED, FIRST_SOUND, LISTENS_S, RUNS_DRY, Urgency
from policy.views import short, stage

BUDGET = Budget(16, 8)


def chosen(view: StepView, budget: Budget = BUDGET, **options: Any) -> StepChoice:
    choice = Urgency(**options).decide_step(view, budget, 0.0)
    assert choice.reason
    assert choice.urgency is not None
    assert len(choice.urgency) == len(choice.order)
    return choice


def begun(size: int, *leads_s: float, **told: Any) -> dict[str, Any]:
    """Replies with these leads, and then others that nothing has come of."""
    rest = size - len(leads_s)
    return {
        "begun": [True] * len(leads_s) + [False] * rest,
        "lead_s": [*leads_s, *[nan] * rest],
        "rate": [12.5] * size,
        **told,
    }


def test_classes_in_order_and_ranks_within_them() -> None:
    """U0 by lead, U1 by age, U2 by utility, and then what no person waits for."""
    view = stage(
        7,
        9,
        **begun(
            9,
            *(5.0, 0.4, 3.0, 0.2, 2.0),
            age_s=[9, 9, 9, 9, 9, 1, 2, 3, 4],
            tier=[0, 0, 0, 0, Tier.BEST_EFFORT, 0, 0, 0, Tier.BEST_EFFORT],
        ),
    )
    choice = chosen(view)
    assert choice.order.tolist() == [3, 1, 7, 6, 5, 2, 0, 4, 8]
    assert choice.urgency.tolist() == [RUNS_DRY] * 2 + [FIRST_SOUND] * 3 + [BUFFERED] * 2 + [BEHIND] * 2
    assert choice.reason == "runs dry"
    assert not choice.stops


def test_of_those_that_wait_for_the_first_sound_what_is_read_goes_behind_what_is_heard() -> None:
    view = stage(1, 4, **begun(4, age_s=[9, 8, 1, 2], rate=[nan, nan, 12.5, 12.5]))
    assert chosen(view).order.tolist() == [3, 2, 0, 1]


def test_a_waiting_request_may_go_before_rows_and_need_not_be_the_first() -> None:
    """Urgency admits the third that waits: there is one space of candidates."""
    view = stage(1, 4, **begun(4, 9.0, age_s=[9, 1, 2, 3], ready=[True, False, True, True]))
    assert chosen(view).order.tolist() == [3, 2, 0]


def test_among_the_buffered_kv_pressure_stands_against_exposure() -> None:
    """Eqs. 1 to 3: the one that holds more goes first, unless it is much farther ahead; the KV counts only as
    far as the stage is full."""
    told = begun(2, 3.0, 3.2, held=[4, 40], num_blocks=50, num_free=6)
    assert chosen(stage(2, 2, **told)).order.tolist() == [1, 0]
    assert chosen(stage(2, 2, **told), beta=0.0).order.tolist() == [0, 1]
    assert chosen(stage(2, 2, **told | {"num_blocks": 5000, "num_free": 4956})).order.tolist() == [0, 1]
    assert chosen(stage(2, 2, **told | {"lead_s": [3.0, 9.0]})).order.tolist() == [0, 1]


def test_a_lead_that_is_not_known_counts_as_first_sound_by_age() -> None:
    policy = Urgency()
    view = stage(3, 3, begun=[True] * 3, lead_s=[nan, 0.1, nan], age_s=[1, 5, 2], rate=[12.5, 12.5, nan])
    choice = policy.decide_step(view, BUDGET, 0.0)
    assert choice.order.tolist() == [1, 0, 2]
    assert policy.events["lead_unknown"] == 1, "what is only read has no lead"
    assert policy.decide_pace(view, 0.0).held is None


def test_what_its_client_stopped_playing_goes_after_all_that_are_listened_to_and_is_not_held() -> None:
    """It would have no lead otherwise, and run dry; held, it would never end."""
    told = begun(5, inf, 30.0, inf, 0.2, 5.0, tier=[0, 0, 0, 0, Tier.BEST_EFFORT])
    told["begun"][2] = False
    choice = chosen(stage(5, 5, **told))
    assert choice.order.tolist() == [3, 1, 0, 2, 4]
    assert choice.urgency.tolist() == [RUNS_DRY, BUFFERED, BUFFERED, BUFFERED, BEHIND]
    assert held(stage(5, 5, **told))[0] == [1]
    assert held(stage(1, 1, **begun(1, inf))) == ([], None)


def test_a_hold_is_counted_once_however_often_it_is_looked_at() -> None:
    policy = Urgency()
    view = stage(2, 2, **begun(2, 9.0, 8.0))
    for _ in range(3):
        policy.decide_pace(view, 0.0)
    assert policy.events["held"] == 2
    policy.decide_pace(stage(2, 2, **begun(2, 9.0, 0.5)), 0.0)
    policy.decide_pace(view, 0.0)
    assert policy.events["held"] == 3, "and another hold of the same request is another one"


def first_sound_waits(view: StepView, budget: Budget = BUDGET) -> int:
    policy = Urgency()
    policy.decide_step(view, budget, 0.0)
    return policy.events["first_sound_waits"]


def test_first_sounds_for_which_a_step_has_no_tokens_or_rows_left_are_counted() -> None:
    view = stage(5, 5, **begun(5, 0.1, 0.2, 0.3, tokens=[1, 1, 1, 4, 9], age_s=[0, 0, 0, 2, 1]))
    waits = [first_sound_waits(view, Budget(tokens, 8)) for tokens in (3, 4, 7, 8)]
    assert waits == [2, 1, 1, 0], "a step that has room for a part of a prompt reads that"
    assert [first_sound_waits(view, Budget(99, rows)) for rows in (3, 4, 5)] == [2, 1, 0]
    assert first_sound_waits(stage(3, 3, **begun(3, 0.1, 0.2, 0.3)), Budget(1, 1)) == 0, "none of them is one"


def test_first_sounds_that_wait_for_a_row_or_for_kv_are_counted() -> None:
    told = begun(6, 9.0, 9.0, needs=[0, 0, 4, 4, 4, 4], age_s=[0, 0, 4, 3, 2, 1])
    assert first_sound_waits(stage(2, 6, **told, num_free_rows=4)) == 0
    assert first_sound_waits(stage(2, 6, **told, num_free_rows=3)) == 1
    assert first_sound_waits(stage(2, 6, **told, num_free_rows=0)) == 4
    short_of = {"num_free": 9, "num_evictable": 4, "num_promised": 2}
    assert first_sound_waits(stage(2, 6, **told, num_free_rows=4, **short_of)) == 2
    reads = told | {"tokens": [1, 1, 9, 9, 9, 9]}
    assert first_sound_waits(stage(2, 6, **reads, num_free_rows=1), Budget(4, 8)) == 3
    behind = told | {"age_s": [0, 5, 4, 3, 2, 1], "begun": [True] + [False] * 5}
    assert first_sound_waits(stage(2, 6, **behind, num_free_rows=0), Budget(1, 1)) == 4, "the row runs"


def test_media_wait_for_no_row() -> None:
    media = begun(3, num_blocks=0, num_free=0, num_free_rows=0)
    assert [first_sound_waits(stage(0, 3, **media), Budget(n, n)) for n in (2, 3)] == [1, 0]


def test_the_least_urgent_row_gives_way_and_keeps_its_kv() -> None:
    choice = chosen(short(4, 5, **begun(5, 0.2, 7.0, 3.0)))
    assert (choice.preempt.tolist(), choice.reason) == ([1], "the least urgent gives way")
    assert choice.keeps is not None
    assert choice.keeps.tolist() == [True]
    assert choice.order.tolist() == [0, 3, 2], "and none joins in that step"


def test_to_the_letter_the_step_ends_at_what_does_not_fit() -> None:
    assert chosen(stage(1, 1), literal=True).stops


def held(view: StepView, **options: Any) -> tuple[list[int], float | None]:
    hold = Urgency(**{"beta": 0.0, **options}).decide_pace(view, 100.0)
    wake_at = None if hold.wake_at is None else round(hold.wake_at, 5)
    return ([] if hold.held is None else hold.held.nonzero()[0].tolist()), wake_at


def test_what_is_far_ahead_is_held_until_it_is_not() -> None:
    """Safe for 1 s; alone it is held from half a second beyond."""
    view = stage(2, 2, **begun(2, 4.0, 2.5))
    assert held(view) == ([0, 1], 100.0 + 1.0)
    assert held(stage(1, 1, **begun(1, 1.4))) == ([], None)


def test_those_below_the_upper_threshold_go_along_with_a_step_that_runs_anyway() -> None:
    view = stage(4, 5, **begun(5, 4.0, 1.9, 1.2))
    assert held(view) == ([0], 100.0 + 2.5)
    alone = stage(2, 2, **begun(2, 4.0, 1.9))
    assert held(alone) == ([0, 1], pytest.approx(100.4))


@pytest.mark.parametrize("told", [{"num_free_rows": 0}, {"needs": [0, 0, 65]}])
def test_a_request_that_cannot_join_is_no_step_to_go_along_with(told: dict[str, Any]) -> None:
    tiers = {"tier": [0, 0, Tier.BEST_EFFORT]}
    assert held(stage(2, 3, **begun(3, 4.0, 1.9), **tiers))[0] == [0]
    assert held(stage(2, 3, **begun(3, 4.0, 1.9), **tiers, **told))[0] == [0, 1]


def test_nobody_is_held_who_reads_has_not_begun_or_is_not_waited_for() -> None:
    told = begun(3, 9.0, 9.0, 9.0, reading=[True, False, False], tier=[0, Tier.BEST_EFFORT, 0])
    assert held(stage(3, 3, **told | {"begun": [True, True, False]})) == ([], None)


def test_what_an_agent_reads_never_runs_dry() -> None:
    """It goes behind first sounds that somebody waits for, as what nobody listens to does, and no prompt is
    kept out of a step for its sake."""
    view = stage(2, 3, **begun(3, 0.2, 5.0, age_s=[9, 9, 1], rate=[inf, 12.5, 12.5]))
    assert chosen(view).order.tolist() == [2, 0, 1]
    prompt = begun(2, 0.001, tokens=[1, 200], rate=[inf, nan], age_s=[9, 1], cost=Linear())
    assert chosen(stage(1, 2, **prompt), Budget(1000, 8)).order.tolist() == [0, 1]


def test_what_an_agent_takes_is_not_held() -> None:
    """However much of it counts as ahead, it is taken already."""
    assert held(stage(2, 2, **begun(2, 9.0, 9.0, rate=[inf, 12.5])))[0] == [1]


def test_leads_are_wider_where_less_is_known_and_after_gaps() -> None:
    view = stage(3, 3, **begun(3, 3.0, 3.0, 3.0, source=[Source.ACKED, Source.ESTIMATED, Source.ACKED]))
    view.num_gaps[2] = 9
    assert held(view, unsure=2.6, after_gap=1.5) == ([0], 100.0 + 1.5)
    assert held(view, unsure=1.0, after_gap=1.0)[0] == [0, 1, 2]


def test_nobody_is_held_in_whose_place_somebody_could_run() -> None:
    told = begun(3, 9.0, 9.0, ready=[True, True, True])
    assert held(stage(2, 3, **told))[0] == [0, 1]
    assert held(stage(2, 3, **told, num_free_rows=0)) == ([], None)
    assert held(stage(2, 3, **told, needs=[0, 0, 70])) == ([], None)
    told["ready"][2] = False
    assert held(stage(2, 3, **told, num_free_rows=0))[0] == [0, 1]


class Linear:
    """10 ms a step and so much a token."""

    def __init__(self, token_s: float = 0.001) -> None:
        self._token_s = token_s

    def seconds(self, counts: Any, contexts: Any) -> float:
        return 0.01 + self._token_s * int(counts.sum())


def test_prompts_are_kept_out_of_a_step_that_would_outlast_a_lead() -> None:
    told = begun(4, 0.1, 5.0, tokens=[1, 1, 1, 200], cost=Linear())
    budget = Budget(1000, 8)
    policy = Urgency()
    assert policy.decide_step(stage(3, 4, **told), budget, 0.0).order.tolist() == [0, 2, 1]
    assert policy.events["prompt_spared"] == 1
    assert chosen(stage(3, 4, **told), budget, patient=False).order.tolist() == [0, 2, 3, 1]
    told["lead_s"][0] = 0.005
    assert chosen(stage(3, 4, **told), budget).order.tolist() == [0, 2, 3, 1], "it would not help"
    told["lead_s"][0] = 0.5
    told["ahead_s"] = [0, 0, 0.5, 0]
    assert chosen(stage(3, 4, **told), budget).order.tolist() == [0, 2, 3, 1], "there is time for it"
    told["ahead_s"] = [0, 0, 0.1, 0]
    assert chosen(stage(3, 4, **told), budget).order.tolist() == [0, 2, 1], "soon it is heard"


def test_what_is_well_buffered_stays_in_a_step_that_is_no_shorter_without_it() -> None:
    """10 ms and one for each of three rows: two of them take 0.92 of that, as many of 2 ms each 0.875."""
    policy, told = Urgency(brink_s=0.3), begun(3, 0.2, 5.0, 0.9)
    assert policy.decide_step(stage(3, 3, **told, cost=Linear()), BUDGET, 0.0).order.tolist() == [0, 2, 1]
    assert policy.events["left_out"] == 0
    assert policy.decide_step(stage(3, 3, **told, cost=Linear(0.002)), BUDGET, 0.0).order.tolist() == [0, 2]
    assert policy.events["left_out"] == 1


def test_where_times_are_not_known_nothing_is_left_out_nor_spared() -> None:
    """What is missing turns off what goes by it, and is counted (LiveServe §6)."""
    for cost in (None, Linear(nan)):
        policy = Urgency(brink_s=0.3)
        buffered = stage(2, 2, **begun(2, 0.2, 5.0), cost=cost)
        assert policy.decide_step(buffered, BUDGET, 0.0).order.tolist() == [0, 1]
        assert (policy.events["times_unknown"], policy.events["left_out"]) == (1, 0)
        prompt = stage(1, 2, **begun(2, 0.1, tokens=[1, 200]), cost=cost)
        assert policy.decide_step(prompt, Budget(1000, 8), 0.0).order.tolist() == [0, 1]
        assert (policy.events["times_unknown"], policy.events["prompt_spared"]) == (2, 0)


def test_what_is_well_buffered_stays_out_while_somebody_is_at_the_brink() -> None:
    policy = Urgency(brink_s=0.3)
    told = begun(5, 0.2, 5.0, 0.9, 4.0, tier=[0, 0, 0, Tier.BEST_EFFORT, 0], cost=Linear(0.01))
    told["rate"][4] = nan
    assert policy.decide_step(stage(4, 5, **told), BUDGET, 0.0).order.tolist() == [0, 2, 4]
    assert policy.events["left_out"] == 2
    told["lead_s"][0] = 0.4
    assert policy.decide_step(stage(4, 5, **told), BUDGET, 0.0).order.tolist() == [0, 2, 4, 1, 3]
    told["lead_s"][0], told["ready"] = 0.2, [False, True, True, True, True]
    assert policy.decide_step(stage(4, 5, **told), BUDGET, 0.0).order.tolist() == [2, 4, 1, 3], (
        "it cannot run"
    )
    told = begun(2, 0.2, 5.0)
    assert chosen(stage(2, 2, **told)).order.tolist() == [0, 1], "as the paper has it"


def test_what_is_well_buffered_stays_out_of_the_steps_of_a_first_sound() -> None:
    """Of one that somebody waits to hear, and that can run: not of a text, nor of what finds no row."""
    told = begun(3, 5.0, 4.0, tokens=[1, 1, 4], cost=Linear(0.01))
    policy = Urgency(brink_s=0.3)
    assert policy.decide_step(stage(2, 3, **told), BUDGET, 0.0).order.tolist() == [2]
    assert policy.events["left_out"] == 2
    for others in ({"num_free_rows": 0}, {"rate": [12.5, 12.5, nan]}, {"cost": Linear(0.0001)}):
        order = chosen(stage(2, 3, **told | others), brink_s=0.3).order
        assert order.tolist() == [2, 1, 0], others
    assert chosen(stage(2, 3, **told)).order.tolist() == [2, 1, 0], "as the paper has it"


def test_nobody_makes_way_for_a_prompt_that_is_kept_out() -> None:
    told = begun(3, 0.5, 5.0, tokens=[1, 1, 200], cost=Linear(0.01))
    assert chosen(stage(2, 3, **told), Budget(1000, 8), brink_s=0.3).order.tolist() == [0, 1]
    told["tokens"] = [1, 1, 4]
    assert chosen(stage(2, 3, **told), Budget(1000, 8), brink_s=0.3).order.tolist() == [0, 2]


def test_nobody_is_left_out_while_most_rows_are_in_use() -> None:
    policy, told = Urgency(brink_s=0.3, rows_to=0.75), begun(3, 0.2, 5.0, 0.9, cost=Linear(0.01))
    for num_free, num_pending, order in ((1, 0, [0, 2]), (0, 1, [0, 2]), (0, 0, [0, 2, 1])):
        view = stage(3, 3, **told, num_free_rows=num_free, num_pending_rows=num_pending)
        assert policy.decide_step(view, BUDGET, 0.0).order.tolist() == order


def test_kv_in_a_full_stage_is_worth_a_lead() -> None:
    """Eq. 1 is zero at safe_s (1 + beta / alpha K R): half the blocks in a stage that is full."""
    view = stage(2, 2, **begun(2, 2.4, 2.4, held=[32, 32], num_free=0))
    assert held(view, beta=1.0) == ([0, 1], pytest.approx(100.0 + 2.4 - 1.5 - 0.5))
    assert held(view, beta=2.0) == ([], None)


def test_a_crowded_pool_is_emptied_sooner_by_holding_nobody() -> None:
    told = begun(2, 9.0, 9.0, held=[20, 32], num_free=12)
    assert held(stage(2, 2, **told), holds_to=0.8) == ([], None)
    assert held(stage(2, 2, **told), holds_to=0.9)[0] == [0, 1]
    assert held(stage(2, 2, **told | {"num_promised": 12}), holds_to=0.9)[0] == []


def test_blocks_that_several_requests_hold_are_in_use_once() -> None:
    """Two prompts that begin with the same instructions; what is about to be free or merely rests is not in
    use."""
    told = begun(2, 9.0, 9.0, held=[40, 40], num_free=4, num_pending_free=8, num_evictable=8)
    assert held(stage(2, 2, **told), holds_to=0.7)[0] == [0, 1]
    assert held(stage(2, 2, **told), holds_to=0.6) == ([], None)


def test_nothing_is_held_once_its_listener_has_heard_all_that_is_sound() -> None:
    """A chunk of the vocoder, or a phrase of the voice, may be longer than all that a reply may be ahead."""
    told = begun(2, 9.0, 9.0)
    ahead = {"ahead_s": [8.5, 8.9]}
    assert held(stage(2, 2, **told | ahead))[0] == [0]
    assert held(stage(2, 2, **told | ahead))[1] == pytest.approx(100.5 - LISTENS_S, abs=1e-3)
    assert held(stage(2, 2, **told | {"ahead_s": [8.8, 8.8]})) == ([], None)
    assert held(stage(2, 2, **begun(2, 0.9, 0.9), ahead_s=[0.7, 0.75]), safe_s=0.1)[0] == [0, 1]


def test_rows_are_freed_sooner_before_anybody_waits_for_one() -> None:
    """A reply that is held keeps its row for as long as it is heard."""
    told = begun(3, 9.0, 9.0, 9.0, num_free_rows=1)
    assert held(stage(3, 3, **told), rows_to=0.5) == ([], None)
    assert held(stage(3, 3, **told), rows_to=0.75)[0] == [0, 1, 2]
    assert held(stage(3, 3, **told | {"num_free_rows": 0}), rows_to=0.75)[0] == []
    pending = {"num_free_rows": 0, "num_pending_rows": 1}
    assert held(stage(3, 3, **told | pending), rows_to=0.75)[0] == [0, 1, 2], "it is about to be free"


def test_nothing_is_held_while_the_one_that_waits_longest_finds_no_room() -> None:
    """One behind it that would fit does not join before it."""
    told = begun(4, 9.0, 9.0, age_s=[9, 9, 8, 1], needs=[0, 0, 40, 1], num_free=8)
    assert held(stage(2, 4, **told)) == ([], None)
    assert held(stage(2, 4, **told | {"num_free": 48}))[0] == [0, 1]
    assert held(stage(2, 4, **told | {"age_s": [9, 9, 1, 8]}))[0] == [0, 1]


def test_rows_of_a_later_stage_are_freed_sooner_as_well() -> None:
    """What the thinker holds keeps its row in the talker, which cannot go on without it."""
    told = begun(3, 9.0, 9.0, 9.0)
    assert held(stage(3, 3, **told, rows_behind=0.75), rows_to=0.75)[0] == [0, 1, 2]
    assert held(stage(3, 3, **told, rows_behind=0.8), rows_to=0.75) == ([], None)


@pytest.mark.parametrize(
    ("told", "options", "why"),
    [
        ({"num_free": 62}, {"holds_to": 0.01}, "over 1% of the blocks are in use"),
        ({"num_free_rows": 0}, {"rows_to": 0.75}, "over 75% of the rows are in use"),
        ({"rows_behind": 0.8}, {"rows_to": 0.75}, "over 75% of the rows of a later stage are in use"),
        ({"num_free_rows": 0}, {}, "a request waits for a row, or for KV"),
    ],
)
def test_why_nobody_is_held_is_told(told: dict[str, Any], options: dict[str, Any], why: str) -> None:
    view = stage(2, 3, **begun(3, 9.0, 9.0), **told)
    hold = Urgency(**options).decide_pace(view, 0.0)
    assert hold.reason == f"not held: {why}"
    assert hold.spared is not None
    assert hold.spared.tolist() == [True, True, False]
    assert Urgency(**options).decide_pace(stage(1, 1, **begun(1, 0.5)), 0.0).reason == "nothing is held back"


def test_a_stage_without_kv_or_candidates() -> None:
    assert chosen(stage(0, 0, num_blocks=0)).order.tolist() == []
    assert chosen(stage(2, 2, num_blocks=0, held=[0, 0], **begun(2, 3.0, 0.1))).order.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"safe_s": 0.0}, "safe_s is 0.0; it must be above 0"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"beta": -1.0}, "beta is -1.0; it must be 0 or above"),
        ({"ahead_s": np.inf}, "ahead_s is inf"),
        ({"brink_s": -0.1}, "brink_s is -0.1; it must be 0 or above"),
        ({"rows_to": -0.5}, "rows_to is -0.5; it must be 0 or above"),
        ({"unsure": 0.5}, "unsure is 0.5; it must be 1 or above"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Urgency(**options)  # type: ignore[arg-type]


def test_each_class_and_each_hold_is_told_in_words() -> None:
    view = stage(
        4, 5, **begun(5, 0.5, 5.0, nan, 3.0, age_s=[0, 0, 2, 0, 0.25], tier=[0, 0, 0, Tier.BEST_EFFORT, 0])
    )
    policy = Urgency(ahead_s=1.0, unsure=1.0)
    policy.decide_step(view, Budget(64, 8), 0.0)
    policy.events["lead_unknown"] = 0
    assert [tuple(policy.tell_step(view, at, 0.0)) for at in range(5)] == [
        ("U0", "runs dry: at most 1 s ahead", None),
        ("U2", "well buffered: more than 1 s ahead", None),
        ("U1", "first sound: asked for 2.0 s ago, lead not known", None),
        ("", "no person waits: it gives way to all others", None),
        ("U1", "first sound: asked for 0.2 s ago", None),
    ]
    hold = policy.decide_pace(view, 10.0)
    told = policy.tell_pace(view, 1, 10.0)
    assert told.why == "5.0 s ahead of the listener, over 1.0 s"
    assert told.until == pytest.approx(hold.wake_at, abs=1e-3)
    assert policy.events["lead_unknown"] == 1, "by the pace too"
