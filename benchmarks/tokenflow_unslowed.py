"""For benchmarks/tokenflow.py: the preset's policy, but for what agents give up to readers (§8)."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Mask, StepView
from antiphon.policy.token_buffer import TokenBuffer


class Unslowed(TokenBuffer):
    """Agents run on while readers beside them run dry."""

    name = "token-buffer-unslowed"

    def _throttled(self, view: StepView) -> Mask:
        return np.zeros(view.num_rows, np.bool_)
