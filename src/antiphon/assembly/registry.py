"""Policies by name. Creators import late, so that naming one costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.core.errors import ConfigError
from antiphon.policy.base import DevicePolicy, ReplicaPolicy, StepPolicy
from antiphon.policy.memory import EvictPolicy, FetchPolicy, WritePolicy

T = TypeVar("T")


class Registry(Generic[T]):
    """Name -> creator. A duplicate raises; an unknown name lists what exists."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._creators: dict[str, Callable[[], T]] = {}

    def register(self, name: str) -> Callable[[Callable[[], T]], Callable[[], T]]:
        def add(creator: Callable[[], T]) -> Callable[[], T]:
            if name in self._creators:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._creators[name] = creator
            return creator

        return add

    def create(self, name: str) -> T:
        if name not in self._creators:
            raise ConfigError(f"unknown {self.kind} {name!r}; known: {', '.join(sorted(self._creators))}")
        return self._creators[name]()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._creators))


STEP_POLICIES: Registry[StepPolicy] = Registry("step policy")
DEVICE_POLICIES: Registry[DevicePolicy] = Registry("device policy")
REPLICA_POLICIES: Registry[ReplicaPolicy] = Registry("replica policy")
EVICT_POLICIES: Registry[EvictPolicy] = Registry("evict policy")
WRITE_POLICIES: Registry[WritePolicy] = Registry("write policy")
FETCH_POLICIES: Registry[FetchPolicy] = Registry("fetch policy")


@STEP_POLICIES.register("prefill-first")
def _prefill_first() -> StepPolicy:
    from antiphon.policy.prefill_first import PrefillFirst

    return PrefillFirst()


@STEP_POLICIES.register("fcfs")
def _fcfs() -> StepPolicy:
    from antiphon.policy.fcfs import Fcfs

    return Fcfs()


@DEVICE_POLICIES.register("round-robin")
def _round_robin() -> DevicePolicy:
    from antiphon.policy.round_robin import RoundRobin

    return RoundRobin()


@REPLICA_POLICIES.register("sticky")
def _sticky() -> ReplicaPolicy:
    from antiphon.policy.sticky import Sticky

    return Sticky()


@REPLICA_POLICIES.register("least-loaded")
def _least_loaded() -> ReplicaPolicy:
    from antiphon.policy.least_loaded import LeastLoaded

    return LeastLoaded()


@EVICT_POLICIES.register("lru")
def _lru() -> EvictPolicy:
    from antiphon.policy.lru import Lru

    return Lru()


@WRITE_POLICIES.register("write-back")
def _write_back() -> WritePolicy:
    from antiphon.policy.write_back import WriteBack

    return WriteBack()


@FETCH_POLICIES.register("on-demand")
def _on_demand() -> FetchPolicy:
    from antiphon.policy.on_demand import OnDemand

    return OnDemand()
