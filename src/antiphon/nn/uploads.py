"""What the host knows, put on the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any] | Sequence[Any], device: torch.device | str) -> Tensor:
    """Arrays or (nested) lists of numbers -> a tensor on `device`, of their type; on a CPU it is the array's
    own memory.

    A copy from ordinary memory to CUDA waits until the device has done all that it was asked before; one from
    pinned memory is only queued. torch keeps that memory until the copy has read it.
    """
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values)
    if torch.device(device).type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
