"""Moving models of steps and copies: what they say after so many reports, and when nothing is known."""

from __future__ import annotations

from math import isnan, nan

import msgspec
import numpy as np
import pytest

from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.plans import ArStep, Join, ints
from antiphon.core.sampling import Sampling
from antiphon.latency.features import ar_features
from antiphon.latency.observed import FIRST_TOKENS, GROWTH, ObservedCopies, ObservedSteps
from fakes.readings import bounded


def step(number: int, counts: Ints, starts: Ints) -> ArStep:
    rows, none = np.arange(len(counts)), NO_INTS
    return ArStep("t", number, (), none, (), none, none, rows, starts, counts, np.ones_like(rows), "")


def truth(counts: Ints, starts: Ints) -> float:
    loads = counts * starts + counts * (counts + 1) // 2
    ones = counts == 1
    rows = 1e-4 * ones.sum() + 3e-8 * loads[ones].sum()
    return float(0.004 + 2e-5 * counts.sum() + rows + 2e-9 * loads[~ones].sum())


def drawn(rng: np.random.Generator) -> tuple[Ints, Ints]:
    size = int(rng.integers(1, 64))
    counts, starts = np.ones(size, np.int64), rng.integers(10, 4000, size)
    if rng.random() < 0.2:
        counts[0], starts[0] = rng.integers(2, 1000), 0
    return counts, starts


def run(model: ObservedSteps, first: int, size: int, factor: float = 1.0) -> None:
    """So many steps with noise of 2 %, and one in thirty five times as slow."""
    rng = np.random.default_rng(first)
    for number in range(first, first + size):
        counts, starts = drawn(rng)
        model.ordered(step(number, counts, starts))
        slow = 5.0 if rng.random() < 0.03 else 1.0
        model.reported(number, truth(counts, starts) * factor * slow * rng.normal(1.0, 0.02))


def worst(model: ObservedSteps, factor: float = 1.0) -> float:
    """Relative error over steps of all sizes."""
    rng = np.random.default_rng(1)
    steps = [drawn(rng) for _ in range(50)]
    return max(abs(model.seconds(*one) / (truth(*one) * factor) - 1.0) for one in steps)


def test_a_linear_cost_is_recovered_and_a_change_is_followed() -> None:
    model = ObservedSteps(is_decoder=True)
    run(model, 0, 200)
    assert worst(model) < 0.05
    run(model, 200, 160, factor=2.0)
    assert worst(model, factor=2.0) < 0.05


def test_nothing_is_said_before_enough_was_reported_of_the_kind() -> None:
    model, one = ObservedSteps(is_decoder=True), ints([1])
    for number in range(16):
        assert isnan(model.seconds(one, one))
        model.ordered(step(number, one, one))
        model.reported(number, 0.01)
    assert model.seconds(one, one) == pytest.approx(0.01)
    assert isnan(model.seconds(ints([7]), ints([0]))), "no prompt was read yet"
    assert model.seconds(NO_INTS, NO_INTS) == 0.0


def test_what_tells_nothing_of_others_is_not_counted() -> None:
    model, one = ObservedSteps(is_decoder=True), ints([1])
    waits = msgspec.structs.replace(step(0, one, one), waits=(ints([0]), ints([3])))
    leaves = msgspec.structs.replace(step(1, one, one), leaves_at=(ints([0]), ints([1])))
    empty = step(2, NO_INTS, NO_INTS)
    for number, each in enumerate((waits, leaves, empty, step(3, one, one)) * 32):
        model.ordered(msgspec.structs.replace(each, step=number))
        model.reported(number, nan if number % 4 == 3 else 0.01)
    model.reported(999, 1.0)
    assert isnan(model.seconds(one, one))


