"""Seeded weights and voices of a Qwen2.5-Omni demo: every branch shows, the waveform is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from antiphon.checkpoint.demo_qwen25 import MEL_DIM
from antiphon.checkpoint.demo_weights import fill_parameter, generator_for, write_weights
from antiphon.checkpoint.quiet import quiet

if TYPE_CHECKING:
    from pathlib import Path

WAVEFORM_RMS = 0.1
LAYER_GAIN = 2.0
"""What attention says must count beside a token's own embedding: q and k are not normalised here."""
NUM_CALIBRATION_FRAMES = 200
VOICES = ("Chelsie", "Ethan")
REFERENCE_FRAMES = 60


def write_qwen25_weights(
    config: dict[str, Any], ids: dict[str, int], seed: int, directory: Path, shard_bytes: int
) -> None:
    """The weights, and spk_dict.pt beside them."""
    model = _filled(config, seed)
    write_weights(model, directory, shard_bytes)
    torch.save(_voices(config, ids, seed), directory / "spk_dict.pt")


@torch.no_grad()
def _filled(config: dict[str, Any], seed: int) -> Any:
    # Imported here: it takes seconds, and opening a checkpoint does not need it.
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with quiet():
            model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**config)).float().eval()
    for name, parameter in model.named_parameters():
        generator = generator_for(name, seed)
        if name.startswith("token2wav."):
            _fill_vocoder(name, parameter, generator)
        else:
            fill_parameter(name, parameter, generator, plain=True)
            if ".layers." in name and parameter.dim() == 2:
                parameter.mul_(LAYER_GAIN)
    _set_loudness(model.token2wav.code2wav_bigvgan_model, generator_for("loudness", seed))
    return model


def _fill_vocoder(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices and kernels keep the size of what they are given; all else is small."""
    if parameter.dim() < 2:
        parameter.normal_(0, 0.02, generator=generator)
        return
    inputs = 2 * parameter.shape[0] if ".ups." in name else parameter[0].numel()
    parameter.normal_(0, inputs**-0.5, generator=generator)


def _set_loudness(vocoder: Any, generator: torch.Generator) -> None:
    """At first so quiet that nothing is clipped, then as loud as wanted."""
    mel = torch.randn(1, MEL_DIM, NUM_CALIBRATION_FRAMES, generator=generator)
    vocoder.conv_post.weight.mul_(1e-3)
    vocoder.conv_post.weight.mul_(WAVEFORM_RMS / vocoder(mel).std())


def _voices(config: dict[str, Any], ids: dict[str, int], seed: int) -> dict[str, Any]:
    size = config["token2wav_config"]["dit_config"]["enc_emb_dim"]
    starts = (ids["<tts_text_bos>"], ids["<tts_text_bos_single>"])
    generators = [generator_for(f"voice {name}", seed) for name in VOICES]
    return {
        name: {
            "bos_token": start,
            "cond": torch.randn(1, size, generator=generator),
            "ref_mel": torch.randn(1, REFERENCE_FRAMES, MEL_DIM, generator=generator),
        }
        for name, start, generator in zip(VOICES, starts, generators, strict=True)
    }
