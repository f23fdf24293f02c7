"""What the stages need to know of a Qwen2.5-Omni checkpoint, read from its config.json. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.errors import CheckpointError
from antiphon.models.decoder_config import DecoderConfig, Section
from antiphon.models.geometry import token_ids

DEFAULT_MROPE = (16, 24, 24)
"""The family's M-RoPE sections where config.json doesn't say."""

DEFAULT_CODES = 8193
"""Codes that token2wav knows, less one, where config.json doesn't say."""

FRAME_PIXELS = 128 * 28 * 28, 768 * 28 * 28
"""Fewest and most pixels of a video's frame: the reference's processor names them in every call."""

TALKER_HEADER = 2
"""Positions that a talker prompt has after the thinker's: the voice's start, and the reply's first token."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids of the text vocabulary that have a meaning in the prompt."""

    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int

    @property
    def media(self) -> tuple[int, int, int]:
        """The placeholder ids that encoder outputs replace."""
        return self.audio, self.image, self.video


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Control ids of the talker's vocabulary."""

    pad: int
    bos: int
    eos: int
    mask: int


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """The talker, and token2wav's own configs as transformers reads them.

    text_eos, text_pad  ids of the text vocabulary: what the talker is shown when the text is over
    num_codes           codes that token2wav knows
    """

    talker: DecoderConfig
    talker_vocab: int
    embedding_size: int
    codec: CodecIds
    text_eos: int
    text_pad: int
    num_codes: int
    dit: Mapping[str, Any]
    bigvgan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Qwen25OmniConfig:
    """All stages of one checkpoint. `audio` and `vision` are the encoders' own configs."""

    thinker: DecoderConfig
    thinker_vocab: int
    is_tied: bool
    stop_ids: tuple[int, ...]
    tokens: TokenIds
    audio: Mapping[str, Any]
    vision: Mapping[str, Any]
    merge_size: int
    positions_per_second: int
    seconds_per_chunk: float
    speech: SpeechConfig | None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen25OmniConfig:
        """From the parsed config.json; raises CheckpointError."""
        root = Section(config, "")
        thinker = root.section("thinker_config")
        text, vision = thinker.section("text_config"), thinker.section("vision_config")
        talking = config.get("talker_config") is not None and config.get("enable_audio_output", True)
        stop = thinker.values.get("eos_token_id", text.values.get("eos_token_id"))
        return cls(
            thinker=read_decoder(text),
            thinker_vocab=text["vocab_size"],
            is_tied=thinker.values.get("tie_word_embeddings", False),
            stop_ids=token_ids(stop),
            tokens=read_tokens(thinker),
            audio=thinker.section("audio_config").values,
            vision=vision.values,
            merge_size=vision["spatial_merge_size"],
            positions_per_second=thinker["position_id_per_seconds"],
            seconds_per_chunk=thinker["seconds_per_chunk"],
            speech=read_speech(root) if talking else None,
        )

    @property
    def chunk_ticks(self) -> int:
        """Positions for which a video's frames, and then its sound, have their turn."""
        return int(self.positions_per_second * self.seconds_per_chunk)


def read_decoder(section: Section) -> DecoderConfig:
    """As Qwen2's, with M-RoPE whose sections are runs."""
    return DecoderConfig.from_hf(
        section.values, section.path, DEFAULT_MROPE, qk_norm=False, qkv_bias=True, mrope_interleaved=False
    )


def read_tokens(thinker: Section) -> TokenIds:
    return TokenIds(
        audio=thinker["audio_token_index"],
        image=thinker["image_token_index"],
        video=thinker["video_token_index"],
        audio_start=thinker["audio_start_token_id"],
        audio_end=thinker["audio_end_token_id"],
    )


def read_speech(root: Section) -> SpeechConfig:
    talker, token2wav = root.section("talker_config"), root.section("token2wav_config")
    dit = token2wav.section("dit_config")
    codec = CodecIds(
        pad=talker["tts_codec_pad_token_id"],
        bos=talker["tts_codec_start_token_id"],
        eos=talker["tts_codec_end_token_id"],
        mask=talker["tts_codec_mask_token_id"],
    )
    if max(codec.pad, codec.bos, codec.eos, codec.mask) >= talker["vocab_size"]:
        raise CheckpointError("config.json: talker_config: a codec id is not in the talker's vocabulary")
    return SpeechConfig(
        talker=read_decoder(talker),
        talker_vocab=talker["vocab_size"],
        embedding_size=talker["embedding_size"],
        codec=codec,
        text_eos=talker["tts_text_end_token_id"],
        text_pad=talker["tts_text_pad_token_id"],
        num_codes=dit.values.get("num_embeds", DEFAULT_CODES) + 1,
        dit=dit.values,
        bigvgan=token2wav.section("bigvgan_config").values,
    )
