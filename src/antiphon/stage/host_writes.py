"""What of a decoder stage's KV is copied to the host, and what leaves the host for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from antiphon.kv.host import HostCopy, HostTier
from antiphon.kv.sequences import Evicted
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import CHUNK_BLOCKS, MAX_CHUNKS, Transfer, Transfers
from antiphon.stage.kv_asks import KvAsks, KvMove
from antiphon.stage.tier_views import Owners


class HostWrites:
    """Copies blocks to the host as far as it has room, or the policy makes some."""

    def __init__(
        self, kv: StageKv, host: HostTier, known: Owners, asks: KvAsks, transfers: Transfers
    ) -> None:
        self.num_written_blocks = 0
        self._kv, self._host, self._known = kv, host, known
        self._asks, self._transfers = asks, transfers

    def write_ahead(self, step_s: Callable[[], float]) -> None:
        """Write what will have to leave the device, as the policy chooses: it is asked while the link can
        take something."""
        most = MAX_CHUNKS * CHUNK_BLOCKS - self._transfers.num_blocks["host"]
        if most <= 0:
            return
        selection = self._asks.write(step_s)
        count = min(selection.count, most if selection.displaces else min(most, self._host.num_free))
        if count > 0:
            self.write(self._unwritten(selection.owners, count), KvMove.WRITTEN)

    def write(self, evicted: list[Evicted], move: KvMove) -> None:
        """Copy these lent blocks as far as the host has no copy yet, and room: the front of what was used
        last before all else. What is not copied is taken back at once."""
        if not evicted:
            return
        if not self._host.num_blocks:
            self._kv.blocks.take_back([block for run in reversed(evicted) for block in run.blocks])
            return
        emptied = self._make_host_room(evicted)
        batches: dict[tuple[int, ...] | None, list[tuple[int, HostCopy]]] = {}
        lost: list[int] = []
        for run in reversed(evicted):
            for index, block, name in zip(
                range(run.start, run.start + len(run.blocks)), run.blocks, run.names, strict=True
            ):
                lacking = self._host.lacks(name, run.groups)
                if lacking and self._host.num_free:
                    whole = len(lacking) == len(self._kv.groups)
                    copy = self._host.begin(name, lacking)
                    batches.setdefault(None if whole else lacking, []).append((block, copy))
                else:
                    lost.append(block)
                found = self._host.find(name)
                if found is not None:
                    for owner in run.owners:
                        self._host.hold(owner, index, found)
                        self._asks.rests(owner, "host")
        self._kv.blocks.take_back(lost)
        for groups, written in batches.items():
            self.num_written_blocks += len(written)
            blocks, copies = [block for block, _ in written], [copy for _, copy in written]
            self._transfers.begin(Transfer("host", blocks, copies, groups))
        if self._asks.watch is not None:
            begun = {copy.name for written in batches.values() for _, copy in written}
            copied = Counter[str]()
            for run in evicted:
                copied.update(dict.fromkeys(run.owners, sum(name in begun for name in run.names)))
            self._asks.tell(move, copied)
        self.prune(emptied)

    def _make_host_room(self, evicted: list[Evicted]) -> list[str]:
        """For what of these has no copy, as far as the policy gives up others. Returns the owners that were
        looked at."""
        new, incoming = dict[bytes, None](), Counter[str]()
        for run in evicted:
            names = [name for name in run.names if name not in new and self._host.lacks(name, run.groups)]
            new.update(dict.fromkeys(names))
            incoming.update(dict.fromkeys(run.owners, len(names)))
        if len(new) <= self._host.num_free:
            return []
        view = self._asks.view("host", min(len(new), self._host.num_blocks))
        view.incoming = incoming
        selection = self._asks.evict(view)
        goal = view.num_free + selection.count
        emptied: list[str] = []
        for owner in selection.owners if selection.count else ():
            if (short := goal - view.num_free) <= 0:
                break
            num_held = self._host.num_held(owner)
            self._host.evict(owner, short)
            emptied.append(owner)
            if self._asks.watch is not None:
                dropped = {owner: num_held - self._host.num_held(owner)}
                self._asks.tell(KvMove.DROPPED, dropped, left=view)
        return emptied

    def _unwritten(self, owners: Iterable[str], count: int) -> list[Evicted]:
        """Full blocks that are there and that the host has no copy of, so many at most, the first first;
        lent."""
        found: dict[bytes, Evicted] = {}
        for owner in owners:
            if len(found) >= count:
                break
            sequence = self._known.running.get(owner) or self._kv.resting.get(owner)
            if sequence is None:
                continue
            names = sequence.filled
            for index in range(self._known.num_copied(owner, names, self._host), len(names)):
                if len(found) >= count:
                    break
                name = names[index]
                lacking = self._host.lacks(name)
                if name not in found and lacking:
                    groups = None if len(lacking) == len(self._kv.groups) else lacking
                    found[name] = Evicted((owner,), index, [sequence.blocks[index]], [name], groups)
        self._kv.blocks.lend([block for run in found.values() for block in run.blocks])
        return [*reversed(found.values())]

    def prune(self, owners: Iterable[str]) -> None:
        """Forget owners that have nothing anywhere, and for which no request waits."""
        for owner in dict.fromkeys(owners):
            if owner in self._known.waiting:
                continue
            sequence = self._kv.resting.get(owner)
            if sequence is not None and not sequence.blocks and not self._host.num_held(owner):
                self._kv.resting.drop(owner, None)
                self._host.forget(owner)
                self._known.forget(owner)
