"""Whether a datasheet's devices hold the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.core.errors import ConfigError
from antiphon.latency.finding import RELEASED, find_costs
from antiphon.latency.profile import Profile, Provenance
from antiphon.latency.roofline import roofline
from antiphon.latency.shapes import find_shape, shape_names
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.sizes import Sizes

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


def text(device: str, name: str, ranks: int | None = None, sizes: Sizes = Sizes()) -> SimEngine:
    return engine_of(find_costs(device, find_shape(name), ranks), sizes=sizes)


def test_kv_of_a_text_model_is_what_its_weights_and_work_leave_by_hand() -> None:
    """Llama-3-8B on 23.5 GiB: 8,029,995,008 weights of two bytes, four activations of a layer, its queries,
    keys, values and MLP over 2048 tokens, three copies of 64 rows' logits; 128 KiB a token of the rest."""
    work = 2048 * (4 * 4096 + (32 + 8) * 2 * 128 + 3 * 14336) * 2 + 3 * 64 * 128_256 * 4
    left = 23.5 * 2**30 - 2 * 8_029_995_008 - work
    config = text("4090", "llama-3-8b").node.ar["thinker"]
    assert config.num_blocks == int(left / (16 * 128 * 1024)) == 4191
    assert text("h200", "llama-3-8b").node.ar["thinker"].num_blocks * 16 == 262_144, "the usual most"


def test_a_context_is_as_long_as_the_model_was_made_for_and_as_its_kv() -> None:
    contexts = {
        name: text("h200", name).node.ar["thinker"].max_context_tokens
        for name in shape_names()
        if "omni" not in name
    }
    assert contexts == {
        "llama-2-13b": 4096,
        "llama-2-70b": 4096,
        "llama-3-8b": 8192,
        "llama-3.1-8b": 131_072,
        "qwen2-7b": 32_768,
        "qwen2.5-32b": 32_768,
        "yi-34b": 4096,
    }
    short = text("4090", "llama-3.1-8b").node.ar["thinker"]
    assert short.max_context_tokens == short.num_blocks * 16 < 131_072
    asked = text("h200", "llama-3-8b", sizes=Sizes(max_context_tokens=16_384))
    assert asked.node.ar["thinker"].max_context_tokens == 16_384


def test_two_a100_hold_what_one_does_not() -> None:
    """Llama-2-70B is 128.5 GiB; of two devices each has half of it, and four of the eight KV heads."""
    with pytest.raises(ConfigError, match=r"thinker needs 130.*one has 79.*\(--tensor-parallel 2\)"):
        text("a100", "llama-2-70b")
    work = 2048 * (4 * 8192 + (64 + 8) * 2 * 128 + 3 * 28672) * 2 + 3 * 64 * 32_000 * 4
    left = 79 * 2**30 - (2 * 68_975_329_280 + work) / 2
    config = text("a100", "llama-2-70b", 2).node.ar["thinker"]
    assert config.num_blocks == int(left / (16 * 160 * 1024)) == 5934


def test_a_context_is_shortened_to_what_fits_unless_somebody_says_how_long_it_is() -> None:
    """An H200 has room for 32,688 tokens beside Llama-2-70B."""
    assert text("h200", "llama-2-70b").node.ar["thinker"].num_blocks * 16 == 32_688
    with pytest.raises(ConfigError, match=r"device thinker needs 139.* has 139.0 GiB"):
        text("h200", "llama-2-70b", sizes=Sizes(max_context_tokens=32_768))


def test_what_no_number_of_devices_holds_is_said() -> None:
    with pytest.raises(ConfigError, match="another model: devices that share its decoders do not hold it"):
        text("4090", "llama-2-70b", 4, Sizes(kv_tokens=1 << 20))


def test_a_profile_says_itself_of_which_model_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(find_costs("a6000", find_shape("qwen2-7b")).to_json())
    assert engine_of(find_costs(str(path))) == text("a6000", "qwen2-7b")
    with pytest.raises(ConfigError, match="is a profile, which says itself of which model it is"):
        find_costs(str(path), find_shape("qwen2-7b"))
    with pytest.raises(ConfigError, match="how many devices share its decoders"):
        find_costs(str(path), ranks=2)
