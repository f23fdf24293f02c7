"""Creators by name: twice is an error, and so is never."""

from __future__ import annotations

import pytest

from antiphon.assembly.registry import DEVICE_POLICIES, STEP_POLICIES, Registry
from antiphon.core.errors import ConfigError


def test_a_name_is_registered_once_and_created_each_time() -> None:
    registry: Registry[list[int]] = Registry("thing")
    registry.register("a")(lambda: [1])
    assert registry.create("a") == [1]
    assert registry.create("a") is not registry.create("a")
    with pytest.raises(ConfigError, match="thing 'a' is registered twice"):
        registry.register("a")(lambda: [2])


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(ConfigError, match="unknown step policy 'best'; known: fcfs, prefill-first"):
        STEP_POLICIES.create("best")


@pytest.mark.parametrize("registry", [STEP_POLICIES, DEVICE_POLICIES])
def test_policies_are_named_as_they_are_registered(registry: Registry) -> None:
    assert all(registry.create(name).name == name for name in registry.names)
