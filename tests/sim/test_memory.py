"""Whether a datasheet's devices hold the engine."""

from __future__ import annotations

import pytest

from antiphon.core.errors import ConfigError
from antiphon.latency.profile import Profile, Provenance
from antiphon.latency.roofline import roofline
from antiphon.latency.shapes import find_shape
from antiphon.sim.costs import RELEASED, find_costs
from antiphon.sim.model import Sizes, engine_of

MOST_KV = Sizes(kv_tokens=262_144)


def shared_by(ranks: int) -> Profile:
    return roofline("RTX-4090", find_shape(RELEASED), Provenance(), ranks=ranks)


def test_a_device_holds_the_engine_or_it_is_said_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"thinker needs 63.* \(encoders .*, thinker 60.*has 23.5 GiB"):
        engine_of(find_costs("RTX-4090"))
    with pytest.raises(ConfigError, match=r"thinker needs 85.* has 79.0 GiB"):
        engine_of(find_costs("h100"), sizes=MOST_KV)


def test_where_nobody_says_there_is_as_much_kv_as_there_is_room_for() -> None:
    """By hand: 100 KiB a token, of which 25 GiB would be 6.2 more than an H100 has."""
    assert engine_of(find_costs("h200"), sizes=MOST_KV) == engine_of(find_costs("h200"))
    thinker = engine_of(find_costs("h100")).node.ar["thinker"]
    assert thinker.num_blocks * 16 * 100 / 2**20 == pytest.approx(25 - 6.2, abs=0.1)
    assert thinker.max_context_tokens == 32_768


def test_decoders_that_devices_share_take_a_part_of_each() -> None:
    engine_of(Profile.from_json(shared_by(4).to_json()))
    with pytest.raises(ConfigError, match=r"has 23.5 GiB"):
        engine_of(shared_by(2))


def test_a_host_s_own_memory_is_not_judged() -> None:
    assert engine_of(find_costs("cpu-2core"), sizes=MOST_KV) == engine_of(find_costs("cpu-2core"))
