"""What preprocessor_config.json says of recordings: windows as Whisper's feature extractor cuts them."""

from __future__ import annotations

from typing import Any


def whisper_features(mel_bins: int, *, with_mask: bool, **more: Any) -> dict[str, Any]:
    """Windows of 30 s at 16 kHz, a frame each 10 ms; `more` keys stand where released files have them."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "chunk_length": 30,
        **more,
        "feature_size": mel_bins,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": with_mask,
        "sampling_rate": 16000,
    }
