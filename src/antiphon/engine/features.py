"""Encoder outputs by content key: written by the encoders, read by the stage that embeds the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Features:
    """One media part as embeddings [tokens, H]; what is seen also brings deepstack rows, each [tokens, H]."""

    embeddings: Tensor
    deepstack: tuple[Tensor, ...] = ()


class FeatureStore:
    """A plain store. What is kept and dropped is decided elsewhere."""

    def __init__(self) -> None:
        self._features: dict[int, Features] = {}

    def put(self, key: int, features: Features) -> None:
        self._features[key] = features

    def get(self, key: int) -> Features:
        return self._features[key]

    def drop(self, keys: tuple[int, ...]) -> None:
        for key in keys:
            self._features.pop(key, None)
