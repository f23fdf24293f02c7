"""Sizes and JSON files of the demo checkpoints, with the names a released Qwen3-Omni checkpoint uses.

Data only: no tensors, no files. What depends on the tokenizer comes in as ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUM_CODE_GROUPS = 16
CODEBOOK_SIZE = 256
TALKER_VOCAB_SIZE = CODEBOOK_SIZE + 1024
"""Ids behind the codebook: the talker never emits the last 1024 ids except its end token."""
CODEC_EOS_ID = CODEBOOK_SIZE + 102
HEAD_DIM = 32
MROPE_SECTION = [6, 5, 5]


@dataclass(frozen=True, slots=True)
class DemoSize:
    """One architecture. Widths are in features, `*_layers` and `*_experts` are counts."""

    thinker_width: int
    thinker_layers: int
    thinker_expert_width: int
    num_experts: int
    talker_width: int
    talker_layers: int
    talker_expert_width: int
    predictor_layers: int
    tower_width: int
    audio_layers: int
    vision_layers: int
    vocoder_width: int
    vocoder_layers: int
    decoder_width: int
    shard_bytes: int
    """Largest size of one weight file; a model within it is a single file without an index."""

    @property
    def hidden_layer(self) -> int:
        """The thinker layer whose output the talker sees at audio and image positions."""
        return self.thinker_layers // 2


SIZES: dict[str, DemoSize] = {
    "tiny": DemoSize(
        thinker_width=64,
        thinker_layers=4,
        thinker_expert_width=32,
        num_experts=4,
        talker_width=64,
        talker_layers=2,
        talker_expert_width=32,
        predictor_layers=2,
        tower_width=32,
        audio_layers=2,
        vision_layers=4,
        vocoder_width=64,
        vocoder_layers=4,
        decoder_width=64,
        shard_bytes=64 * 2**20,
    ),
    "small": DemoSize(
        thinker_width=256,
        thinker_layers=4,
        thinker_expert_width=128,
        num_experts=8,
        talker_width=192,
        talker_layers=3,
        talker_expert_width=128,
        predictor_layers=2,
        tower_width=128,
        audio_layers=2,
        vision_layers=4,
        vocoder_width=192,
        vocoder_layers=3,
        decoder_width=192,
        shard_bytes=16 * 2**20,
    ),
    "medium": DemoSize(
        thinker_width=384,
        thinker_layers=8,
        thinker_expert_width=192,
        num_experts=16,
        talker_width=256,
        talker_layers=6,
        talker_expert_width=96,
        predictor_layers=3,
        tower_width=192,
        audio_layers=4,
        vision_layers=6,
        vocoder_width=256,
        vocoder_layers=4,
        decoder_width=384,
        shard_bytes=64 * 2**20,
    ),
}


def model_config(size: DemoSize, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """config.json of a Qwen3-Omni checkpoint of this size. `ids` maps special tokens and roles to ids."""
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "dtype": "float32",
        "enable_audio_output": True,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "system_token_id": ids["system"],
        "user_token_id": ids["user"],
        "assistant_token_id": ids["assistant"],
        "thinker_config": _thinker(size, ids, vocab_size),
        "talker_config": _talker(size, ids),
        "code2wav_config": _vocoder(size),
    }


def generation_config(ids: dict[str, int], size_name: str) -> dict[str, Any]:
    """Sampling defaults: plain keys for the thinker, `talker_*` keys for the talker."""
    lengths = (160, 400) if size_name == "small" else (48, 64)
    return {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.0,
        "max_new_tokens": lengths[0],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "talker_do_sample": True,
        "talker_temperature": 0.9,
        "talker_top_k": 50,
        "talker_top_p": 1.0,
        "talker_repetition_penalty": 1.05,
        "talker_max_new_tokens": lengths[1],
    }


def _rope(theta: float, sections: list[int] | None = None) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if sections is not None:
        rope |= {"mrope_section": sections, "mrope_interleaved": True}
    return rope


def _modality_ids(ids: dict[str, int]) -> dict[str, int]:
    return {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "position_id_per_seconds": 13,
    }


def _decoder(vocab_size: int, width: int, num_layers: int) -> dict[str, Any]:
    """What every autoregressive part of the model has in common."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "rope_parameters": _rope(1e4, MROPE_SECTION),
    }


