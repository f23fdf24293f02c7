"""What the stages need to know of a Qwen3-Omni checkpoint, read from its config.json. Free of torch.

Released files and those that transformers 5 writes differ in places; both are read. Anything missing is
reported with its path in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.errors import CheckpointError
from antiphon.models.decoder_config import DecoderConfig, Section

SUPPRESSED_IDS = 1024
"""The last ids of the talker's vocabulary are control ids; of these only the end of speech may be sampled."""

DEFAULT_MROPE = (24, 20, 20)
"""The family's M-RoPE sections where config.json doesn't say."""

TALKER_HEADER = 9
"""Positions that a talker prompt has after the user's turns."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids of the text vocabulary that have a meaning in the prompt or steer the talker."""

    im_start: int
    im_end: int
    system: int
    user: int
    assistant: int
    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int
    vision_start: int
    vision_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int

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
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """The codec decoder: a transformer over code frames, two upsampling blocks, four decoder blocks."""

    codebook_size: int
    num_codebooks: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    sliding_window: int
    rms_eps: float
    rope_theta: float
    decoder_size: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]

    @property
    def dilations(self) -> tuple[int, ...]:
        """Of the residual units of a decoder block; no checkpoint says them."""
        return 1, 3, 9

    @property
    def samples_per_frame(self) -> int:
        total = 1
        for rate in self.upsample_rates + self.upsampling_ratios:
            total *= rate
        return total

    @property
    def delay_samples(self) -> int:
        """Samples that the newest frames still owe: each transposed convolution looks one input ahead."""
        delay = 0
        for rate in self.upsample_rates:
            delay = (delay + 1) * rate
        return delay

    def num_samples(self, first_frame: int, num_frames: int) -> int:
        """PCM samples that a chunk of frames yields when `first_frame` frames were decoded before it."""
        return num_frames * self.samples_per_frame - (0 if first_frame else self.delay_samples)


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """Talker, code predictor and vocoder; a checkpoint without speech has none of them."""

    talker: DecoderConfig
    talker_vocab: int
    predictor: DecoderConfig
    predictor_vocab: int
    num_codebooks: int
    accept_layer: int
    codec: CodecIds
    speakers: Mapping[str, int]
    vocoder: VocoderConfig

    def speaker_id(self, name: str) -> int:
        """Case doesn't matter; an unknown voice is a KeyError that names those there are."""
        try:
            return self.speakers[name.lower()]
        except KeyError:
            raise KeyError(f"voice {name!r} is not one of {', '.join(sorted(self.speakers))}") from None


@dataclass(frozen=True, slots=True)
class Qwen3OmniConfig:
    """All stages of one checkpoint. `audio` and `vision` are the encoders' own configs, kept as transformers
    reads them; sizes in tokens, ids of the text vocabulary in `tokens`.
    """

    thinker: DecoderConfig
    thinker_vocab: int
    tokens: TokenIds
    audio: Mapping[str, Any]
    vision: Mapping[str, Any]
    merge_size: int
    positions_per_second: int
    speech: SpeechConfig | None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3OmniConfig:
        """From the parsed config.json; raises CheckpointError."""
        root = Section(config, "")
        thinker = root.section("thinker_config")
        text, vision = thinker.section("text_config"), thinker.section("vision_config")
        talking = config.get("talker_config") is not None and config.get("enable_audio_output", True)
        return cls(
            thinker=DecoderConfig.from_hf(text.values, text.path, DEFAULT_MROPE),
            thinker_vocab=text["vocab_size"],
            tokens=read_tokens(root, thinker),
            audio=thinker.section("audio_config").values,
            vision=vision.values,
            merge_size=vision["spatial_merge_size"],
            positions_per_second=thinker["position_id_per_seconds"],
            speech=read_speech(root) if talking else None,
        )

    @property
    def capture_layer(self) -> int | None:
        """Which hidden states the thinker keeps for the talker (see Decoder.forward), None without speech."""
        return None if self.speech is None else self.speech.accept_layer


def read_tokens(root: Section, thinker: Section) -> TokenIds:
    """Ids stand partly at the root, partly in the thinker's section; vision_start and _end have fixed
    neighbours.
    """
    names = TokenIds.__slots__
    ids = {}
    for name in names:
        key = f"{name}_token_id"
        ids[name] = root.values.get(key, thinker.values.get(key))
    if ids["vision_end"] is None and ids["vision_start"] is not None:
        ids["vision_end"] = ids["vision_start"] + 1
    missing = [f"{name}_token_id" for name, value in ids.items() if value is None]
    if missing:
        raise CheckpointError(f"config.json: no {', '.join(missing)} at the root or in thinker_config")
    return TokenIds(**ids)


def read_speech(root: Section) -> SpeechConfig:
    talker = root.section("talker_config")
    text, predictor = talker.section("text_config"), talker.section("code_predictor_config")
    speech = SpeechConfig(
        talker=DecoderConfig.from_hf(text.values, text.path, DEFAULT_MROPE),
        talker_vocab=text["vocab_size"],
        predictor=DecoderConfig.from_hf(predictor.values, predictor.path),
        predictor_vocab=predictor["vocab_size"],
        num_codebooks=talker["num_code_groups"],
        accept_layer=talker["accept_hidden_layer"],
        codec=read_codec(talker),
        speakers={name.lower(): speaker for name, speaker in talker["speaker_id"].items()},
        vocoder=read_vocoder(root.section("code2wav_config")),
    )
    check_speech(speech)
    return speech


def read_codec(talker: Section) -> CodecIds:
    return CodecIds(
        pad=talker["codec_pad_id"],
        bos=talker["codec_bos_id"],
        eos=talker["codec_eos_token_id"],
        nothink=talker["codec_nothink_id"],
        think_bos=talker["codec_think_bos_id"],
        think_eos=talker["codec_think_eos_id"],
    )


def read_vocoder(section: Section) -> VocoderConfig:
    rope = section.values.get("rope_parameters") or {}
    return VocoderConfig(
        codebook_size=section["codebook_size"],
        num_codebooks=section["num_quantizers"],
        hidden_size=section["hidden_size"],
        num_layers=section["num_hidden_layers"],
        num_heads=section["num_attention_heads"],
        num_kv_heads=section["num_key_value_heads"],
        head_dim=section.values.get("head_dim") or section["hidden_size"] // section["num_attention_heads"],
        intermediate_size=section["intermediate_size"],
        sliding_window=section["sliding_window"],
        rms_eps=section["rms_norm_eps"],
        rope_theta=rope["rope_theta"] if "rope_theta" in rope else section["rope_theta"],
        decoder_size=section["decoder_dim"],
        upsample_rates=tuple(section["upsample_rates"]),
        upsampling_ratios=tuple(section["upsampling_ratios"]),
    )


def check_speech(speech: SpeechConfig) -> None:
    """What the reference leaves to crash later."""
    wrong = []
    if speech.predictor.hidden_size != speech.talker.hidden_size:
        wrong.append("code predictor and talker differ in hidden_size")
    if speech.num_codebooks != speech.vocoder.num_codebooks:
        wrong.append(
            f"num_code_groups {speech.num_codebooks} is not num_quantizers {speech.vocoder.num_codebooks}"
        )
    ids = [*(getattr(speech.codec, name) for name in CodecIds.__slots__), *speech.speakers.values()]
    if max(ids) >= speech.talker_vocab:
        wrong.append(
            f"a codec or speaker id is {max(ids)}, the talker's vocabulary has {speech.talker_vocab}"
        )
    if wrong:
        raise CheckpointError("config.json: talker_config: " + "; ".join(wrong))
