"""What a device policy is told of its units."""

from __future__ import annotations

from antiphon.assembly.devices import UnitHead
from stage.test_step_time import Stages, request, talking


def test_a_step_takes_as_long_as_what_it_is_granted() -> None:
    stages = Stages()
    stage = stages.add()
    talking(stages, stage)
    stage.submit(request(2, 1500))
    assert 0.18 < UnitHead(stage, 0, 0.0).step_s <= 0.2, "a prompt is cut for the reply beside it"
