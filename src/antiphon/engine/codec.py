"""Executor of a codec stage: frames to waveform, streams of equal chunks decoded together."""

from __future__ import annotations

import logging
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone, StepFailed
from antiphon.core.plans import CodecStep, Step
from antiphon.engine.family import VocoderModel
from antiphon.engine.lanes import InlineExecutor, Landing, landing, mark
from antiphon.nn.uploads import upload

log = logging.getLogger(__name__)


class CodecExecutor(InlineExecutor):
    """Runs the steps of a vocoder.

    Keeps each row's stream state between chunks; an ended stream's lies there until its row begins anew.
    """

    def __init__(self, model: VocoderModel, device: torch.device) -> None:
        super().__init__()
        self._model = model
        self._device = device
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, CodecStep)
        return landing(lambda: self._begin(step), lambda error: self._failed(step, error))

    def _begin(self, step: CodecStep) -> Landing:
        streams = self._run(step)
        wait = mark(self._device)

        def land() -> StepDone:
            wait()
            audio = tuple(pcm.numpy().tobytes() for pcm in streams)
            samples = np.array([len(pcm) // 4 for pcm in audio], np.int64)
            return StepDone(step.stage, step.step, step.requests, NO_TOKENS, samples, NO_INTS, audio)

        return land

    def _failed(self, step: CodecStep, error: Exception) -> StepFailed:
        log.exception("step %d of stage %s failed", step.step, step.stage)
        message = f"{type(error).__name__}: {error}"
        return StepFailed(step.stage, step.step, step.requests, NO_INTS, message)

    @torch.inference_mode()
    def _run(self, step: CodecStep) -> list[Tensor]:
        """Per stream its fp32 waveform [samples], on the host or on the way there."""
        for row in step.joins.tolist():
            self._states.pop(row, None)
        ends = np.cumsum(step.counts)
        codes = [step.frames[end - count : end] for end, count in zip(ends, step.counts, strict=True)]
        rows = step.rows.tolist()
        groups: dict[tuple[bool, int], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            groups[row in self._states, len(codes[i])].append(i)
        audio = [torch.empty(0)] * len(rows)
        for (continues, _), members in groups.items():
            for i, pcm in zip(members, self._decode(rows, codes, members, continues), strict=True):
                audio[i] = pcm
        return audio

    def _decode(self, rows: list[int], codes: list[Ints], members: list[int], continues: bool) -> Tensor:
        """Equal chunks of several streams at once; returns fp32 [streams, samples]."""
        stacked = upload(np.stack([codes[i].T for i in members]), self._device)
        before = [self._states[rows[i]] for i in members] if continues else []
        state = tuple(torch.cat(parts) for parts in zip(*before, strict=True)) if continues else None
        pcm, state = self._model.decode(stacked, state)
        for at, i in enumerate(members):
            # a view would hold the memory of the whole batch for as long as this one stream is silent
            self._states[rows[i]] = tuple(part[at : at + 1].clone() for part in state)
        return pcm.float().to("cpu", non_blocking=True)
