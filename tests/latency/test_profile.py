"""A profile says what steps and bytes take, and what it does not know."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.core.config import NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.plans import CodecStep, CopyBlocks, EncodeStep, ints
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile, SoundWindow, served
from antiphon.latency.shapes import find_shape
from latency.steps import ar_step

H200 = find_costs("h200")
ONE = ints([1])
CODEC = CodecStep("code2wav", 1, ints([]), ONE, ONE, ints([4]), ints([[0]] * 4), "")


def copy(to: str) -> CopyBlocks:
    return CopyBlocks("thinker", "kv", to, ONE, ONE, 1)  # type: ignore[arg-type]


def test_bytes_take_time_by_where_they_go() -> None:
    slow = H200.with_host_link(1e9)
    assert slow.copy_s(copy("host"), 2e9) == pytest.approx(2.0, rel=1e-3)
    assert slow.copy_s(copy("device"), 2e9) == slow.copy_s(copy("host"), 2e9)
    assert slow.send_s(1e9) == H200.send_s(1e9) > 0.0
    assert replace(slow, links={}).host_s(1e9) == 0.0
    with pytest.raises(ConfigError, match=r"has no link to 'host'; it has none"):
        replace(slow, links={}).copy_s(copy("host"), 1.0)


def test_a_stage_that_was_not_profiled() -> None:
    with pytest.raises(ConfigError, match=r"has no stage 'painter' \(it has: code2wav, "):
        H200.stage("painter")


def test_a_step_of_another_kind_than_the_stage_had() -> None:
    swapped = replace(H200, stages={**H200.stages, "code2wav": H200.stages["thinker"]})
    with pytest.raises(ConfigError, match="has stage 'code2wav' as another kind"):
        swapped.step_s(CODEC)
    decode = ar_step([(7, 1, True)])
    assert H200.step_s(decode) > 0.0
    assert H200.step_s(CODEC) > 0.0
    assert H200.step_s(EncodeStep("encoders", 1, (), "")) >= 0.0
    assert H200.step_s(replace(decode, stage="thinker.1"), "thinker") == H200.step_s(decode)


def test_frames_sound_in_whole_blocks_until_the_end() -> None:
    window = SoundWindow(block=4, ahead=1)
    assert [window.num_sure(known, False) for known in (0, 4, 7, 8, 11, 12)] == [0, 0, 0, 4, 4, 8]
    assert window.num_sure(11, True) == 11


def test_what_was_served_has_the_frames_of_its_model() -> None:
    node = NodeConfig("any", {}, {}, {}, {})
    assert served(node, 1, find_shape("llama-3-8b")).window is None
    omni = served(node, 1, find_shape("qwen3-omni-30b-a3b"))
    assert (omni.depth, omni.window, omni.frame_samples) == (1, None, 1920)
    flowing = served(node, 0, find_shape("qwen2.5-omni-7b"))
    assert flowing.window is not None
    assert flowing.delay_samples == 0


def test_a_file_of_another_version() -> None:
    assert Profile.from_json(H200.to_json()) == H200
    with pytest.raises(ConfigError, match="mine has version 99"):
        Profile.from_json(replace(H200, version=99).to_json(), "mine")
    with pytest.raises(ConfigError, match="mine is not a latency profile"):
        Profile.from_json(b"[]", "mine")
