"""Moves payloads between stages that live in one process: nothing is copied that needn't be.

What goes to another process, or comes from one, is taken out and put in here as well.
"""

from __future__ import annotations

from torch import Tensor

from antiphon.core.plans import DropMedia, DropPayload, Handoff, SendMedia
from antiphon.engine.features import Features, FeatureStore
from antiphon.engine.speech import SpeechRunner
from antiphon.engine.text import TextRunner


class InlinePayloads:
    """Implements `core.ports.PayloadMover`."""

    def __init__(
        self, sources: dict[str, TextRunner], targets: dict[str, SpeechRunner], features: FeatureStore
    ) -> None:
        self._sources = sources
        self._targets = targets
        self._features = features

    def handoff(self, order: Handoff) -> None:
        self.put_rows(order.target, order.request, self.rows(order))

    def drop_payload(self, order: DropPayload) -> None:
        self._targets[order.target].drop(order.request)

    def drop_media(self, order: DropMedia) -> None:
        if order.unit in self._sources:
            self._sources[order.unit].drop_media(order.keys)
        else:
            self._features.drop(order.keys)

    def send_media(self, order: SendMedia) -> None:
        raise AssertionError("within one process nothing has to be sent")

    def rows(self, order: Handoff) -> Tensor:
        """What the order moves: a copy, [m, H]."""
        return self._sources[order.source].payload(order.row, order.positions)

    def put_rows(self, target: str, request: int, rows: Tensor) -> None:
        self._targets[target].receive(request, rows)

    def features(self, key: int) -> Features:
        """Encoded here. Raises KeyError where they are not (any more)."""
        return self._features.get(key)

    def put_features(self, reader: str, key: int, features: Features) -> None:
        """Encoded elsewhere, for one unit that reads them."""
        self._sources[reader].receive_media(key, features)
