"""The thinker: a mixture-of-experts decoder over text, with encoder outputs in the place of media tokens.

It writes the reply's text. For the talker it keeps one layer's hidden states at the media positions of the
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.nn.attention import LayerKv
from antiphon.nn.transfers import Transfers


class Thinker:
    """Embedding, decoder and head."""

    def __init__(self, config: Qwen3OmniConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.capture_layer = config.capture_layer
        self.embedding = params["embedding"]
        self.decoder = Decoder(config.thinker, params, head=params["head"])

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
        of all, and, where asked for, the hidden states that the talker's prompt needs [n, H]. `deepstack[i]`
        [v, H] belongs to the tokens `visual` int64 [v].
        """
        layer = self.capture_layer if capture else None
        return self.decoder.forward(
            x,
            positions,
            kv,
            capture=layer,
            deepstack=deepstack,
            visual=visual,
            transfers=transfers,
            wanted=wanted,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Final-norm hidden [r, H] -> fp32 [r, V]."""
        return self.decoder.logits(hidden).float()
