"""What a config.json may say of a decoder."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.core.errors import CheckpointError
from antiphon.models.decoder_config import DecoderConfig

GOOD: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize("layers", [0, -1, 10**9])
def test_layers_that_no_decoder_has_are_refused_before_anything_is_made(layers: int) -> None:
    with pytest.raises(CheckpointError, match=f"{layers} layers, but a decoder has 1 to 1000"):
        DecoderConfig.from_hf(GOOD | {"num_hidden_layers": layers})


def test_heads_are_shared_evenly() -> None:
    with pytest.raises(CheckpointError, match="4 heads are not a multiple of 3"):
        DecoderConfig.from_hf(GOOD | {"num_key_value_heads": 3})


def test_what_is_missing_is_named() -> None:
    config = {name: value for name, value in GOOD.items() if name != "intermediate_size"}
    with pytest.raises(CheckpointError, match="decoder has no 'intermediate_size'"):
        DecoderConfig.from_hf(config)
