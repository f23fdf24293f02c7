"""Executor of a windowed codec stage: each stream's sound as far as it is sure, and the rest with its end."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, StepDone, StepFailed
from antiphon.core.plans import CodecStep, Step
from antiphon.engine.family import WindowedVocoder
from antiphon.engine.lanes import InlineExecutor, Landing, landing, mark

log = logging.getLogger(__name__)


class WindowExecutor(InlineExecutor):
    """Keeps each row's stream until its end, or until the row begins anew."""

    def __init__(self, model: WindowedVocoder, device: torch.device) -> None:
        super().__init__()
        self._model = model
        self._device = device
        self._streams: dict[int, Any] = {}

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, CodecStep)
        return landing(lambda: self._begin(step), lambda error: self._failed(step, error))

    def _begin(self, step: CodecStep) -> Landing:
        streams = [pcm.float().to("cpu", non_blocking=True) for pcm in self._run(step)]
        wait = mark(self._device)

        def land() -> StepDone:
            wait()
            audio = tuple(pcm.numpy().tobytes() for pcm in streams)
            samples = np.array([len(pcm) for pcm in streams], np.int64)
            return StepDone(step.stage, step.step, step.requests, NO_TOKENS, samples, NO_INTS, audio)

        return land

    def _failed(self, step: CodecStep, error: Exception) -> StepFailed:
        log.exception("step %d of stage %s failed", step.step, step.stage)
        message = f"{type(error).__name__}: {error}"
        return StepFailed(step.stage, step.step, step.requests, NO_INTS, message)

    @torch.inference_mode()
    def _run(self, step: CodecStep) -> list[Tensor]:
        rows = step.rows.tolist()
        for row, voice in zip(rows, step.voices, strict=True):
            if row in step.joins:
                self._streams[row] = self._model.open(voice)
        cuts = np.cumsum(step.counts)[:-1]
        frames = step.frames.reshape(int(step.counts.sum()), -1)
        codes = np.split(frames, cuts) if len(frames) else [frames.reshape(0, 1)] * len(rows)
        streams = [self._streams[row] for row in rows]
        ends = [bool(end) for end in step.ends]
        sounds = self._model.decode(streams, codes, ends)
        for row in (row for row, end in zip(rows, ends, strict=True) if end):
            del self._streams[row]
        return sounds
