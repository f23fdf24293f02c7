"""A stand-in for CUDA graphs where there is no GPU: replays by calling the function on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon.nn.graphs import Captured, Outputs

WAITS = {"_local_scalar_dense", "bincount", "equal", "lift_fresh", "masked_select", "nonzero", "unique2"}
"""Operators for which the host has to know a value on the device, or the device one on the host."""


class Uncapturable(TorchDispatchMode):
    """Refuses what a CUDA graph could not capture."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name.startswith("index") and any(_is_mask(part) for part in args[1:2])
        assert not masks, f"{name} by a mask waits for the device"
        assert name not in WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


def _is_mask(indices: Any) -> bool:
    parts = indices if isinstance(indices, list | tuple) else [indices]
    return any(isinstance(part, torch.Tensor) and part.dtype is torch.bool for part in parts)


class Recorder:
    """Implements `nn.graphs.Capture`, and keeps its promise no better than it must: outputs stay where they
    are and hold nonsense until the first replay. Counts captures and replays."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Callable[[], Outputs]) -> Captured:
        self.captures += 1
        with Uncapturable():
            outputs = tuple(output.clone() for output in work())
        for output in outputs:
            output.fill_(torch.nan if output.is_floating_point() else 10**9)

        def replay() -> None:
            self.replays += 1
            for output, value in zip(outputs, work(), strict=True):
                output.copy_(value)

        return Captured(replay, outputs)
