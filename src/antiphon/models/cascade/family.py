"""A cascade, for the engine: each stage is that of a part, whose files are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.core.errors import CheckpointError
from antiphon.core.ports import Prompter
from antiphon.core.sampling import Sampling
from antiphon.graphs import find_graph
from antiphon.latency.shapes import DecoderShape, EncodersShape, ModelShape, ReaderShape, TowerShape
from antiphon.models.cascade.vits_layout import VitsConfig, voice_layout
from antiphon.models.cascade.whisper import (
    FRAMES_PER_POSITION,
    WhisperConfig,
    decoder_layout,
    encoder_layout,
)
from antiphon.models.family import Family
from antiphon.models.geometry import Json, stage_sizes
from antiphon.models.layout import Layout
from antiphon.models.text.family import TextFamily
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import Place, StageSource

VOICE = "default"
"""A voice's files name it nowhere."""
PART_OF = {"ears": "transcriber", "transcriber": "transcriber", "thinker": "thinker", "voice": "voice"}
POSITIONS_PER_S = 50
"""Of the encoder: two mel frames of 10 ms each."""
NO_SPEECH = 0.6
"""From which probability on nobody speaks in a recording, as Whisper has it; config.json may say another."""
MOST_TRANSCRIPTS = 4
"""Rows of the transcriber where nobody chose: they are short, and each attends to a whole window."""


@dataclass(frozen=True, slots=True)
class CascadeConfig:
    """`writer` is the family of the thinker, `thinker` a config of its type. silent_tail: of a recording only
    what was said is encoded. directories: the parts' by name."""

    transcriber: WhisperConfig
    writer: TextFamily
    thinker: Any
    voice: VitsConfig
    silent_tail: bool
    directories: dict[str, Path]


