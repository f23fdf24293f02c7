"""The demo checkpoints: complete, repeatable, loadable by the library, and able to speak."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.demo_config import CODEC_EOS_ID, NUM_CODE_GROUPS
from antiphon.checkpoint.demo_tokenizer import NAMED_TOKENS, ROLES, SPECIAL_TOKENS, TOOL_TOKENS
from antiphon.checkpoint.demo_weights import store_as, write_weights
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
}


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint: Path) -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float32, output_loading_info=True
    )


def test_every_file_is_there(tiny_checkpoint: Path) -> None:
    assert {file.name for file in tiny_checkpoint.iterdir()} == FILES


@pytest.mark.parametrize("model", ["qwen3-omni", "qwen2_5_omni"])
def test_nothing_is_said_that_its_maker_could_not_heed(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_demo(tmp_path / "demo", model=model, size="tiny")
    assert "transformers" not in "".join(capfd.readouterr())


def test_same_seed_same_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    assert digests(make_demo(tmp_path / "again")) == digests(tiny_checkpoint)


def test_stored_in_bf16_it_has_the_nearest_numbers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    halves = make_demo(tmp_path / "halves", dtype="bfloat16")
    assert json.loads((halves / "config.json").read_text())["dtype"] == "bfloat16"
    ours, whole = (load_file(path / "model.safetensors") for path in (halves, tiny_checkpoint))
    assert ours.keys() == whole.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, whole[name].bfloat16())


def test_in_shards_it_says_how_many_bytes_there_are(loaded: Any, tmp_path: Path) -> None:
    write_weights(loaded[0], tmp_path, shard_bytes=1 << 20)
    (tmp_path / "config.json").write_text("{}")
    store_as(tmp_path, "bfloat16")
    told = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = set(told["weight_map"].values())
    assert len(shards) > 1
    assert told["metadata"]["total_size"] == sum(
        tensor.nbytes for shard in shards for tensor in load_file(tmp_path / shard).values()
    )


def test_another_seed_changes_the_weights_only(tiny_checkpoint: Path, tmp_path: Path) -> None:
    ours, other = digests(tiny_checkpoint), digests(make_demo(tmp_path / "other", seed=1))
    assert {name for name in ours if ours[name] != other[name]} == {"model.safetensors"}


def test_the_callers_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    make_demo(tmp_path / "demo")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    make_demo(tmp_path / "demo", progress=told.append)
    assert told == ["training the tokenizer", "setting the weights", "writing the weights"]


def test_a_failed_making_leaves_nothing(tmp_path: Path) -> None:
    def stop(message: str) -> None:
        if message == "writing the weights":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_demo(tmp_path / "demo", progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ({"size": "huge"}, "tiny, small"),
        ({"model": "x"}, "qwen3-omni"),
        ({"dtype": "int8"}, "float32, bfloat16"),
    ],
)
def test_unknown_choices_name_the_allowed_ones(tmp_path: Path, choice: dict[str, str], allowed: str) -> None:
    with pytest.raises(CheckpointError, match=allowed):
        make_demo(tmp_path / "demo", **choice)


def test_a_directory_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(CheckpointError, match="not an empty directory"):
        make_demo(tmp_path)
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("text", [*SPECIAL_TOKENS, *TOOL_TOKENS, *ROLES, "\n"])
def test_special_tokens_and_roles_are_single(tokenizer: Any, text: str) -> None:
    assert len(tokenizer.encode(text)) == 1


def test_named_tokens_and_ids_agree_with_the_config(tokenizer: Any, tiny_checkpoint: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    for name, token in NAMED_TOKENS.items():
        assert getattr(tokenizer, name) == token
    assert tokenizer.eos_token_id == config["im_end_token_id"]
    assert tokenizer.encode("<tts_pad>") == [config["tts_pad_token_id"]]
    assert tokenizer.encode("<|audio_pad|>") == [config["thinker_config"]["audio_token_id"]]
    assert len(tokenizer) <= config["thinker_config"]["text_config"]["vocab_size"]


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Zażółć gęślą jaźń, 東京 🎉\n\ttabs 123"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "audio"}, {"type": "image"}, {"type": "text", "text": "Hi"}]},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>"
        "<|vision_start|><|image_pad|><|vision_end|>Hi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_feature_extractor(tiny_checkpoint: Path) -> None:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor.from_pretrained(tiny_checkpoint)
    assert (extractor.feature_size, extractor.hop_length, extractor.sampling_rate) == (128, 160, 16000)


def test_all_tensors_load(loaded: tuple[Any, dict[str, Any]]) -> None:
    _, info = loaded
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_every_matrix_is_random(loaded: tuple[Any, dict[str, Any]]) -> None:
    model, _ = loaded
    flat = [
        name
        for name, p in model.named_parameters()
        if not p.isfinite().all() or (p.numel() > 1 and p.std() == 0)
    ]
    assert flat == []


def test_sampling_defaults_are_read(loaded: tuple[Any, dict[str, Any]], tiny_checkpoint: Path) -> None:
    model, _ = loaded
    generation = json.loads((tiny_checkpoint / "generation_config.json").read_text())
    assert model.generation_config.top_k == generation["top_k"]
    assert generation["talker_max_new_tokens"] > 0


# transformers says on every talker run that the penalty sees no prompt, which is what the model means.
@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`:UserWarning")
def test_it_generates_text_and_sound(loaded: tuple[Any, dict[str, Any]], tokenizer: Any) -> None:
    model, _ = loaded
    ids = torch.tensor([tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")])
    tokens, waveform = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        thinker_max_new_tokens=4,
        thinker_eos_token_id=None,
        thinker_do_sample=False,
        talker_max_new_tokens=4,
        talker_do_sample=False,
        talker_top_k=None,
        talker_top_p=None,
        talker_temperature=None,
    )
    assert tokens.shape[1] == ids.shape[1] + 4
    assert waveform.numel() == 3 * 1920 - 555
    assert 0.01 < waveform.std() < 0.5


def test_codec_end_follows_the_text_only(loaded: tuple[Any, dict[str, Any]]) -> None:
    """The wiring that `small` gets, tried on a copy of the tiny model."""
    import copy

    from antiphon.checkpoint.demo_talker import wire_codec_end

    model = copy.deepcopy(loaded[0])
    wire_codec_end(model, marker_feature=1, generator=torch.Generator().manual_seed(0))
    pad = model.config.tts_pad_token_id
    assert end_logit(model, pad) > 0
    assert all(end_logit(model, token) < -10 for token in (0, 100, model.config.tts_eos_token_id))


@torch.no_grad()
def end_logit(model: Any, text_token: int) -> float:
    talker = model.talker
    text = talker.text_projection(model.thinker.model.language_model.embed_tokens.weight[text_token])
    codes = talker.model.codec_embedding.weight[:NUM_CODE_GROUPS].sum(0)
    hidden = talker.model(inputs_embeds=(text + codes)[None, None], use_cache=False).last_hidden_state
    return talker.codec_head(hidden)[0, 0, CODEC_EOS_ID].item()
