"""Policies by name. Creators import late, so that naming one costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from antiphon.core.errors import ConfigError
from antiphon.policy.base import DevicePolicy, StepPolicy

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


@STEP_POLICIES.register("prefill-first")
def _prefill_first() -> StepPolicy:
    from antiphon.policy.prefill_first import PrefillFirst

    return PrefillFirst()


@DEVICE_POLICIES.register("round-robin")
def _round_robin() -> DevicePolicy:
    from antiphon.policy.round_robin import RoundRobin

    return RoundRobin()