class Cascade(Family):
    name = "a cascade"

    def read_config(self, values: Mapping[str, Any]) -> CascadeConfig:
        thinker = values["thinker"]
        graph = find_graph(thinker.get("model_type", ""))
        writer = import_module(graph.module).FAMILY if graph.module else None
        if not isinstance(writer, TextFamily):
            raise CheckpointError(
                f"thinker: {thinker['model_type']!r} is not a model that reads and writes text"
            )
        return CascadeConfig(
            transcriber=WhisperConfig.from_dict(
                values["transcriber"],
                values["generation"]["transcriber"],
                _threshold(values.get("no_speech_threshold", NO_SPEECH)),
            ),
            writer=writer,
            thinker=writer.read_config(thinker),
            voice=VitsConfig.from_dict(values["voice"]),
            silent_tail=_silent_tail(values.get("silent_tail", True)),
            directories=_directories(values),
        )

    def read_geometry(self, config: CascadeConfig, generation: Json, options: EngineOptions) -> NodeConfig:
        node = config.writer.read_geometry(config.thinker, generation, options)
        hearing = config.transcriber
        sizes = dict(stage_sizes(options, "transcriber"))
        if "transcriber" not in options.stages:
            sizes["max_rows"] = min(sizes["max_rows"], MOST_TRANSCRIPTS)
            sizes["step_rows"] = None
        # a prompt is never divided: where its transcript starts says whether anybody speaks
        sizes["step_tokens"] = max(sizes["step_tokens"], sizes["max_rows"] * hearing.targets)
        needed = sizes["max_rows"] * -(-hearing.targets // sizes["block_size"])
        sizes["num_blocks"] = min(sizes["num_blocks"], needed)  # of its KV nothing rests
        transcriber = ArConfig(
            **sizes,
            stop_ids=hearing.stop_ids,
            sampling=Sampling(max_tokens=hearing.targets - len(hearing.prompt)),
            max_context_tokens=hearing.targets,
        )
        return msgspec.structs.replace(
            node,
            graph="cascade",
            ar={"transcriber": transcriber, **node.ar},
            codec={"voice": CodecConfig(options.of("voice").max_rows)},
            encoder={"ears": EncoderConfig()},
            transcript_prompt=hearing.prompt,
        )

    def max_recording_s(self, config: CascadeConfig) -> float:
        """The transcriber's window: 100 frames are a second."""
        return config.transcriber.positions * FRAMES_PER_POSITION / 100

    def languages(self, config: CascadeConfig) -> tuple[str, ...]:
        return tuple(config.transcriber.languages)

    def latin_only(self, config: CascadeConfig) -> bool:
        """Of English phonemes; what a voice of characters says is in its table."""
        from antiphon.models.cascade.symbols import has_phonemes

        return has_phonemes(config.directories["voice"])

    def read_shape(self, config: CascadeConfig, name: str) -> ModelShape:
        """The transcriber's attention to an encoder and its plain MLP weigh what a gated MLP of this size
        does."""
        hearing = config.transcriber
        transcriber = DecoderShape(
            layers=hearing.decoder_layers,
            hidden=hearing.hidden,
            heads=hearing.decoder_heads,
            kv_heads=hearing.decoder_heads,
            head_dim=hearing.hidden // hearing.decoder_heads,
            vocab=hearing.vocab,
            mlp=(2 * hearing.decoder_mlp + 4 * hearing.hidden) // 3,
        )
        stages = config.writer.read_shape(config.thinker, name).stages
        ears = TowerShape(
            hearing.encoder_layers,
            hearing.hidden,
            hearing.encoder_mlp,
            stem=3 * hearing.hidden * (FRAMES_PER_POSITION * hearing.mel_bins + hearing.hidden),
        )
        heard = EncodersShape(ears, window=hearing.positions, tokens_per_s=POSITIONS_PER_S)
        voice = {"voice": self._voice_shape(config.voice)}
        return ModelShape(name, {"ears": heard, "transcriber": transcriber, **stages, **voice})

    def _voice_shape(self, voice: VitsConfig) -> ReaderShape:
        """Frames of the longest phrases are taken for ten seconds."""
        from antiphon.models.cascade.voice import WINDOW

        layout = Layout()
        voice_layout(layout, voice)
        widest, rate, channels = voice.channels, 1, voice.channels
        for factor in voice.rates:
            rate, channels = rate * factor, channels // 2
            widest = max(widest, rate * channels)
        return ReaderShape(
            weights=sum(prod(source.shape) for source in layout.sources.values()),
            stream_elements=10 * voice.sample_rate // voice.hop * voice.flow_size,
            window_elements=(WINDOW + 2 * voice.context) * widest,
        )

    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
        from antiphon.models.cascade.prompt import load_prompter

        known = self.read_config(config)
        return load_prompter(known.directories, known.transcriber, known.thinker.vocab, max_prompt_tokens)

    def voices(self, config: CascadeConfig, path: Path) -> tuple[str, ...]:
        return (VOICE,)

    def dtype_of(self, stage: str, dtype: torch.dtype) -> torch.dtype:
        """Sound and hearing are computed in single precision at least."""
        return dtype if stage == "thinker" or dtype is torch.float64 else torch.float32

    def layout(self, stage: str, config: CascadeConfig) -> Layout:
        """Sources go by the part, and the name in it."""
        if stage == "thinker":
            layout = config.writer.layout(stage, config.thinker)
        else:
            layout = Layout()
            if stage == "voice":
                voice_layout(layout, config.voice)
            if stage == "transcriber":
                decoder_layout(layout, config.transcriber)
            if stage == "ears" or (stage == "transcriber" and config.silent_tail):
                encoder_layout(layout, config.transcriber)
        layout.sources = {f"{PART_OF[stage]}/{name}": source for name, source in layout.sources.items()}
        return layout

    def build(self, stage: str, config: CascadeConfig, params: dict[str, Tensor]) -> Any:
        """Imports a stage's module when it is built. What needs files beside the weights is put together in
        `load_stage`."""
        if stage == "thinker":
            return config.writer.build(stage, config.thinker, params)
        if stage == "voice":
            from antiphon.models.cascade.vits import Vits

            return Vits(config.voice, params)
        return params

    def adapt(self, stage: str, module: Any, config: CascadeConfig, checkpoint: Path) -> Any:
        if stage == "thinker":
            return module
        parts = config.directories
        if stage == "voice":
            from antiphon.models.cascade.symbols import symbols_of
            from antiphon.models.cascade.voice import VitsVoice

            tokenizer = Tokenizer.from_file(str(parts["thinker"] / "tokenizer.json"))
            return VitsVoice(module, symbols_of(parts["voice"]), tokenizer)
        from antiphon.models.cascade.hearing import Hearing, WhisperEars
        from antiphon.models.cascade.whisper import WhisperDecoder, WhisperEncoder

        ears = WhisperEars(parts["transcriber"])
        tail = config.silent_tail
        hearing = (
            Hearing(WhisperEncoder(config.transcriber, module), ears, silent_tail=tail) if tail else None
        )
        if stage == "transcriber":
            return WhisperDecoder(config.transcriber, module, None if hearing is None else hearing.silence)
        return hearing or Hearing(WhisperEncoder(config.transcriber, module), ears, silent_tail=False)

    def load_stage(
        self, source: StageSource, place: Place, checkpoint: Path, shard: Shard | None = None
    ) -> Any:
        with torch.no_grad():
            return super().load_stage(source, place, checkpoint, shard)


def _silent_tail(told: object) -> bool:
    if not isinstance(told, bool):
        raise CheckpointError(f"silent_tail is {told!r}; it must be true or false")
    return told


def _threshold(told: object) -> float | None:
    """`no_speech_threshold`; with null or 1 nobody asks whether anybody speaks."""
    if not isinstance(told, bool) and told in (None, 1):
        return None
    if not isinstance(told, int | float) or not 0 < told < 1:
        raise CheckpointError(f"no_speech_threshold is {told!r}; it must be over 0 and at most 1, or null")
    return told


def _directories(config: Mapping[str, Any]) -> dict[str, Path]:
    return {part: Path(directory) for part, directory in config["directories"].items()}


FAMILY = Cascade()
