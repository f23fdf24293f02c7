"""Rotary positions: plain (one position a token) and M-RoPE (time, height, width a token).

Cosine and sine are computed once a step in fp32 and shared by all layers. Which of the three position rows
turns a frequency is fixed by the frequency's index, so the rows are picked before the cosine and not mixed
after it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_frequencies(head_dim: int, theta: float, device: torch.device | str | None = None) -> Tensor:
    """fp32 [head_dim / 2]. Computed on the CPU, as the reference does, then moved."""
    return (1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))).to(device)


def scaled(inverse: Tensor, scaling: tuple[float, float, float, int]) -> Tensor:
    """Frequencies as Llama 3 scales them for contexts longer than `original` positions: slow ones are divided
    by `factor`, fast ones kept, and those between are mixed. `scaling`: factor, low, high, original.
    """
    factor, low, high, original = scaling
    turns = original / (2 * math.pi / inverse)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * inverse / factor + share * inverse


def position_rows(
    head_dim: int,
    section: tuple[int, int, int],
    device: torch.device | str | None = None,
    *,
    interleaved: bool = True,
) -> Tensor:
    """int64 [head_dim / 2]: the row (0 time, 1 height, 2 width) that turns each frequency. Not interleaved,
    each row turns a run of frequencies as long as its section.
    """
    if not interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(section)).to(device)
    rows = torch.zeros(head_dim // 2, dtype=torch.int64)
    for row in (1, 2):
        rows[row : section[row] * 3 : 3] = row
    return rows.to(device)


KEPT_POSITIONS = 1 << 15
"""Positions whose cosines and sines are kept at most, where they are kept."""


class Rope:
    """The tables one decoder needs to turn positions into cosines and sines.

    On a CPU those of plain positions are kept: at a few tokens a step the operators that make them take
    longer than the smaller loops of the model.
    """

    __slots__ = ("_kept", "inverse", "rows")

    def __init__(
        self,
        head_dim: int,
        theta: float,
        section: tuple[int, int, int] | None = None,
        device: torch.device | str | None = None,
        *,
        interleaved: bool = True,
        scaling: tuple[float, float, float, int] | None = None,
    ) -> None:
        """`section` and `interleaved` as in `position_rows`, `scaling` as in `scaled`."""
        inverse = inverse_frequencies(head_dim, theta)
        self.inverse = (inverse if scaling is None else scaled(inverse, scaling)).to(device)
        self.rows = (
            None if section is None else position_rows(head_dim, section, device, interleaved=interleaved)
        )
        self._kept: tuple[Tensor, Tensor] | None = None

    def cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Positions [..., n] (plain, whole numbers) or [3, n] (M-RoPE; [n] means three equal rows), any type.

        Returns cos and SIGNED sin, each [..., n, head_dim] in `dtype`: the first half of the sine is negated,
        so that `rotate` needs a roll instead of a negation and a concatenation.
        """
        if self.rows is None and positions.dim() == 1 and positions.device.type == "cpu" and len(positions):
            furthest = int(positions.max())
            if furthest < KEPT_POSITIONS:
                cos, sin = self._keep(furthest, dtype)
                places = positions.long()
                return cos.index_select(0, places), sin.index_select(0, places)
        positions = positions.float()
        if self.rows is not None and positions.dim() == 2:
            angles = positions[self.rows].t() * self.inverse
        else:
            angles = positions[..., None] * self.inverse
        return _turned_by(angles, dtype)

    def _keep(self, furthest: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cos and signed sin of all plain positions up to the furthest, and of some beyond."""
        kept = self._kept
        if kept is None or furthest >= len(kept[0]) or kept[0].dtype is not dtype:
            with torch.inference_mode(False):  # so that inference without it may use them as well
                places = torch.arange(max(1024, 1 << furthest.bit_length()), dtype=torch.float)
                kept = self._kept = _turned_by(places[:, None] * self.inverse, dtype)
        return kept


def _turned_by(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Angles fp32 [..., n, head_dim / 2] -> cos and signed sin, [..., n, head_dim] in dtype."""
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., n, heads, d] turned by cos and signed sin [..., n, d] (half-split layout)."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos.unsqueeze(-2), swapped, sin.unsqueeze(-2))
