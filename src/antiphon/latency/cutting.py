"""How much of the prompts in a decoder's step it has time for."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from antiphon.core.facts import Ints, Mask
from antiphon.core.plans import Budget
from antiphon.latency.features import ArFeatures, pair_load, row_features

LEAST_SHARE = 0.2
"""Prompts get this share of the time at least; where every step keeps to its bound, this share of a step,
beyond their first tokens. Without it, rows or a prompt's fixed cost that take as long as the bound would let
prompts read one token a step."""
WORTH = 4.0
"""A piece of a prompt is worth its fixed cost if it takes so many times that. With shorter ones neither
prompts nor the replies beside them get on."""
FEW_TOKENS = 32
"""Of a prompt: computed in pieces of a size that suits a machine, which is less as a rule."""
LEAST_TOKENS = 3
"""Of a prompt, whose time is its fixed cost: a prompt of more is cut into pieces of two at least. A token by
itself is computed by other arithmetic than its neighbours, where a CPU's differs (`docs/exactness.md`)."""

StepSeconds = Callable[[ArFeatures], float]


def within(
    step_s: StepSeconds, budget: Budget, counts: Ints, contexts: Ints, told: Mask | None = None
) -> Ints | None:
    """As `policy.base.StepCost.within` says it. step_s: what a step takes; nan: not known."""
    longer = (counts > 1).nonzero()[0]
    if not len(longer):
        return counts
    ones = counts == 1
    step = row_features(counts[ones], contexts[ones])
    alone_s = step_s(step) if step.num_tokens else 0.0
    first = int(longer[0])
    most, is_first_told = int(counts[first]), told is not None and bool(told[first])

    def with_first_s(tokens: int) -> float:
        return step_s(step.plus(int(contexts[first]), tokens, tokens if is_first_told else 1))

    least_s = with_first_s(min(most, LEAST_TOKENS))
    if isnan(least_s):
        return None
    cut = counts.copy()
    if budget.unread_s is None:
        bound_s = max(budget.seconds, least_s / (1.0 - LEAST_SHARE))
    else:
        whole_s = with_first_s(most)
        fixed_s = max(least_s - alone_s, _fixed_s(with_first_s, most, whole_s) - alone_s)
        worth_s = min(alone_s + WORTH * fixed_s, whole_s)
        owed_s = LEAST_SHARE * budget.unread_s
        bound_s = budget.seconds
        if bound_s < worth_s:
            if alone_s + owed_s < worth_s:
                cut[longer] = 0
                return cut
            bound_s = max(worth_s, min(alone_s + owed_s, alone_s / (1.0 - LEAST_SHARE)))
    for at, row in enumerate(longer.tolist()):
        start, count = int(contexts[row]), int(counts[row])
        is_told = told is not None and bool(told[row])
        longer_step = step.plus(start, count, count if is_told else 1)
        whole_s = step_s(longer_step)
        if not whole_s <= bound_s:
            cut[longer[at:]] = 0
            fits = _most(step_s, step, (start, count, is_told), (alone_s, whole_s), bound_s)
            fits -= count - fits == 1  # no token is left alone
            cut[row] = fits if fits > 1 else int(at == 0)
            break
        step = longer_step
    return cut


def _fixed_s(tokens_s: Callable[[int], float], most: int, whole_s: float) -> float:
    """What a step takes before its first token of a prompt, if `most` take `whole_s`: few are often computed
    in the time of one, and some more take that of many."""
    few = min(FEW_TOKENS, most - 1)
    few_s = tokens_s(few)
    return few_s - few * max(whole_s - few_s, 0.0) / (most - few)


def _most(
    step_s: StepSeconds,
    step: ArFeatures,
    row: tuple[int, int, bool],
    ends_s: tuple[float, float],
    bound_s: float,
) -> int:
    """The most tokens of the row that fit beside the step, but for a sixteenth; 0: not even two.

    row     (start, count, whether it is told of each token): all `count` do not fit
    ends_s  of the step without the row, and with the whole of it
    """
    start, high, is_told = row
    low, low_s, high_s = 1, ends_s[0], ends_s[1]
    fits, halves = 0, False
    tokens, load, decode_load, decode_rows, emits, prefill_rows, *_ = step
    while high - low > 1 + low // 16:
        share = 0.5 if halves or not low_s < bound_s else (bound_s - low_s) / (high_s - low_s)
        count = min(max(low + int(share * (high - low)), low + 1), high - 1)
        load_with = load + pair_load(start, count)
        emits_with = emits + (count if is_told else 1)
        took_s = step_s(
            ArFeatures(tokens + count, load_with, decode_load, decode_rows, emits_with, prefill_rows + 1)
        )
        halves = not halves
        if took_s <= bound_s:
            fits = low = count
            low_s = took_s
        else:
            high, high_s = count, took_s
    return fits
