"""Named random streams. The noise of sampling is not drawn from one: see `nn.noise`."""

from __future__ import annotations

import numpy as np

from antiphon.core.ids import content_key


def stream(seed: int, *names: str) -> np.random.Generator:
    """A named random stream: the same seed and names give the same numbers, whatever other streams draw."""
    return np.random.Generator(np.random.PCG64([seed, *(content_key(name.encode()) for name in names)]))
