"""Loading: every released name is used, nothing is needed twice, and what doesn't fit is reported all at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from antiphon.core.errors import CheckpointError
from antiphon.models.layout import complain
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.family import FAMILY

if TYPE_CHECKING:
    from pathlib import Path

Tensors = dict[str, torch.Tensor]
EMBEDDING = "thinker.model.embed_tokens.weight"


def test_stages_share_out_the_checkpoint(tensors: Tensors, config: Qwen3OmniConfig) -> None:
    needed = [name for stage in FAMILY.layouts for name in FAMILY.tensor_names(stage, config)]
    assert set(needed) == set(tensors)
    assert [name for name in set(needed) if needed.count(name) > 1] == [EMBEDDING]


@pytest.mark.parametrize("stage", list(FAMILY.layouts))
def test_every_element_of_every_parameter_is_filled_once(stage: str, config: Qwen3OmniConfig) -> None:
    layout = FAMILY.layout(stage, config)
    filled = {name: torch.zeros(shape) for name, shape in layout.params.items()}
    for source in layout.sources.values():
        place = filled[source.param][source.region]
        expected = source.shape[::-1] if source.transposed else source.shape
        assert tuple(place.shape) == expected
        place += 1
    assert all(bool((count == 1).all()) for count in filled.values())


def test_an_iterator_of_pairs_will_do(tensors: Tensors, config: Qwen3OmniConfig) -> None:
    items = iter(sorted(tensors.items(), reverse=True))
    loaded = FAMILY.load("thinker", items, config, dtype=torch.float32)
    ids = torch.arange(len(tensors[EMBEDDING]))
    assert torch.equal(loaded.embed(ids), tensors[EMBEDDING])


def test_all_problems_are_reported_together(tensors: Tensors, config: Qwen3OmniConfig) -> None:
    broken = dict(tensors)
    gone = "thinker.model.layers.1.mlp.experts.2.up_proj.weight"
    del broken[gone], broken["thinker.lm_head.weight"]
    broken[EMBEDDING] = torch.zeros(3, 5)
    with pytest.raises(CheckpointError) as caught:
        FAMILY.load("thinker", broken, config)
    text = str(caught.value)
    assert text.startswith("3 tensors")
    assert f"{gone} is missing" in text
    assert "thinker.lm_head.weight is missing" in text
    assert f"{EMBEDDING} has shape [3, 5], the config says" in text


def test_a_long_list_of_problems_is_cut() -> None:
    with pytest.raises(CheckpointError, match="and 50 more"):
        complain([f"tensor {i} is missing" for i in range(250)])


def test_an_unknown_stage_names_those_there_are(config: Qwen3OmniConfig) -> None:
    with pytest.raises(ValueError, match="encoders, thinker, talker, code2wav"):
        FAMILY.tensor_names("singer", config)


def without_speech(raw_config: dict[str, Any]) -> Qwen3OmniConfig:
    return Qwen3OmniConfig.from_dict({**raw_config, "enable_audio_output": False})


def test_a_checkpoint_without_speech(raw_config: dict[str, Any], tensors: Tensors) -> None:
    config = without_speech(raw_config)
    assert config.speech is None
    assert config.capture_layer is None
    assert FAMILY.load("thinker", tensors, config).capture_layer is None
    for stage in ("talker", "code2wav"):
        with pytest.raises(CheckpointError, match="writes text only"):
            FAMILY.tensor_names(stage, config)


def find(raw: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        raw = raw[key]
    return raw


def edited(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the config with one value changed, or removed if None."""
    key, _, rest = path.partition(".")
    copy = dict(raw)
    if rest:
        copy[key] = edited(raw[key], rest, value)
    elif value is None:
        copy.pop(key)
    else:
        copy[key] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("thinker_config", None, "the file has no 'thinker_config'"),
        ("thinker_config.text_config.hidden_size", None, "thinker_config.text_config has no 'hidden_size'"),
        ("thinker_config.text_config", 3, "is not an object"),
        ("thinker_config.text_config.hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("thinker_config.text_config.num_key_value_heads", 3, "not a multiple"),
        ("thinker_config.audio_token_id", None, "no audio_token_id"),
        ("talker_config.num_code_groups", 8, "num_code_groups 8 is not num_quantizers 16"),
        ("talker_config.codec_bos_id", 5000, "the talker's vocabulary has 1280"),
        ("talker_config.code_predictor_config.hidden_size", 32, "differ in hidden_size"),
        ("code2wav_config.sliding_window", None, "code2wav_config has no 'sliding_window'"),
    ],
)
def test_a_broken_config_is_explained(
    raw_config: dict[str, Any], path: str, value: Any, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Qwen3OmniConfig.from_dict(edited(raw_config, path, value))


def test_the_released_spelling_is_read(raw_config: dict[str, Any], config: Qwen3OmniConfig) -> None:
    """rope_theta and rope_scaling at the top of a section, as files older than transformers 5 have them."""
    released = raw_config
    for *path, section in (
        ("thinker_config", "text_config"),
        ("talker_config", "text_config"),
        ("talker_config", "code_predictor_config"),
        ("code2wav_config",),
    ):
        where = ".".join([*path, section])
        rope = dict(find(raw_config, where)["rope_parameters"])
        released = edited(released, f"{where}.rope_parameters", None)
        released = edited(released, f"{where}.rope_theta", rope.pop("rope_theta"))
        released = edited(released, f"{where}.rope_scaling", rope)
    released = edited(released, "thinker_config.vision_end_token_id", None)
    assert Qwen3OmniConfig.from_dict(released) == config


def test_a_wrong_mrope_section_is_refused(raw_config: dict[str, Any]) -> None:
    path = "thinker_config.text_config.rope_parameters.mrope_section"
    with pytest.raises(CheckpointError, match="must sum to half"):
        Qwen3OmniConfig.from_dict(edited(raw_config, path, [6, 6, 6]))


def test_voices_are_found_in_any_case(config: Qwen3OmniConfig) -> None:
    assert config.speech is not None
    name = next(iter(config.speech.speakers))
    assert config.speech.speaker_id(name.upper()) == config.speech.speakers[name]
    with pytest.raises(KeyError, match="is not one of"):
        config.speech.speaker_id("nobody")


def test_the_deciding_half_may_import_what_it_needs(tiny_checkpoint: Path) -> None:
    """Configs, prompts and what says where media stand don't bring in torch; nor does the command line."""
    import subprocess
    import sys

    named = ("qwen3_omni.config", "qwen3_omni.talker_prompt", "qwen_media.media_spans")
    modules = ", ".join(f"antiphon.models.{name}" for name in named)
    code = f"import sys, {modules}, antiphon.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_imports_no_other_stage_s_modules(tiny_checkpoint: Path) -> None:
    """A checkpoint is opened, its memory counted and its decoders laid out without transformers' models."""
    import subprocess
    import sys

    code = f"""
import sys
from antiphon.core.config import EngineOptions
from antiphon.engine.load import check_room, open_source
opened = open_source({str(tiny_checkpoint)!r}, EngineOptions(device="cpu"), lambda *told: None)
check_room(opened)
opened.family.layout("thinker", opened.config)
assert "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
