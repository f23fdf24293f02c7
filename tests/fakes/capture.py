"""A stand-in for CUDA graphs where there is no GPU: replays by calling the function on the same tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from antiphon.nn.graphs import Captured, Outputs


class Recorder:
    """Implements `nn.graphs.Capture`, and keeps its promise no better than it must: outputs stay where they
    are and hold nonsense until the first replay. Counts captures and replays."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, work: Callable[[], Outputs]) -> Captured:
        self.captures += 1
        outputs = tuple(output.clone() for output in work())
        for output in outputs:
            output.fill_(torch.nan if output.is_floating_point() else 10**9)

        def replay() -> None:
            self.replays += 1
            for output, value in zip(outputs, work(), strict=True):
                output.copy_(value)

        return Captured(replay, outputs)
