"""The thinker: a mixture-of-experts decoder over text, with encoder outputs in the place of media tokens.

It writes the reply's text. For the talker it keeps one layer's hidden states at the media positions of the
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig


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
