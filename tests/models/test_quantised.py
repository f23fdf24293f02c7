"""Text models from quantised files: every score has the bits that the dequantised weights give."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from antiphon.checkpoint.demo import make_demo
from antiphon.core.config import EngineOptions
from antiphon.core.quantised import PANEL
from antiphon.engine.load import Loader, open_source
from antiphon.models.decoder_stage import Thinker
from antiphon.nn.attention import PagedBatch, over
from antiphon.nn.cpu import has_compiler
from antiphon.nn.step import StepInputs
from fakes.quantised import dequantised, write_gguf

TOKENS, BLOCK = 48, 16
MIXED = {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q8_0"}
"""As llama.cpp's Q4_K_M has it: not all parts of q, k and v are alike."""
WEIGHTS_A_LAYER = 7


@pytest.mark.skipif(not has_compiler(), reason="tiles are compiled")
def test_what_counts_as_kept_fills_panels() -> None:
    from antiphon.nn.cpu.tiles import LANES

    assert PANEL == LANES


def thinker(source: Path, **options: str) -> Thinker:
    opened = open_source(str(source), EngineOptions(device="cpu", **options), lambda *_: None)
    return Loader(opened, lambda *_: None).decoder("thinker")


def scores(model: Thinker) -> Tensor:
    """Of random tokens: 40 at once, then one by one."""
    ids = torch.randint(model.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(0))
    pages, found, first = model.new_pages(TOKENS // BLOCK, BLOCK), [], 0
    with torch.inference_mode():
        for chunk in (40, *[1] * (TOKENS - 40)):
            batch = PagedBatch.build([chunk], [first], [list(range(TOKENS // BLOCK))], BLOCK)
            places = torch.arange(first, first + chunk)
            step = StepInputs(model.embed(ids[first : first + chunk]), places, over(pages, batch))
            found.append(model.logits(model.forward(step)[0]).clone())
            first += chunk
    return torch.cat(found)


def demo(folder: Path, model: str) -> Path:
    """Without the scaling of positions that a GGUF's metadata does not tell."""
    made = make_demo(folder / model, model=model, size="small")
    config = json.loads((made / "config.json").read_text())
    config.pop("rope_scaling", None)
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize(
    ("model", "encodings"),
    [
        ("llama", "Q8_0"),
        ("llama", MIXED),
        ("qwen2", "Q4_0"),
        ("qwen2", "Q4_1"),
        ("qwen3", "Q4_K"),
        ("qwen3", "Q8_0"),
    ],
)
def test_a_gguf_gives_the_bits_of_its_dequantised_weights(
    model: str,
    encodings: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole = demo(tmp_path, model)
    (tmp_path / "alone").mkdir()
    file = write_gguf(whole, tmp_path / "alone" / "some.gguf", encodings)
    same = dequantised(whole, file, tmp_path / "same")
    expected = scores(thinker(same))
    with caplog.at_level(logging.INFO):
        found = thinker(file)
    assert torch.equal(scores(found), expected)
    assert torch.equal(
        scores(thinker(file.parent, attention="reference")), scores(thinker(same, attention="reference"))
    )
    if has_compiler() and found.decoder.layers[0].o.dim() == 3:
        layers = len(found.decoder.layers)
        tables = 1 if model == "qwen2" else 2
        assert (
            f"{WEIGHTS_A_LAYER * layers + tables} quantised tensors are kept in their bits; 0 " in caplog.text
        )


def test_without_a_compiler_it_is_dequantised_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("antiphon.nn.cpu.has_compiler", lambda: False)
    whole = demo(tmp_path, "qwen3")
    file = write_gguf(whole, tmp_path / "some.gguf", "Q8_0")
    same = dequantised(whole, file, tmp_path / "same")
    with caplog.at_level(logging.INFO):
        found = thinker(file)
    assert "0 quantised tensors are kept in their bits" in caplog.text
    assert torch.equal(scores(found), scores(thinker(same)))
    assert torch.equal(scores(thinker(file, dtype="float64")), scores(thinker(same, dtype="float64")))


def in_int8(whole: Path, folder: Path, groups: int) -> tuple[Path, Path]:
    """Two copies of a checkpoint: its layers' matrices in int8 with scales, and the same numbers in fp32."""
    tensors = load_file(whole / "model.safetensors")
    quantised, same = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or "layers" not in name:
            continue
        parts = tensor.float().view(len(tensor), groups, -1)
        scale = parts.abs().amax(2) / 127
        quants = (parts / scale[..., None]).round().to(torch.int8)
        quantised[name] = quants.view(tensor.shape)
        quantised[name + "_scale"] = scale.bfloat16()
        same[name] = (quants.float() * scale.bfloat16().float()[..., None]).view(tensor.shape)
    copies = [shutil.copytree(whole, folder / name) for name in ("int8", "fp32")]
    for copy, written in zip(copies, (quantised, same), strict=True):
        save_file(written, copy / "model.safetensors", {"format": "pt"})
    config = json.loads((whole / "config.json").read_text())
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    (copies[0] / "config.json").write_text(json.dumps(config))
    return copies[0], copies[1]


@pytest.mark.parametrize("groups", [1, 8])
def test_int8_safetensors_give_the_bits_of_their_dequantised_weights(groups: int, tmp_path: Path) -> None:
    quantised, same = in_int8(demo(tmp_path, "llama"), tmp_path, groups)
    assert torch.equal(scores(thinker(quantised)), scores(thinker(same)))
