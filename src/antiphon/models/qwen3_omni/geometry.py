"""What the deciding half must know of a Qwen3-Omni checkpoint: stop ids, end inputs, sampling defaults, and
its shape, stage by stage, for latency models.

Reads config.json and generation_config.json as dicts; free of torch.
"""

from __future__ import annotations

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.latency.shapes import (
    DecoderShape,
    EncodersShape,
    ModelShape,
    StageShape,
    TowerShape,
    VocoderShape,
)
from antiphon.models.geometry import (
    Json,
    decoder_shape,
    layer_groups,
    stage_sizes,
    talker_sampling,
    text_stage,
)
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig, SpeechConfig, VocoderConfig
from antiphon.models.qwen_media.preprocess_shapes import CHUNK_TOKENS

WINDOW_CHUNKS = 8

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
"""What transformers' generate() uses where generation_config.json is silent."""


def read_geometry(config: Qwen3OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    thinker = text_stage(generation, options, config.thinker.num_layers, (config.tokens.im_end,))
    ar, codec = {"thinker": thinker}, {}
    if config.speech is not None:
        ar["talker"] = ArConfig(
            **stage_sizes(options, "talker"),
            stop_ids=(config.speech.codec.eos,),
            width=config.speech.num_codebooks,
            sampling=talker_sampling(generation, TALKER_DEFAULTS),
            layer_groups=layer_groups(config.speech.talker.num_layers, options.layer_groups),
        )
        codec["code2wav"] = CodecConfig(options.of("code2wav").max_rows)
    return NodeConfig(
        graph="qwen3_omni_moe",
        ar=ar,
        codec=codec,
        encoder={"encoders": EncoderConfig()},
        end_inputs={"talker": config.tokens.tts_eos},
        preset=options.preset,
    )


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
