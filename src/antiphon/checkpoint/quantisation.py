"""Quantised safetensors: which are read, and how int8 weights with their scales become blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.core.errors import CheckpointError
from antiphon.core.quantised import Groups, Quantised, eight_bits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

SCALE, ZERO_POINT, ORDER = "_scale", "_zero_point", "_g_idx"
"""What a weight's name goes on with: of its scales, of what is subtracted first, of the inputs' order."""
UNREAD = ("F8", "F6", "F4", "U8", "I4", "U4")
"""What names of dtypes begin with in which weights are quantised, and not read."""

READ = (
    "Read are int8 weights with `weight_scale` (compressed-tensors, int-quantized, symmetric) and GGUF files "
    "in Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K. Use one of these, or the checkpoint before it was "
    "quantised"
)


def check_scheme(file: Path, config: Mapping[str, Any], *, takes_media: bool) -> None:
    """Raises CheckpointError for a config.json whose weights are quantised otherwise than is read, on any
    device, or that has more than a text model's."""
    told = config.get("quantization_config") or config.get("compression_config")
    if not told:
        return
    told = told if isinstance(told, dict) else {"quant_method": told}
    method = told.get("quant_method")
    if takes_media:
        raise CheckpointError(
            f"{file}: weights quantised by {method!r:.40} are read of text models alone. Use the checkpoint "
            "before it was quantised"
        )
    if method != "compressed-tensors":
        raise CheckpointError(f"{file}: weights quantised by {method!r:.40} are not read. {READ}")
    layout, groups = told.get("format"), told.get("config_groups")
    described = list(groups.values()) if isinstance(groups, dict) else []
    weights = [group.get("weights") if isinstance(group, dict) else None for group in described]
    plain = {"type": "int", "num_bits": 8, "symmetric": True}
    is_plain = all(
        isinstance(weight, dict)
        and all(weight.get(key) == value for key, value in plain.items())
        and not weight.get("actorder")
        for weight in weights
    )
    if layout != "int-quantized" or not weights or not is_plain:
        raise CheckpointError(
            f"{file}: compressed-tensors of this kind ({layout!r:.40}) are not read. {READ}"
        )


def in_blocks(name: str, weight: torch.Tensor, scale: torch.Tensor) -> Quantised:
    """int8 [out, in] and its scales: one, [out], [out, 1] or [out, n] of any float type, for n groups of
    neighbouring inputs. Raises CheckpointError for other shapes, and scales that are no finite numbers."""
    if weight.dim() != 2 or not weight.numel():
        raise CheckpointError(f"{name} is int8 of shape {list(weight.shape)}; only matrices are read in int8")
    (rows, inputs), scales = weight.shape, scale.float().numpy()
    if scales.size == 1:
        scales = np.full((rows, 1), scales.reshape(()), np.float32)
    scales = scales.reshape(-1, 1) if scales.ndim == 1 else scales
    if scales.ndim != 2 or len(scales) != rows or not scales.size or inputs % scales.shape[1]:
        raise CheckpointError(
            f"{name}{SCALE} is {list(scale.shape)}, which does not fit {list(weight.shape)}: one, "
            f"[{rows}], [{rows}, 1] or [{rows}, n] does"
        )
    if not np.isfinite(scales).all():
        raise CheckpointError(f"{name}{SCALE} holds numbers that are not finite. Fetch the file again")
    quants = weight.numpy().reshape(rows, scales.shape[1], -1)
    return eight_bits(Groups(scales, np.zeros_like(scales), quants), inputs)