def _experts(count: int, width: int) -> dict[str, Any]:
    return {
        "num_experts": count,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _thinker(size: DemoSize, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    decoder = _decoder(vocab_size, size.thinker_width, size.thinker_layers)
    return {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": decoder
        | _experts(size.num_experts, size.thinker_expert_width)
        | {"model_type": "qwen3_omni_moe_text"},
        "audio_config": _audio_tower(size),
        "vision_config": _vision_tower(size),
        "user_token_id": ids["user"],
        **_modality_ids(ids),
    }


def _audio_tower(size: DemoSize) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_audio_encoder",
        "num_mel_bins": 128,
        "d_model": size.tower_width,
        "encoder_layers": size.audio_layers,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 2 * size.tower_width,
        "activation_function": "gelu",
        "scale_embedding": False,
        "max_source_positions": 1500,
        "n_window": 50,
        "n_window_infer": 200,
        "conv_chunksize": 500,
        "downsample_hidden_size": 32,
        "output_dim": size.thinker_width,
    }


def _vision_tower(size: DemoSize) -> dict[str, Any]:
    return {
        "model_type": "qwen3_omni_moe_vision_encoder",
        "depth": size.vision_layers,
        "hidden_size": size.tower_width,
        "intermediate_size": 2 * size.tower_width,
        "num_heads": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": size.thinker_width,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1, 2],
    }


def _talker(size: DemoSize, ids: dict[str, int]) -> dict[str, Any]:
    decoder = _decoder(TALKER_VOCAB_SIZE, size.talker_width, size.talker_layers)
    return {
        "model_type": "qwen3_omni_moe_talker",
        "text_config": decoder
        | _experts(size.num_experts, size.talker_expert_width)
        | {
            "model_type": "qwen3_omni_moe_talker_text",
            "shared_expert_intermediate_size": 2 * size.talker_expert_width,
        },
        "code_predictor_config": _predictor(size),
        "num_code_groups": NUM_CODE_GROUPS,
        "thinker_hidden_size": size.thinker_width,
        "accept_hidden_layer": size.hidden_layer,
        "spatial_merge_size": 2,
        "codec_pad_id": CODEBOOK_SIZE + 100,
        "codec_bos_id": CODEBOOK_SIZE + 101,
        "codec_eos_token_id": CODEC_EOS_ID,
        "codec_nothink_id": CODEBOOK_SIZE + 107,
        "codec_think_bos_id": CODEBOOK_SIZE + 108,
        "codec_think_eos_id": CODEBOOK_SIZE + 109,
        "speaker_id": {
            "chelsie": CODEBOOK_SIZE + 253,
            "ethan": CODEBOOK_SIZE + 254,
            "aiden": CODEBOOK_SIZE + 255,
        },
        **_modality_ids(ids),
    }


def _predictor(size: DemoSize) -> dict[str, Any]:
    return _decoder(CODEBOOK_SIZE, size.talker_width, size.predictor_layers) | {
        "model_type": "qwen3_omni_moe_talker_code_predictor",
        "num_key_value_heads": 4,
        "num_code_groups": NUM_CODE_GROUPS,
        "max_position_embeddings": 512,
        "rope_parameters": _rope(1e4),
    }


def _vocoder(size: DemoSize) -> dict[str, Any]:
    return {
        "codebook_size": CODEBOOK_SIZE,
        "num_quantizers": NUM_CODE_GROUPS,
        "hidden_size": size.vocoder_width,
        "intermediate_size": 2 * size.vocoder_width,
        "num_hidden_layers": size.vocoder_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_scale_initial_scale": 0.01,
        "rms_norm_eps": 1e-5,
        "sliding_window": 72,
        "decoder_dim": size.decoder_width,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "max_position_embeddings": 8000,
        "rope_parameters": _rope(1e4),
    }
