"""What a device policy is told of its units, and prompts that these left out for those beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from antiphon.assembly.devices import Device, UnitHead
from antiphon.policy.base import Tier
from antiphon.policy.most_urgent import MostUrgent
from antiphon.stage.ar import ArScheduler
from stage.test_step_time import Linear, Stages, begun, listened_to, request, stepped, talking


def test_a_step_takes_as_long_as_what_it_is_granted() -> None:
    stages = Stages()
    stage = stages.add()
    talking(stages, stage)
    stage.submit(request(2, 1500))
    assert 0.18 < UnitHead(stage, 0, 0.0).step_s <= 0.2, "a prompt is cut for the reply beside it"


def crowded(*names: str) -> tuple[Stages, list[ArScheduler]]:
    """Somebody listens without a lead, and each unit has read a piece of a long prompt at 1.0."""
    stages = Stages(cost=Linear(prompt_s=0.04))
    units = [stages.add(name) for name in names]
    listened_to(stages, dry_at=1.0)
    for unit in units:
        unit.submit(request(2, 1500, tier=Tier.PREPARATORY))
        assert stepped(unit, 0, 1.0).counts[0] > 120
    return stages, units


def device(units: list[ArScheduler], words: Any = None) -> Device:
    by_name = {unit.name: unit for unit in units}
    found: Any = SimpleNamespace(find=by_name.__getitem__, is_entry=lambda name: False)
    return Device(found, tuple(by_name), MostUrgent(), 1, words)


def test_one_unit_reads_its_prompt_where_nothing_else_runs_and_the_others_wait_for_their_share() -> None:
    _, units = crowded("writer", "thinker")
    one = device(units)
    first = one.plan(1, 1.3)
    assert first is not None
    assert first.stage == "writer"
    assert one.plan(2, 1.3) is None
    assert [unit.steps.left_out for unit in units] == [True, True]


def test_what_only_shows_words_so_far_is_read_too_where_nothing_else_runs() -> None:
    _, units = crowded("writer")
    words = SimpleNamespace(is_writing=True, spare_s=lambda now, is_idle: 9.0)
    assert device(units, words).plan(1, 1.3) is not None


def test_nobody_joins_early_beside_a_step_where_prompts_have_had_their_share() -> None:
    stages, units = crowded("writer")
    talker = stages.add("talker")
    talking(stages, talker, slot=begun(stages))
    one = device([*units, talker])
    joined: list[int] = []
    units[0].join_early = lambda step, now: joined.append(step)
    assert one.plan(1, 1.3) is not None, "the talker's"
    assert one.plan(2, 1.3) is not None
    talker.abort(1)
    one.reopen()
    assert one.plan(3, 1.3) is None
    talker._flights.pop(2)
    one.reopen()
    assert one.plan(4, 1.3) is None
    assert units[0].steps.left_out
    assert joined == []
