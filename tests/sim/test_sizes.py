"""Sizes that an operator chooses: what each comes to in blocks, and in bytes of a block."""

from __future__ import annotations

import pytest

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.latency.finding import find_costs
from antiphon.sim.model import engine_of
from antiphon.sim.sizes import ROOMY, Sizes, roomy, sized

KIB = 1024
TOKEN_BYTES = {"thinker": 96 * KIB, "talker": 20 * KIB}
"""Qwen3-Omni: 48 layers x 2 x 4 x 128 x 2 bytes, and 20 x 2 x 2 x 128 x 2."""


def test_what_is_not_chosen_stays() -> None:
    config = ArConfig(max_rows=3, num_blocks=100, step_tokens=77, host_blocks=5, max_context_tokens=64)
    assert sized(config, Sizes(), None, is_entry=True) == config
    assert Sizes(max_rows=2).over(Sizes(max_rows=9, depth=1)) == Sizes(max_rows=2, depth=1)


def test_tokens_are_counted_in_whole_blocks_on_both_tiers() -> None:
    sizes = Sizes(kv_tokens=1030, host_kv_tokens=5000, block_size=32, step_tokens=512)
    found = sized(ArConfig(host_blocks=3), sizes, None, is_entry=True)
    assert (found.block_size, found.num_blocks, found.host_blocks, found.step_tokens) == (32, 32, 156, 512)
    kept = sized(ArConfig(num_blocks=10, host_blocks=3), Sizes(block_size=8), None, is_entry=True)
    assert (kept.num_blocks, kept.host_blocks) == (20, 6), "as many tokens as before"
    assert sized(ArConfig(host_blocks=3), Sizes(host_kv_tokens=0), None, is_entry=True).host_blocks == 0


def test_only_who_reads_the_prompt_has_a_context_of_its_own() -> None:
    sizes = Sizes(max_context_tokens=500)
    assert sized(ArConfig(), sizes, None, is_entry=True).max_context_tokens == 500
    assert sized(ArConfig(), sizes, None, is_entry=False).max_context_tokens is None


def test_a_context_is_never_larger_than_the_kv_unless_somebody_says_so() -> None:
    assert roomy(Sizes(kv_tokens=1000)).max_context_tokens == 992
    assert roomy(Sizes()).max_context_tokens == ROOMY.max_context_tokens
    with pytest.raises(ConfigError, match=r"kv_tokens \(992\) must hold at least one context .*2000"):
        sized(ArConfig(), roomy(Sizes(kv_tokens=1000, max_context_tokens=2000)), None, is_entry=True)


@pytest.mark.parametrize("name", ["max_rows", "kv_tokens", "step_tokens", "block_size", "layer_groups"])
def test_sizes_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be 1 or more"):
        Sizes(**{name: 0})
    with pytest.raises(ConfigError, match="host_kv_tokens is -1; it must be 0 or more"):
        Sizes(host_kv_tokens=-1)


def test_a_block_has_as_many_bytes_as_its_tokens() -> None:
    engine = engine_of(find_costs("h200"), sizes=Sizes(block_size=64, kv_tokens=65_536))
    assert engine.block_bytes == {
        ("thinker", "kv"): 64 * TOKEN_BYTES["thinker"],
        ("thinker", "hidden"): 64 * 2048 * 2,
        ("talker", "kv"): 64 * TOKEN_BYTES["talker"],
    }


def test_groups_of_layers_share_the_bytes_by_their_layers() -> None:
    """Twenty layers in three groups: 7, 6 and 7 of them."""
    engine = engine_of(find_costs("h200"), sizes=Sizes(layer_groups=3))
    assert engine.node.ar["talker"].layer_groups == (
        ("layers-0", 0, 7),
        ("layers-7", 7, 13),
        ("layers-13", 13, 20),
    )
    layer = 16 * TOKEN_BYTES["talker"] // 20
    found = {group: size for (stage, group), size in engine.block_bytes.items() if stage == "talker"}
    assert found == {"layers-0": 7 * layer, "layers-7": 6 * layer, "layers-13": 7 * layer}
    thinker = {group: size for (stage, group), size in engine.block_bytes.items() if stage == "thinker"}
    assert thinker == {f"layers-{16 * i}": 256 * TOKEN_BYTES["thinker"] // 48 for i in range(3)} | {
        "hidden": 16 * 2048 * 2
    }
    again = engine_of(find_costs("h200"), sizes=Sizes(layer_groups=1))
    assert again.block_bytes == engine_of(find_costs("h200")).block_bytes
