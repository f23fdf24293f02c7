"""Executor of the encoder stage: raw media to features in the store."""

from __future__ import annotations

import numpy as np

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone
from antiphon.core.plans import EncodeStep, Step
from antiphon.engine.family import MediaModel
from antiphon.engine.features import Features, FeatureStore
from antiphon.engine.lanes import Begun, InlineExecutor, Landing


class EncoderExecutor(InlineExecutor):
    """Runs the steps of the encoders."""

    def __init__(self, model: MediaModel, features: FeatureStore) -> None:
        super().__init__()
        self._model = model
        self._features = features

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, EncodeStep)
        keys = np.array([part.key for part in step.media], np.int64)
        return self.launched(step, lambda: self._begin(step, keys), lambda: (NO_INTS, keys))

    def _begin(self, step: EncodeStep, keys: Ints) -> Begun:
        encoded = self._encode(step)
        for key, features in encoded.items():
            self._features.put(key, features)
        done = StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, keys)
        return next(iter(encoded.values())).embeddings.device, lambda: done

    def _encode(self, step: EncodeStep) -> dict[int, Features]:
        """All of the step's media or, by an exception, none: what failed must not stay in the store.

        Cloned, because a view would keep the whole step's outputs for as long as one medium is kept.
        """
        encoded = zip(step.media, self._model.encode(step.media), strict=True)
        return {
            part.key: Features(rows.clone(), tuple(layer.clone() for layer in deep))
            for part, (rows, deep) in encoded
        }
