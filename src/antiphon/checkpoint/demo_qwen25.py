"""Sizes and config.json of the Qwen2.5-Omni demo checkpoints, with the names of a released one.

Data only: no tensors, no files. What depends on the tokenizer comes in as ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CODEBOOK_SIZE = 256
TALKER_VOCAB_SIZE = CODEBOOK_SIZE + 256
CODEC_PAD_ID, CODEC_BOS_ID, CODEC_EOS_ID, CODEC_MASK_ID = (CODEBOOK_SIZE + n for n in (100, 101, 102, 104))
HEAD_DIM = 16
MROPE_SECTION = [2, 3, 3]
MEL_DIM = 80

RENAMED = {
    "<|image_pad|>": "<|IMAGE|>",
    "<|audio_pad|>": "<|AUDIO|>",
    "<|video_pad|>": "<|VIDEO|>",
    "<|vision_start|>": "<|vision_bos|>",
    "<|vision_end|>": "<|vision_eos|>",
    "<|audio_start|>": "<|audio_bos|>",
    "<|audio_end|>": "<|audio_eos|>",
}
"""Special tokens that this family calls otherwise."""


@dataclass(frozen=True, slots=True)
class Qwen25Size:
    """One architecture. Widths are in features."""

    thinker_width: int
    thinker_layers: int
    talker_width: int
    talker_layers: int
    tower_width: int
    tower_layers: int
    dit_width: int
    dit_layers: int
    vocoder_width: int
    shard_bytes: int = 64 * 2**20


QWEN25_SIZES = {
    "tiny": Qwen25Size(64, 3, 48, 2, 32, 3, 64, 4, 128),
    "small": Qwen25Size(256, 4, 192, 3, 128, 4, 128, 6, 256),
}


def qwen25_config(size: Qwen25Size, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """config.json of a Qwen2.5-Omni checkpoint of this size. `ids` maps special tokens and roles to ids."""
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "dtype": "float32",
        "enable_audio_output": True,
        "thinker_config": _thinker(size, ids, vocab_size),
        "talker_config": _talker(size, ids),
        "token2wav_config": {"dit_config": _dit(size), "bigvgan_config": _bigvgan(size)},
    }


def qwen25_generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """Greedy text; the talker samples as released."""
    return {
        "do_sample": False,
        "max_new_tokens": 48,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "talker_max_new_tokens": 200,
    }


def _modality_ids(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "audio_token_index": ids["<|audio_pad|>"],
        "image_token_index": ids["<|image_pad|>"],
        "video_token_index": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }


def _decoder(vocab_size: int, width: int, num_layers: int) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": MROPE_SECTION}
    return {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": width // HEAD_DIM,
        "num_key_value_heads": 1 if width // HEAD_DIM % 2 else 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "rope_parameters": rope,
    }


def _thinker(size: Qwen25Size, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    text = _decoder(vocab_size, size.thinker_width, size.thinker_layers)
    return {
        "model_type": "qwen2_5_omni_thinker",
        "text_config": text | {"model_type": "qwen2_5_omni_text"},
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder",
            "num_mel_bins": 128,
            "d_model": size.tower_width,
            "encoder_layers": size.tower_layers,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * size.tower_width,
            "activation_function": "gelu",
            "max_source_positions": 1500,
            "n_window": 100,
            "output_dim": size.thinker_width,
        },
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": size.tower_layers,
            "hidden_size": size.tower_width,
            "intermediate_size": 2 * size.tower_width,
            "num_heads": 2,
            "hidden_act": "silu",
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "out_hidden_size": size.thinker_width,
            "fullatt_block_indexes": [size.tower_layers - 1],
        },
        "user_token_id": ids["user"],
        "tie_word_embeddings": False,
        **_modality_ids(ids),
    }


def _talker(size: Qwen25Size, ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_talker",
        **_decoder(TALKER_VOCAB_SIZE, size.talker_width, size.talker_layers),
        "embedding_size": size.thinker_width,
        "spatial_merge_size": 2,
        "tts_text_start_token_id": ids["<tts_text_bos>"],
        "tts_text_end_token_id": ids["<tts_text_eod>"],
        "tts_text_pad_token_id": ids["<tts_pad>"],
        "tts_codec_pad_token_id": CODEC_PAD_ID,
        "tts_codec_start_token_id": CODEC_BOS_ID,
        "tts_codec_end_token_id": CODEC_EOS_ID,
        "tts_codec_mask_token_id": CODEC_MASK_ID,
        **_modality_ids(ids),
    }


def _dit(size: Qwen25Size) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_dit",
        "hidden_size": size.dit_width,
        "num_hidden_layers": size.dit_layers,
        "num_attention_heads": size.dit_width // 32,
        "head_dim": 32,
        "ff_mult": 2,
        "emb_dim": size.dit_width // 2,
        "num_embeds": CODEBOOK_SIZE + 1,
        "repeats": 2,
        "mel_dim": MEL_DIM,
        "block_size": 24,
        "look_ahead_layers": [size.dit_layers // 2],
        "look_backward_layers": [0, size.dit_layers - 1],
        "enc_emb_dim": 32,
        "enc_dim": 32,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_res2net_scale": 2,
        "enc_se_channels": 16,
        "dropout": 0.0,
    }


def _bigvgan(size: Qwen25Size) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_omni_bigvgan",
        "mel_dim": MEL_DIM,
        "upsample_initial_channel": size.vocoder_width,
        "upsample_rates": [5, 3, 2, 2, 2, 2],
        "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    }
