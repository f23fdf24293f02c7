"""How long a decoder stage's requests may become, and how many blocks that takes."""

from __future__ import annotations

from antiphon.core.config import ArConfig
from antiphon.stage.requests import ArRequest


class Sizes:
    """Sizes of requests in a stage of `num_blocks` blocks per KV group."""

    def __init__(self, config: ArConfig, num_blocks: int) -> None:
        self._config = config
        self._held = num_blocks * config.block_size

    @property
    def capacity(self) -> int:
        """Tokens that one request may have in the KV if it is alone there."""
        most = self._config.max_context_tokens
        return self._held if most is None else min(most, self._held)

    def limit(self, request: ArRequest) -> int:
        """Tokens to draw, at most what the context holds beside the prompt.

        A frame stage draws one less than asked: the last code of a cut reply is never spoken.
        """
        most = request.sampling.max_tokens
        most = most if self._config.width == 1 else max(most - 1, 1)
        return min(most, self.capacity - len(request.prompt.token_ids))

    def promise(self, request: ArRequest) -> int:
        """Blocks that must be there for the request to get a row: what it computes at once, and headroom."""
        prompt = len(request.prompt.token_ids)
        first = self._blocks(prompt + len(request.tokens)) + self._config.headroom_blocks
        return min(first, self._blocks(prompt + self.limit(request)))

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._config.block_size)
