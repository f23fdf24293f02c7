"""Keys of a deployment's file say of themselves what they mean, what they may be and what is nearest to a
wrong one."""

from __future__ import annotations

import pytest

from antiphon.assembly.deployment import Deployment, DeploymentLimits
from antiphon.assembly.keys import find_key, keys, model_at
from antiphon.core.errors import ConfigError


def test_every_key_has_a_meaning_a_type_and_something_to_write() -> None:
    found = {key.path: key for key in keys()}
    assert len(found) > 50
    for path, key in found.items():
        assert key.meaning, path
        assert key.type, path
        assert key.default is not None or key.example is not None or key.inner is not None, path
        assert find_key(path.replace("NAME", "any")).field is key.field


@pytest.mark.parametrize(
    ("path", "type_", "allowed", "default"),
    [
        ("limits.max_sessions", "a whole number", "1 or more", 64),
        ("limits.min_lead_s", "a number", "0 or more", 0.6),
        ("limits.start_limit_s", "a number", "more than 0", 600.0),
        ("stages.talker.replicas", "a whole number", "1 or more, at most 256", 1),
        ("depth", "a whole number", "0 or 1", None),
        ("load_format", "text", "auto or dummy", "auto"),
        ("devices.gpu0.device", "text", "of the form ^(auto|cpu|cuda|cuda:\\d+)$", "auto"),
        ("stages.talker.devices", "a list of names", "", None),
        ("limits", "a mapping", "", None),
        ("stages", "a mapping", "", None),
    ],
)
def test_what_a_key_may_be(path: str, type_: str, allowed: str, default: object) -> None:
    key = find_key(path)
    assert (key.type, key.allowed, key.default) == (type_, allowed, default)


def test_presets_and_hardware_are_named() -> None:
    assert "baseline" in find_key("preset").allowed
    assert "path of a .yaml file" in find_key("preset").allowed
    assert "H200" in find_key("devices.gpu0.kind").allowed


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("limit", "limit: no such key; did you mean limits"),
        ("max_sessions", "max_sessions: no such key; did you mean limits.max_sessions?"),
        ("stages.talker.max_row", "stages.talker.max_row: no such key; did you mean max_rows"),
        ("depth.more", "depth.more: depth has no keys inside"),
        ("policy", "policies are named in a preset"),
        ("stages.talker.pace", "policies are named in a preset"),
        ("zzz", "zzz: no such key. Keys of a deployment: base"),
    ],
)
def test_a_wrong_key_is_told_the_nearest(path: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_key(path)
    assert said in str(caught.value)


def test_which_keys_belong_at_a_place() -> None:
    assert model_at(("limits",)) is Deployment
    assert model_at(("limits", "max_sessions")) is DeploymentLimits
    assert model_at(("nothing", "at", "all")) is None
    stage = model_at(("stages", "talker", "max_rows"))
    assert stage is not None
    assert "replicas" in stage.model_fields
