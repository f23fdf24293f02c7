"""KV that one unit leases to another, where the request that computed it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.core.facts import Ints


@dataclass(slots=True, eq=False)
class KvLease:
    """Blocks of `source` that `target` may copy. They are not handed out before the lease is returned.

    blocks      as `source` numbers them; `slots` int64 [groups, n] says where they are
    num_tokens  leading positions of the request that they hold
    is_void     the source is gone, and the blocks with it
    """

    source: str
    target: str
    blocks: Sequence[int]
    slots: Ints
    num_tokens: int
    is_void: bool = False
