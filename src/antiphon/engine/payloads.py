"""Moves payloads between stages that live in one process: nothing is copied that needn't be."""

from __future__ import annotations

from antiphon.core.plans import DropMedia, DropPayload, Handoff
from antiphon.engine.features import FeatureStore
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
        rows = self._sources[order.source].payload(order.row, order.positions)
        self._targets[order.target].receive(order.request, rows)

    def drop_media(self, order: DropMedia) -> None:
        self._features.drop(order.keys)

    def drop_payload(self, order: DropPayload) -> None:
        self._targets[order.target].drop(order.request)
