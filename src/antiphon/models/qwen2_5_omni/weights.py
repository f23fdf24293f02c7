"""Which tensors of a released Qwen2.5-Omni checkpoint a stage needs, and how they become its parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch

from antiphon.models.layout import Layout, decoder_layout, module_layout, speech_of
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig


def thinker_layout(layout: Layout, config: Qwen25OmniConfig) -> None:
    table = config.thinker_vocab, config.thinker.hidden_size
    layout.whole("embedding", "thinker.model.embed_tokens.weight", *table)
    decoder_layout(layout, "", "thinker.model.", config.thinker)
    if not config.is_tied:
        layout.whole("head", "thinker.lm_head.weight", *table)


def talker_layout(layout: Layout, config: Qwen25OmniConfig) -> None:
    """It shows text by the thinker's embedding, so that is loaded too."""
    speech = speech_of(config.speech)
    wide, narrow = speech.embedding_size, speech.talker.hidden_size
    layout.whole("text_table", "thinker.model.embed_tokens.weight", config.thinker_vocab, wide)
    layout.whole("codes_table", "talker.model.embed_tokens.weight", speech.talker_vocab, wide)
    layout.whole("projection", "talker.thinker_to_talker_proj.weight", narrow, wide)
    layout.whole("projection_bias", "talker.thinker_to_talker_proj.bias", narrow)
    decoder_layout(layout, "", "talker.model.", speech.talker)
    layout.whole("head", "talker.codec_head.weight", speech.talker_vocab, narrow)


def encoders_layout(layout: Layout, config: Qwen25OmniConfig) -> None:
    from antiphon.models.qwen2_5_omni.encoders import audio_tower, vision_tower

    with torch.device("meta"):
        module_layout(layout, "audio.", "thinker.audio_tower.", audio_tower(config.audio))
        module_layout(layout, "vision.", "thinker.visual.", vision_tower(config.vision))


def token2wav_layout(layout: Layout, config: Qwen25OmniConfig) -> None:
    from antiphon.models.qwen2_5_omni.token2wav import bigvgan, dit

    speech = speech_of(config.speech)
    with torch.device("meta"):
        module_layout(layout, "dit.", "token2wav.code2wav_dit_model.", dit(speech.dit))
        module_layout(layout, "bigvgan.", "token2wav.code2wav_bigvgan_model.", bigvgan(speech.bigvgan))


LAYOUTS: dict[str, Callable[[Layout, Qwen25OmniConfig], None]] = {
    "encoders": encoders_layout,
    "thinker": thinker_layout,
    "talker": talker_layout,
    "token2wav": token2wav_layout,
}
"""By the stages of the graph."""
