"""A pool of equal slots, with a queue of freed ones that a step in flight may still touch."""

from __future__ import annotations

from collections import deque

ABSENT = -1
"""The slot of a block in a group that does not hold it."""


class OutOfBlocks(Exception):
    """More slots were asked for than are free: the caller did not check first."""


class BlockPool:
    """Hands out slots [0, num_blocks). The order depends on the calls alone, so that replays allocate alike.
    First in, first out; with `ready`, the slot that was freed last comes first, and new ones last."""

    def __init__(self, num_blocks: int, ready: int | None = None) -> None:
        """ready: so many slots, the first ones, may be used at once; the others make the memory that is used
        grow. None: none does."""
        self.num_blocks = num_blocks
        self._reached = num_blocks if ready is None else min(ready, num_blocks)
        """Slots below it are ready, or were handed out once."""
        self._reuses = ready is not None
        self._free = deque(range(num_blocks))
        self._pending: deque[tuple[int, list[int]]] = deque()
        self.num_pending_free = 0
        """Freed, and named by a step in flight."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_ready(self) -> int:
        """Free slots that take no more memory than is used, or may be used at once."""
        return len(self._free) - (self.num_blocks - self._reached)

    @property
    def in_use(self) -> float:
        """Share of the slots that are held, 0 to 1."""
        return 1.0 - (len(self._free) + self.num_pending_free) / self.num_blocks

    def allocate(self, count: int) -> list[int]:
        """Raises OutOfBlocks where fewer are free."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        take = self._free.popleft
        slots = [take() for _ in range(count)]
        if self._reuses:
            self._reached = max(self._reached, max(slots, default=0) + 1)
        return slots

    def release(self, slots: list[int], after_step: int | None) -> None:
        """Give slots back; they are reused once `after_step` is settled (at once if None)."""
        if after_step is None:
            self._put_back(slots)
        elif slots:
            self._pending.append((after_step, slots))
            self.num_pending_free += len(slots)

    def settle(self, step: int) -> None:
        """Every step up to `step` is done: free what waited for it."""
        while self._pending and self._pending[0][0] <= step:
            slots = self._pending.popleft()[1]
            self._put_back(slots)
            self.num_pending_free -= len(slots)

    def _put_back(self, slots: list[int]) -> None:
        if self._reuses:
            self._free.extendleft(reversed(slots))
        else:
            self._free.extend(slots)

    def check_integrity(self, held: list[int]) -> None:
        """Each slot is in exactly one place: free, pending, or in `held`."""
        pending = sum(len(slots) for _, slots in self._pending)
        assert self.num_pending_free == pending, "blocks that come back are miscounted"
        everywhere = [*self._free, *(b for _, slots in self._pending for b in slots), *held]
        assert sorted(everywhere) == list(range(self.num_blocks)), "a block is lost or doubled"
