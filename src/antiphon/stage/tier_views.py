"""What policies see of the tiers of a stage: columns over resting sessions, computed when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from antiphon.core.facts import Ints
from antiphon.core.plans import ints
from antiphon.kv.host import HostTier
from antiphon.kv.sequences import StageKv
from antiphon.policy.memory import Floats, Tier


class DeviceView:
    """Implements `policy.memory.TierView` for the device."""

    tier: Tier = "device"

    def __init__(self, kv: StageKv, host: HostTier, used_s: Mapping[str, float], num_wanted: int) -> None:
        self._kv = kv
        self._host = host
        self._used_s = used_s
        self.num_wanted = num_wanted

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    @property
    def num_free(self) -> int:
        return self._kv.num_free + self._kv.num_pending_free

    @property
    def num_below(self) -> int:
        return self._host.num_free

    @property
    def sessions(self) -> Sequence[str]:
        return self._kv.sessions

    @property
    def used_s(self) -> Floats:
        return np.array([self._used_s[session] for session in self.sessions], np.float64)

    @property
    def blocks(self) -> Ints:
        return ints([sum(not self._kv.is_active(b) for b in self._blocks(s)) for s in self.sessions])

    @property
    def dirty(self) -> Ints:
        return ints([sum(self._host.find(n) is None for n in self._names(s)) for s in self.sessions])

    def _blocks(self, session: str) -> Sequence[int]:
        sequence = self._kv.resting(session)
        return () if sequence is None else sequence.blocks

    def _names(self, session: str) -> Sequence[bytes]:
        sequence = self._kv.resting(session)
        return () if sequence is None else sequence.chain


class HostView:
    """Implements `policy.memory.TierView` for the host, below which there is nothing."""

    tier: Tier = "host"
    num_below = 0

    def __init__(self, host: HostTier, used_s: Mapping[str, float], num_wanted: int) -> None:
        self._host = host
        self._used_s = used_s
        self.num_wanted = num_wanted

    @property
    def num_blocks(self) -> int:
        return self._host.num_blocks

    @property
    def num_free(self) -> int:
        return self._host.num_free + self._host.num_leaving

    @property
    def sessions(self) -> Sequence[str]:
        return self._host.sessions

    @property
    def used_s(self) -> Floats:
        return np.array([self._used_s[session] for session in self.sessions], np.float64)

    @property
    def blocks(self) -> Ints:
        return ints([len(self._host.held(session)) for session in self.sessions])

    @property
    def dirty(self) -> Ints:
        return self.blocks
