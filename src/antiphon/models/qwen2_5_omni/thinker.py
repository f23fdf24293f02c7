"""The thinker: a dense decoder over text, with encoder outputs in the place of media tokens.

The talker is shown its final states, of the prompt and of every token of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig
from antiphon.nn.attention import LayerKv
from antiphon.nn.transfers import Transfers


class Thinker:
    """Embedding, decoder and head."""

    def __init__(self, config: Qwen25OmniConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = params["embedding"]
        self.decoder = Decoder(config.thinker, params, head=params.get("head", self.embedding))

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, H]. The caller puts the encoders' rows where media stand in the prompt."""
        return F.embedding(ids, self.embedding)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        kv: Sequence[LayerKv],
        *,
        capture: bool = False,
        deepstack: Sequence[Tensor] | None = None,
        visual: Tensor | None = None,
        transfers: Transfers | None = None,
        wanted: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One step: x [n, H], positions [3, n] or [n] -> final-norm hidden of the tokens `wanted` [m, H], or
        of all; that of all is also what the talker is shown. This family has no deepstack.
        """
        layer = self.decoder.config.num_layers if capture else None
        return self.decoder.forward(x, positions, kv, capture=layer, transfers=transfers, wanted=wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final-norm hidden [r, H] -> fp32 [r, V]."""
        return self.decoder.logits(hidden).float()
