"""A Qwen3-Omni checkpoint's shape, stage by stage, for latency models. Free of torch."""

from __future__ import annotations

from antiphon.latency.shapes import (
    DecoderShape,
    EncodersShape,
    ModelShape,
    StageShape,
    TowerShape,
    VocoderShape,
)
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig, SpeechConfig, VocoderConfig
from antiphon.models.qwen3_omni.counts import CHUNK_TOKENS
from antiphon.models.shapes import decoder_shape

WINDOW_CHUNKS = 8


def read_shape(config: Qwen3OmniConfig, name: str) -> ModelShape:
    """Of every stage that the checkpoint has."""
    stages: dict[str, StageShape] = {"encoders": encoders_shape(config)}
    payload = 0 if config.speech is None else config.thinker.hidden_size
    stages["thinker"] = decoder_shape(config.thinker, config.thinker_vocab, payload=payload)
    if config.speech is not None:
        stages["talker"] = talker_shape(config.speech)
        stages["code2wav"] = vocoder_shape(config.speech.vocoder)
    return ModelShape(name, stages)


def talker_shape(speech: SpeechConfig) -> DecoderShape:
    predictor = decoder_shape(speech.predictor, speech.predictor_vocab)
    return decoder_shape(
        speech.talker, speech.talker_vocab, codebooks=speech.num_codebooks, predictor=predictor
    )


def vocoder_shape(config: VocoderConfig) -> VocoderShape:
    return VocoderShape(
        layers=config.num_layers,
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp=config.intermediate_size,
        window=config.sliding_window,
        decoder=config.decoder_size,
        ratios=config.upsampling_ratios,
        rates=config.upsample_rates,
    )


def encoders_shape(config: Qwen3OmniConfig) -> EncodersShape:
    """Before the audio tower's layers three convolutions halve mel bins and frames; the second and the third
    have nearly all of the products."""
    audio, vision = config.audio, config.vision
    channels, bins = audio["downsample_hidden_size"], audio["num_mel_bins"]
    places = (bins // 4) * 25 + (bins // 8) * CHUNK_TOKENS
    stem = 9 * channels**2 * places / CHUNK_TOKENS
    return EncodersShape(
        audio=TowerShape(audio["encoder_layers"], audio["d_model"], audio["encoder_ffn_dim"], 1, round(stem)),
        vision=TowerShape(
            vision["depth"], vision["hidden_size"], vision["intermediate_size"], config.merge_size**2
        ),
        window=WINDOW_CHUNKS * CHUNK_TOKENS,
    )