def told_step(number: int, count: int, told: bool) -> ArStep:
    """The first step of a prompt of so many tokens, and one more."""
    prompt = StagePrompt(np.arange(count + 1), np.arange(count + 1), (), 0, NO_INTS)
    sampling = Sampling(logprobs=0, prompt_logprobs=told)
    join = Join(0, number, prompt, 0, sampling, np.zeros((0, 1), np.int64))
    return msgspec.structs.replace(step(number, ints([count]), ints([0])), joins=(join,))


def test_what_is_told_of_prompts_has_a_figure_of_its_own() -> None:
    model, told = ObservedSteps(is_decoder=True), np.array([True])
    counts, starts = ints([900]), ints([0])

    def run(first: int, size: int, tells: bool) -> None:
        for number in range(first, first + size):
            count = 10 + 37 * number % 300
            model.ordered(told_step(number, count, tells))
            model.reported(number, 0.001 * count + (0.0005 * count if tells else 0.0))

    run(0, 32, tells=False)
    plain = model.within(bounded(0.1), counts, starts)
    assert plain is not None
    assert 94 <= plain[0] <= 100
    first = model.within(bounded(0.1), counts, starts, told)
    assert first is not None
    assert 47 <= first[0] <= 50, "none was reported: as long as a token's way through the layers"
    run(32, 32, tells=True)
    then = model.within(bounded(0.1), counts, starts, told)
    assert then is not None
    assert 62 <= then[0] <= 66
    assert model.within(bounded(0.1), counts, starts) == pytest.approx(plain, abs=4), (
        "apart from what others cost"
    )


def longest_s(
    model: ObservedSteps, token_s: float, bound_s: float, first: int = 0, pair_s: float = 0.0
) -> tuple[float, int]:
    """Reads 8,000 tokens beside a reply where a step takes 5 ms alone: the longest step, and how many.
    pair_s: of a token and one before it."""
    left, took_s = 8000, list[float]()
    while left:
        counts, starts = ints([1, left]), ints([50 + len(took_s), 8000 - left])
        given = model.within(bounded(bound_s), counts, starts)
        assert given is not None
        assert given[0] == 1
        number = first + len(took_s)
        took_s.append(0.005 + token_s * int(given.sum()) + pair_s * int(given[1]) * (8000 - left))
        model.ordered(step(number, given, starts))
        model.reported(number, took_s[-1])
        left -= int(given[1])
    return max(took_s), len(took_s)


@pytest.mark.parametrize("token_s", [0.0001, 0.001, 0.01])
def test_the_first_long_prompt_is_bounded_and_does_not_crawl(token_s: float) -> None:
    longest, steps = longest_s(ObservedSteps(is_decoder=True), token_s, bound_s=0.2)
    assert longest <= max(0.2 * 1.3, 0.005 + (FIRST_TOKENS + 1) * token_s)
    assert steps < 16 + 1.2 * 8000 * token_s / 0.2


def test_the_first_long_prompt_is_bounded_where_its_attention_grows() -> None:
    """A token takes a tenth of a millisecond and, after 7,000 others, five times as long."""
    longest, steps = longest_s(ObservedSteps(is_decoder=True), 0.0001, bound_s=0.05, pair_s=0.0001 * 4 / 7000)
    assert longest < 0.05 * 1.5
    assert steps < 70


def test_the_rest_of_a_prompt_has_the_next_one_not_crawl() -> None:
    """Two tokens of one, beside many replies: nearly all of the step's time is theirs."""
    model = ObservedSteps(is_decoder=True)
    for number, count in enumerate((120, 240, 2)):
        model.ordered(step(number, ints([1] * 20 + [count]), ints([50] * 20 + [0])))
        model.reported(number, 0.03 + 0.0001 * count)
    given = model.within(bounded(0.05), ints([1] * 20 + [7000]), ints([50] * 20 + [0]))
    assert given is not None
    assert 150 <= given[-1] <= 0.05 / (0.054 / 240)


