"""KV that one unit lends to another, where the request goes on that computed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.kv.sequences import Block


@dataclass(slots=True, eq=False)
class Loan:
    """Blocks of `source` that `target` may copy. Nobody gets them before the loan is returned.

    num_tokens  leading positions of the request that they hold
    is_void     the source is gone, and the blocks with it
    """

    source: str
    target: str
    blocks: Sequence[Block]
    num_tokens: int
    is_void: bool = False
