"""What the engine asks of a model family, and of the models of its stages.

A graph names the module; nothing else in the engine knows which family it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.conversation import Media
from antiphon.core.facts import Ints, StagePrompt
from antiphon.core.graph import StageGraph
from antiphon.core.ports import Prompter
from antiphon.latency.shapes import ModelShape
from antiphon.nn.backends import Backend
from antiphon.nn.graphs import Capture
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import Pairs, Place, StageSource
from antiphon.nn.step import StepInputs

Pages = Sequence[tuple[Tensor, Tensor]]
"""Per layer keys and values, each [blocks, block_size, num_kv_heads, head_dim]."""


def family_of(graph: StageGraph) -> Family:
    """The one that the graph's module has as FAMILY."""
    return import_module(graph.module).FAMILY


class Family(Protocol):
    """What a family answers. Config is its own type."""

    demo: ClassVar[Mapping[str, Any]]

    def read_config(self, values: Mapping[str, Any]) -> Any: ...

    def read_geometry(
        self, config: Any, generation: Mapping[str, Any], options: EngineOptions
    ) -> NodeConfig: ...

    def read_shape(self, config: Any, name: str) -> ModelShape:
        """What latency models are made from, of a model called so."""
        ...

    def call_ids(self, path: Path) -> tuple[int, ...]:
        """Text tokens that begin a tool call, of a checkpoint's directory."""
        ...

    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter: ...

    def voices(self, config: Any, path: Path) -> tuple[str, ...]: ...

    def max_recording_s(self, config: Any) -> float: ...

    def languages(self, config: Any) -> tuple[str, ...]: ...

    def latin_only(self, config: Any) -> bool: ...

    def tensor_names(self, stage: str, config: Any) -> list[str]: ...

    def tensor_shapes(self, stage: str, config: Any) -> dict[str, tuple[int, ...]]: ...

    def load_stage(
        self, source: StageSource, place: Place, checkpoint: Path, shard: Shard | None = None
    ) -> Any:
        """MediaModel, TextModel, SpeechModel, VocoderModel or WindowedVocoder, by the stage.

        With `shard`, a paged decoder has rank 0's part of its layers and of its head.
        """
        ...

    def check_ranks(self, stage: str, config: Any, ranks: int) -> None:
        """Raises ConfigError unless so many ranks can divide a stage's paged decoder among them."""
        ...

    def load_follower(
        self,
        stage: str,
        read: Callable[[list[str]], Pairs],
        config: Any,
        place: Place,
        shard: Shard,
    ) -> FollowerModel:
        """Another rank's part of a paged decoder; `read` gives the checkpoint tensors of these names."""
        ...


class MediaModel(Protocol):
    """Encoders."""

    def encode(self, media: Sequence[Media]) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        """Per medium embeddings [tokens, H] and deepstack rows, each [tokens, H]."""
        ...


class DecoderModel(Protocol):
    """What every paged decoder has."""

    device: torch.device
    vocab_size: int

    def use_backend(self, backend: Backend, capture: Capture | None = None) -> None:
        """From now on steps are computed so; with `capture`, decode steps are captured and replayed."""
        ...

    def new_pages(self, num_blocks: int, block_size: int) -> Pages: ...

    def positions(self, prompt: StagePrompt) -> tuple[NDArray[np.float32], float]:
        """fp32 [3, n], and the position of the token after the prompt."""
        ...

    def forward(self, step: StepInputs) -> tuple[Tensor, Tensor | None]:
        """Final-norm hidden [m, H] of the tokens `step.wanted`, or of all; and what was captured [n, H]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Final-norm hidden [r, H] -> fp32 [r, vocab_size]."""
        ...


class FollowerModel(Protocol):
    """A decoder's part on a rank other than 0."""

    def use_backend(self, backend: Backend) -> None: ...

    def new_pages(self, num_blocks: int, block_size: int) -> Pages: ...

    def forward(self, step: StepInputs) -> object:
        """This rank's part of a step; its results are in the sums."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Final-norm hidden [r, H] -> fp32 [r, this rank's part of the vocabulary]."""
        ...


class TextModel(DecoderModel, Protocol):
    """A decoder that writes text. `payload_size` is the width of the hidden states it keeps for a stage that
    speaks (0: none), of type `dtype`; `keeps_all` are those of every token, else of media alone. They are the
    output of the first `capture_layer` layers (None: nothing is kept)."""

    dtype: torch.dtype
    payload_size: int
    capture_layer: int | None
    keeps_all: bool

    def embed(self, ids: Tensor) -> Tensor: ...


class CrossModel(TextModel, Protocol):
    """A decoder that writes what an encoder's output says: each of its layers attends to that as well.

    cross_length  positions of an encoder's output that it attends to
    tail          [cross_length, H], the output that stands behind every shorter one; None: none is shorter
    """

    cross_length: int
    tail: Tensor | None

    def cross_kv(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """An encoder's output [n, H] -> each layer's keys and values of it, each [n, heads, d]."""
        ...


class SpeechModel(DecoderModel, Protocol):
    """A decoder that speaks: text tokens in beside its own frames. `pad_id` follows the last of the text.

    streamed_size  width of the upstream state that comes with each token of the text; 0: none does
    prompt_codes   int64, codes that the repetition penalty counts from the start
    """

    dtype: torch.dtype
    num_codebooks: int
    hidden_size: int
    streamed_size: int
    pad_id: int
    suppressed: Tensor
    prompt_codes: Tensor

    def prompt_inputs(
        self, prompt: StagePrompt, hidden: Tensor | None, first_token: int, voice: str | None
    ) -> Tensor:
        """[n, H]; `hidden` are the upstream states at `prompt.gather`."""
        ...

    def step_inputs(self, frames: Tensor, text_ids: Tensor, states: Tensor | None = None) -> Tensor:
        """frames int64 [r, codebooks] and text ids [r] -> [r, H]; `states` [r, streamed_size] are zeros where
        the text is over."""
        ...

    def frame(self, hidden: Tensor, c0: Tensor, pick: Callable[[Tensor, int], Tensor]) -> Tensor:
        """hidden [r, H] and code 0 int64 [r] -> frames int64 [r, num_codebooks]."""
        ...


class WindowedVocoder(Protocol):
    """A codec decoder that looks ahead. What a stream is, it knows alone."""

    def open(self, voice: str | None) -> Any:
        """A stream that begins."""
        ...

    def decode(self, streams: Sequence[Any], codes: Sequence[Ints], ends: Sequence[bool]) -> list[Tensor]:
        """The next codes int64 [n, codebooks] of each stream, n >= 0 -> fp32 [samples] of what is sure by
        now; of all that is left where the stream ends."""
        ...


class ReadingVocoder(WindowedVocoder, Protocol):
    """One whose codes are tokens of text."""

    def owes(self, stream: Any) -> bool:
        """Did `decode` leave sound of a stream that needs no further codes? It may, step by step, even where
        the stream ends."""
        ...

    def spoken(self, stream: Any) -> list[tuple[int, int]]:
        """Tokens that are over, and after how many samples of the stream, since this was asked last."""
        ...


class VocoderModel(Protocol):
    """A streaming codec decoder. A stream's state is a tuple of tensors with streams on dimension 0."""

    def decode(
        self, codes: Tensor, state: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """codes int64 [b, codebooks, n] -> pcm [b, samples] and the new state."""
        ...