def test_one_slow_step_has_the_prompts_after_it_not_crawl() -> None:
    """The first one of all took 5 s, as where its kernels are built: what follows says otherwise."""
    model = ObservedSteps(is_decoder=True)
    model.ordered(step(0, ints([1, FIRST_TOKENS]), ints([50, 0])))
    model.reported(0, 5.0)
    longest, steps = longest_s(model, 0.0002, bound_s=0.1, first=1)
    assert longest < 0.1 * 1.3
    assert steps < 30


@pytest.mark.parametrize("chunk", [2, 20, 200])
def test_prompts_of_one_size_do_not_tell_that_longer_ones_take_as_long(chunk: int) -> None:
    """Their fit may put all of the time into the step, and none into the token."""
    model, counts = ObservedSteps(is_decoder=True), ints([chunk, 1])
    for number in range(64):
        model.ordered(step(number, counts, ints([0, 9])))
        model.reported(number, 0.005 + 0.001 * (chunk + 1))
    given = model.within(bounded(9.0), ints([1, 8000]), ints([50, 0]))
    most = max(FIRST_TOKENS, GROWTH * chunk)
    assert given is not None
    assert 0.9 * most <= given[1] <= most
    longest, steps = longest_s(model, 0.001, 0.2, first=64)
    assert longest < 0.2 * 1.3
    assert steps < 60


def alike(model: ObservedSteps, longer_s: float, num_steps: int = 72) -> int:
    """Short pieces of a long prompt beside a reply, on a machine that gets busier as the reply grows. One of
    100 tokens came before them, and took so long. Where the next one starts."""
    model.ordered(step(0, ints([100, 1]), ints([3500, 229])))
    model.reported(0, longer_s)
    for number in range(1, num_steps):
        reply = 230 + number
        model.ordered(step(number, ints([6, 1]), ints([3600 + 6 * number, reply])))
        model.reported(number, 0.2 * reply / 260)
    return 3600 + 6 * num_steps


def test_a_longer_reply_than_those_reported_lets_no_prompt_take_as_long_as_it_is_said_to() -> None:
    """A fit of short replies takes a step's cost for what they read, and a reply of fourteen times the length
    for fourteen steps, of which a prompt would get a fifth."""
    model = ObservedSteps(is_decoder=True)
    alike(model, 1.0)
    granted = model.within(bounded(0.07), ints([1024, 1, 1]), ints([16, 300, 4145]))
    assert granted is not None
    assert granted[0] < 64, "a prompt grows beyond what was reported, but not as if the rows took seconds"


def surprised(number: int) -> tuple[ObservedSteps, Ints, Ints]:
    """The step of this number took much longer than was said. What was granted for it, and what is next."""
    model = ObservedSteps(is_decoder=True)
    asked = ints([1024, 1]), ints([alike(model, 0.25, number), 302])
    first = model.within(bounded(0.3), *asked)
    assert first is not None
    model.ordered(step(number, first, asked[1]))
    model.reported(number, 0.2 + 0.02 * int(first[0]))
    again = model.within(bounded(0.3), *asked)
    assert again is not None
    return model, first, again


@pytest.mark.parametrize("number", [72, 79], ids=["between two fits", "the last before a fit"])
def test_prompts_after_a_surprise_are_cut_at_once(number: int) -> None:
    _, first, again = surprised(number)
    assert first[0] > 60
    assert 0.2 + 0.02 * int(again[0]) < 0.4, "the fit alone would grant as much again"


def test_one_surprise_between_two_fits_has_no_lasting_effect() -> None:
    model, _, again = surprised(72)
    model.ordered(step(73, again, ints([4032, 302])))
    model.reported(73, 0.23)
    after = model.within(bounded(0.3), ints([1024, 1]), ints([4032, 303]))
    assert after is not None
    assert after[0] > 2 * again[0]


