"""A pool of equal blocks, with a limbo for blocks that a step in flight may still touch."""

from __future__ import annotations

from collections import deque


class OutOfBlocks(Exception):
    """More blocks were asked for than are free: the caller did not check first."""


class BlockPool:
    """Hands out block ids [0, num_blocks). First in, first out, so that replays allocate alike."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._limbo: deque[tuple[int, list[int]]] = deque()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_limbo(self) -> int:
        return sum(len(blocks) for _, blocks in self._limbo)

    def allocate(self, count: int) -> list[int]:
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        take = self._free.popleft
        return [take() for _ in range(count)]

    def release(self, blocks: list[int], after_step: int | None) -> None:
        """Give blocks back; they are reused once `after_step` is settled (at once if None)."""
        if after_step is None:
            self._free.extend(blocks)
        elif blocks:
            self._limbo.append((after_step, blocks))

    def settle(self, step: int) -> None:
        """Every step up to `step` is done: free what waited for it."""
        while self._limbo and self._limbo[0][0] <= step:
            self._free.extend(self._limbo.popleft()[1])

    def check_integrity(self, held: list[int]) -> None:
        """Each block is in exactly one place: free, in limbo, or in `held`."""
        everywhere = [*self._free, *(b for _, blocks in self._limbo for b in blocks), *held]
        assert sorted(everywhere) == list(range(self.num_blocks)), "a block is lost or doubled"
