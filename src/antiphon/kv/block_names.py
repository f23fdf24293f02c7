"""Which blocks hold which content, by name: the hash of all positions up to a block's end."""

from __future__ import annotations

from collections.abc import Set


class BlockNames:
    """Names of full blocks, and the blocks of each name: content may be resident twice."""

    def __init__(self, size: int) -> None:
        self._name: list[bytes | None] = [None] * size
        self._first: dict[bytes, int] = {}
        """Blocks by name: the first of each name; `_twins`: the others."""
        self._twins: dict[bytes, list[int]] = {}

    def of(self, block: int) -> bytes | None:
        """None unless it is full and its content known."""
        return self._name[block]

    def find(self, name: bytes) -> int | None:
        """The first block of this name."""
        return self._first.get(name)

    def find_all(self, name: bytes) -> tuple[int, ...]:
        """Every block of this name."""
        first = self._first.get(name)
        return () if first is None else (first, *self._twins.get(name, ()))

    def add(self, blocks: list[int], names: list[bytes]) -> None:
        """These blocks hold what these names say. A block that has a name keeps it."""
        for block, name in zip(blocks, names, strict=True):
            if self._name[block] is None:
                self._name[block] = name
                if self._first.setdefault(name, block) != block:
                    self._twins.setdefault(name, []).append(block)

    def remove(self, blocks: list[int]) -> None:
        """The content of these blocks is not known any more."""
        names, first, twins = self._name, self._first, self._twins
        for block in blocks:
            name = names[block]
            if name is None:
                continue
            names[block] = None
            if not twins or name not in twins:
                del first[name]
                continue
            others = twins[name]
            if first[name] == block:
                first[name] = others.pop(0)
            else:
                others.remove(block)
            if not others:
                del twins[name]

    def check_integrity(self, resident: Set[int]) -> None:
        """Raises AssertionError unless the index says what the blocks do, and only these have names."""
        named = {block: name for block, name in enumerate(self._name) if name is not None}
        found = {block: name for name, block in self._first.items()}
        assert self._twins.keys() <= self._first.keys(), "a twin has no first"
        assert all(self._twins.values()), "a name has no twins"
        found |= {block: name for name, blocks in self._twins.items() for block in blocks}
        assert found == named, "the index of resident blocks is wrong"
        assert named.keys() <= resident, "a free block has a name"