def test_steps_without_a_prompt_do_not_tell_what_one_costs_at_least() -> None:
    """A step takes 4 ms, one with a prompt 60 ms more, and each token 0.2 ms. Were it said that a short piece
    takes as long as the rows alone, each token of it would seem dear, and the next piece would be shorter."""
    model = ObservedSteps(is_decoder=True)
    start = 0
    for number in range(0, 200, 2):
        model.ordered(step(number, ints([1, 1]), ints([4000, number])))
        model.reported(number, 0.0044)
        counts = model.within(bounded(0.05), ints([1, 9000]), ints([number, start]))
        assert counts is not None
        counts = counts if number else ints([1, 500])
        model.ordered(step(number + 1, counts, ints([number, start])))
        model.reported(number + 1, 0.064 + 2e-4 * int(counts.sum()))
        start += int(counts[1])
    assert start > 100 * 50, "a fifth of each step is 16 ms"


def test_what_is_said_does_not_depend_on_when_it_is_asked() -> None:
    asked, left_alone = ObservedSteps(is_decoder=True), ObservedSteps(is_decoder=True)
    for first in range(0, 300, 10):
        run(asked, first, 10)
        asked.seconds(ints([1]), ints([5]))
        run(left_alone, first, 10)
    some = ints([1, 1, 30]), ints([7, 900, 0])
    assert asked.seconds(*some) == left_alone.seconds(*some)


def test_what_is_granted_does_not_depend_on_how_often_it_is_asked() -> None:
    asked, left_alone = ObservedSteps(is_decoder=True), ObservedSteps(is_decoder=True)
    wanted = ints([1, 1, 900]), ints([7, 900, 0])
    granted: list[int] = []
    for number in range(200):
        for model in (asked, left_alone):
            run(model, number, 1, factor=3.0 if number % 7 == 0 else 1.0)
        found = asked.within(bounded(0.02), *wanted)
        again = asked.within(bounded(0.02), *wanted)
        assert found is not None
        assert again is not None
        assert again.tolist() == found.tolist()
        if number % 9 == 0:
            alone = left_alone.within(bounded(0.02), *wanted)
            assert alone is not None
            assert alone.tolist() == found.tolist()
        granted.append(int(found[2]))
    assert len(set(granted)) > 20


def test_the_newest_step_with_prompts_is_looked_at_once_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    model, num_looks = ObservedSteps(is_decoder=True), 0
    run(model, 0, 100)
    looked = model._surprise_s

    def counted() -> float:
        nonlocal num_looks
        num_looks += 1
        return looked()

    monkeypatch.setattr(model, "_surprise_s", counted)
    for number in range(100, 104):
        for _ in range(5):
            model.within(bounded(0.02), ints([1, 900]), ints([7, 0]))
        model.ordered(step(number, ints([1]), ints([7])))
        model.reported(number, 0.005)
    assert num_looks == 4


def test_copies_have_a_rate_of_their_own_each_way() -> None:
    copies = ObservedCopies()
    for seconds in (0.4, 0.2, 9.0, nan):
        copies.reported("t", "kv", "host", 4, seconds)
    assert isnan(copies.seconds("t", "kv", "device", 1))
    assert copies.seconds("t", "kv", "host", 10) == pytest.approx(1.0), "the median of a block's seconds"


def test_rows_count_for_the_layers_that_they_are_in_the_step_for() -> None:
    """Of four rows, one leaves before layer 3 of 12, one goes on from there, one does both."""
    counts, starts = ints([1, 1, 1, 1]), ints([9, 19, 29, 39])
    whole = step(0, counts, starts)
    pieces = msgspec.structs.replace(
        whole, leaves_at=(ints([1, 3]), ints([3, 6])), enters_at=(ints([2, 3]), ints([3, 3]))
    )
    found = ar_features(pieces, layers=12)
    assert found.num_tokens == pytest.approx(1 + 0.25 + 0.75 + 0.25)
    assert found.decode_rows == pytest.approx(2.25)
    assert found.decode_load == pytest.approx(10 + 20 / 4 + 30 * 0.75 + 40 / 4)
    assert ar_features(pieces) == ar_features(whole), "how many layers there are is not known"
