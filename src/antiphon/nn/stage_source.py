"""What a stage of a model is made of, and where it is to be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antiphon.core.quantised import Quantised

Pairs = Iterable[tuple[str, Tensor | Quantised]]
"""Weights by name."""
Place = tuple[torch.device, torch.dtype]


@dataclass(frozen=True, slots=True)
class StageSource:
    """What a stage is made of.

    tensors  of its weights, in any order and of any float type
    config   the family's own type, of the whole model
    """

    stage: str
    tensors: Pairs
    config: Any
