"""Paged decoders as the engine's step runners see them: what all have, and those that write text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.facts import StagePrompt
from antiphon.models.decoder import Decoder
from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.backends import Backend
from antiphon.nn.graphs import Capture
from antiphon.nn.layers import Table

Positions = tuple[NDArray[np.float32], float]
"""Positions fp32 [3, n] of a prompt, and that of the token after it."""


class DecoderStage:
    """What the engine asks of any decoder. Implements `engine.family.FollowerModel`."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.device, self.dtype = decoder.norm.device, decoder.norm.dtype
        self.forward, self.logits, self.new_pages = decoder.forward, decoder.logits, decoder.new_pages

    def use_backend(self, backend: Backend, capture: Capture | None = None) -> None:
        """From now on steps are computed so; with `capture`, decode steps are captured and replayed."""
        self.decoder.steps = backend.steps_for(self.decoder.stack, capture)


class Thinker(DecoderStage):
    """Embedding, decoder and head: it writes the reply's text. Implements `engine.family.TextModel`.

    For a stage that speaks it keeps the output of its first `capture_layer` layers (None: nothing), of every
    token (`keeps_all`) or at media alone.
    """

    def __init__(
        self,
        config: DecoderConfig,
        params: Mapping[str, Tensor],
        positions: Callable[[StagePrompt], Positions],
        capture_layer: int | None = None,
        *,
        keeps_all: bool = False,
    ) -> None:
        """Without a "head" the embedding is the head: where that is in panels, rows are read from them."""
        embedding = params["embedding"]
        super().__init__(Decoder(config, params, head=params.get("head", embedding)))
        head = self.decoder.stack.head
        if "head" not in params and head is not None and head.dim() == 3:
            embedding = head
        self._embedding = Table(embedding)
        self.positions, self.capture_layer, self.keeps_all = positions, capture_layer, keeps_all
        self.vocab_size = len(self._embedding)
        self.payload_size = 0 if capture_layer is None else config.hidden_size

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, H]. The caller puts the encoders' rows where media stand in the prompt."""
        return self._embedding.rows(ids)


def plain_positions(prompt: StagePrompt) -> Positions:
    """One position a token, in three equal rows."""
    length = len(prompt.token_ids)
    return np.broadcast_to(np.arange(length, dtype=np.float32), (3, length)), float(length)
