"""Executor of the encoder stage: raw media to features in the store."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from antiphon.core.conversation import AudioPart, ImagePart
from antiphon.core.facts import NO_INTS, NO_TOKENS, Fact, StepDone, StepFailed
from antiphon.core.plans import EncodeStep, Step
from antiphon.engine.features import Features, FeatureStore
from antiphon.models.qwen3_omni.encoders import Encoders
from antiphon.models.qwen3_omni.preprocess import AudioPreprocessor, ImagePreprocessor

log = logging.getLogger(__name__)


class EncoderExecutor:
    """Runs steps when they are submitted (depth 0). Implements `core.ports.Executor`."""

    depth = 0

    def __init__(self, model: Encoders, checkpoint: Path, features: FeatureStore) -> None:
        self._model = model
        self._audio = AudioPreprocessor(checkpoint)
        self._image = ImagePreprocessor(checkpoint)
        self._features = features
        self._done: list[Fact] = []

    def submit(self, step: Step) -> None:
        assert isinstance(step, EncodeStep)
        keys = np.array([part.key for part in step.media], np.int64)
        try:
            for key, features in self._encode(step).items():
                self._features.put(key, features)
            self._done.append(StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, keys))
        except Exception as error:
            log.exception("step %d of stage %s failed", step.step, step.stage)
            self._done.append(
                StepFailed(step.stage, step.step, NO_INTS, keys, f"{type(error).__name__}: {error}")
            )

    def poll(self) -> list[Fact]:
        done, self._done = self._done, []
        return done

    @torch.inference_mode()
    def _encode(self, step: EncodeStep) -> dict[int, Features]:
        """All of the step's media or, by an exception, none: what failed must not stay in the store.

        Cloned, because a view would keep the whole step's outputs for as long as one medium is kept.
        """
        encoded: dict[int, Features] = {}
        audio = [part for part in step.media if isinstance(part, AudioPart)]
        images = [part for part in step.media if isinstance(part, ImagePart)]
        if audio:
            mels = [self._audio.mel(np.frombuffer(part.samples, np.float32)) for part in audio]
            for part, rows in zip(audio, self._model.audio.encode(mels), strict=True):
                encoded[part.key] = Features(rows.clone())
        if images:
            prepared = [self._image.patches_of(part.rgb, part.width, part.height) for part in images]
            patches, grids = zip(*prepared, strict=True)
            for part, (rows, deep) in zip(images, self._model.vision.encode(patches, grids), strict=True):
                encoded[part.key] = Features(rows.clone(), tuple(layer.clone() for layer in deep))
        return encoded
