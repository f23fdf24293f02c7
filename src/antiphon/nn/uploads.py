"""What the host knows, put on the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any] | Tensor | Sequence[Any], device: torch.device | str) -> Tensor:
    """Arrays, tensors or (nested) lists of numbers on the host -> a tensor on `device`, of their type; on a
    CPU arrays and tensors are not copied.

    A copy from ordinary memory to CUDA waits until the device has done all that it was asked before; one from
    pinned memory is only queued. torch keeps that memory until the copy has read it.
    """
    if isinstance(values, np.ndarray):
        host = torch.from_numpy(values)
    else:
        host = values if isinstance(values, Tensor) else torch.tensor(values)
    if torch.device(device).type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
