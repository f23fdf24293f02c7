"""The thinker: a dense decoder over text, with encoder outputs in the place of media tokens.

The talker is shown its final states, of the prompt and of every token of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig


class Thinker:
    """Embedding, decoder and head."""

    def __init__(self, config: Qwen25OmniConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = params["embedding"]
        self.decoder = Decoder(config.thinker, params, head=params.get("head", self.embedding))

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, H]. The caller puts the encoders' rows where media stand in the prompt."""
        return F.embedding(ids, self.embedding)
