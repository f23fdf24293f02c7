"""Executor of the encoder stage: raw media to features in the store."""

from __future__ import annotations

import logging

import numpy as np
import torch

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone, StepFailed
from antiphon.core.plans import EncodeStep, Step
from antiphon.engine.family import MediaModel
from antiphon.engine.features import Features, FeatureStore
from antiphon.engine.lanes import InlineExecutor, Landing, landing, mark

log = logging.getLogger(__name__)


class EncoderExecutor(InlineExecutor):
    """Runs the steps of the encoders."""

    def __init__(self, model: MediaModel, features: FeatureStore) -> None:
        super().__init__()
        self._model = model
        self._features = features

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, EncodeStep)
        return landing(lambda: self._begin(step), lambda error: self._failed(step, error))

    def _begin(self, step: EncodeStep) -> Landing:
        encoded = self._encode(step)
        for key, features in encoded.items():
            self._features.put(key, features)
        wait = mark(next(iter(encoded.values())).embeddings.device)

        def land() -> StepDone:
            wait()
            return StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, _keys(step))

        return land

    def _failed(self, step: EncodeStep, error: Exception) -> StepFailed:
        log.exception("step %d of stage %s failed", step.step, step.stage)
        return StepFailed(step.stage, step.step, NO_INTS, _keys(step), f"{type(error).__name__}: {error}")

    @torch.inference_mode()
    def _encode(self, step: EncodeStep) -> dict[int, Features]:
        """All of the step's media or, by an exception, none: what failed must not stay in the store.

        Cloned, because a view would keep the whole step's outputs for as long as one medium is kept.
        """
        encoded = zip(step.media, self._model.encode(step.media), strict=True)
        return {
            part.key: Features(rows.clone(), tuple(layer.clone() for layer in deep))
            for part, (rows, deep) in encoded
        }


def _keys(step: EncodeStep) -> Ints:
    return np.array([part.key for part in step.media], np.int64)
