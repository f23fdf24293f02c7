"""What the deciding half must know of a Qwen2.5-Omni checkpoint, and its shape, stage by stage, for latency
models. Free of torch.
"""

from __future__ import annotations

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.latency.shapes import EncodersShape, FlowVocoderShape, ModelShape, StageShape, TowerShape
from antiphon.models.geometry import (
    Json,
    decoder_shape,
    layer_groups,
    stage_sizes,
    talker_sampling,
    text_stage,
    token_ids,
)
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig, SpeechConfig
from antiphon.models.qwen2_5_omni.windows import BLOCKS_AHEAD, BLOCKS_BACK, NUM_EVALUATIONS

WINDOW_TOKENS = 50
"""Of two seconds of sound, which see each other."""
TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
"""What transformers' generate() uses where generation_config.json is silent."""


def read_geometry(config: Qwen25OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    ar = {"thinker": text_stage(generation, options, config.thinker.num_layers, config.stop_ids)}
    codec: dict[str, CodecConfig] = {}
    ends: dict[str, int] = {}
    if config.speech is not None:
        ids = config.speech.codec
        ar["talker"] = ArConfig(
            **stage_sizes(options, "talker"),
            stop_ids=token_ids(generation.get("talker_eos_token_id")) or (ids.pad, ids.eos),
            sampling=talker_sampling(generation, TALKER_DEFAULTS),
            layer_groups=layer_groups(config.speech.talker.num_layers, options.layer_groups),
        )
        codec["token2wav"] = CodecConfig(options.of("token2wav").max_rows)
        ends["talker"] = config.speech.text_eos
    encoder = {"encoders": EncoderConfig()}
    return NodeConfig("qwen2_5_omni", ar, codec, encoder, ends, options.preset)


def read_shape(config: Qwen25OmniConfig, name: str) -> ModelShape:
    """Of every stage that the checkpoint has."""
    stages: dict[str, StageShape] = {"encoders": encoders_shape(config)}
    payload = 0 if config.speech is None else config.thinker.hidden_size
    stages["thinker"] = decoder_shape(config.thinker, config.thinker_vocab, payload=payload)
    if config.speech is not None:
        stages["talker"] = decoder_shape(config.speech.talker, config.speech.talker_vocab)
        stages["token2wav"] = token2wav_shape(config.speech)
    return ModelShape(name, stages)


def token2wav_shape(speech: SpeechConfig) -> FlowVocoderShape:
    """Without the encoder of the voices, which works once a voice."""
    dit, bigvgan = speech.dit, speech.bigvgan
    return FlowVocoderShape(
        layers=dit["num_hidden_layers"],
        hidden=dit["hidden_size"],
        heads=dit["num_attention_heads"],
        head_dim=dit["head_dim"],
        mlp=dit["ff_mult"] * dit["hidden_size"],
        inputs=dit["mel_dim"] + dit["enc_dim"] + dit["enc_emb_dim"] + dit["emb_dim"],
        evaluations=NUM_EVALUATIONS,
        repeats=dit["repeats"],
        block=dit["block_size"] // dit["repeats"],
        back=BLOCKS_BACK,
        ahead=BLOCKS_AHEAD,
        mel=bigvgan["mel_dim"],
        decoder=bigvgan["upsample_initial_channel"],
        rates=tuple(bigvgan["upsample_rates"]),
        kernels=tuple(bigvgan["resblock_kernel_sizes"]),
    )


def encoders_shape(config: Qwen25OmniConfig) -> EncodersShape:
    """Before the audio tower's layers a convolution over mel frames and one that halves them; two positions
    behind them are a token. The vision tower's MLP has a gate."""
    audio, vision = config.audio, config.vision
    channels, bins = audio["d_model"], audio["num_mel_bins"]
    stem = 2 * (2 * 3 * bins * channels + 3 * channels**2)
    return EncodersShape(
        audio=TowerShape(audio["encoder_layers"], channels, audio["encoder_ffn_dim"], 2, stem),
        vision=TowerShape(
            vision["depth"],
            vision["hidden_size"],
            vision["intermediate_size"] * 3 // 2,
            config.merge_size**2,
            whole=len(vision["fullatt_block_indexes"]),
        ),
        window=WINDOW_TOKENS,
    )
