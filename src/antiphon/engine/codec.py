"""Executors of codec stages: frames to waveform.

`CodecExecutor` decodes streams of equal chunks together. `WindowExecutor` is for a codec that looks ahead: it
gives each stream's sound as far as it is sure, and the rest with its end. `ReadingExecutor` is for one whose
frames are text: it says which words are over, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import NO_INTS, NO_TOKENS, Ints, StepDone
from antiphon.core.plans import CodecStep, Step
from antiphon.engine.family import ReadingVocoder, VocoderModel, WindowedVocoder
from antiphon.engine.lanes import Begun, InlineExecutor, Landing
from antiphon.nn.uploads import upload


class SoundExecutor(InlineExecutor):
    """Reports the waveforms that `decode` makes on a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def launch(self, step: Step) -> Landing:
        assert isinstance(step, CodecStep)
        return self.launched(step, lambda: self._begin(step), lambda: (step.requests, NO_INTS))

    @abstractmethod
    def decode(self, step: CodecStep) -> list[Tensor]:
        """Per stream its fp32 waveform [samples], on the host or on the way there."""

    def _begin(self, step: CodecStep) -> Begun:
        streams = self.decode(step)

        def report() -> StepDone:
            audio = tuple(pcm.numpy().tobytes() for pcm in streams)
            samples = np.array([len(pcm) for pcm in streams], np.int64)
            about = step.stage, step.step, step.requests, NO_TOKENS, samples, NO_INTS, audio
            return StepDone(*about, owing=owing, words=words)

        owing, words = self.beside(step)
        return self._device, report

    def beside(self, step: CodecStep) -> tuple[Ints, Ints]:
        """Of a decoded step, what StepDone has as `owing` and `words`."""
        return NO_INTS, NO_INTS


class CodecExecutor(SoundExecutor):
    """Keeps each row's stream state between chunks; an ended stream's stays until its row begins anew."""

    def __init__(self, model: VocoderModel, device: torch.device) -> None:
        super().__init__(device)
        self._model = model
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def decode(self, step: CodecStep) -> list[Tensor]:
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


class WindowExecutor(SoundExecutor):
    """Keeps each row's stream until its end, or until the row begins anew."""

    def __init__(self, model: WindowedVocoder, device: torch.device) -> None:
        super().__init__(device)
        self._model = model
        self._streams: dict[int, Any] = {}

    def decode(self, step: CodecStep) -> list[Tensor]:
        rows = step.rows.tolist()
        for row, voice in zip(rows, step.voices, strict=True):
            if row in step.joins:
                self._streams[row] = self._model.open(voice)
        cuts = np.cumsum(step.counts)[:-1]
        total = int(step.counts.sum())
        frames = step.frames.reshape(total, -1 if total else 1)
        codes = np.split(frames, cuts)
        streams = [self._streams[row] for row in rows]
        ends = [bool(end) for end in step.ends]
        sounds = self._model.decode(streams, codes, ends)
        self._forget(row for row, end in zip(rows, ends, strict=True) if end)
        return [pcm.float().to("cpu", non_blocking=True) for pcm in sounds]

    def _forget(self, rows: Iterable[int]) -> None:
        """These streams have ended."""
        for row in rows:
            del self._streams[row]


class ReadingExecutor(WindowExecutor):
    """Of a codec that reads text. A stream may owe sound when its text has ended: it stays until then."""

    def __init__(self, model: ReadingVocoder, device: torch.device) -> None:
        super().__init__(model, device)
        self._reader = model

    def beside(self, step: CodecStep) -> tuple[Ints, Ints]:
        owing: list[int] = []
        words: list[tuple[int, int, int]] = []
        columns = step.rows.tolist(), step.requests.tolist(), step.ends.tolist()
        for row, request, end in zip(*columns, strict=True):
            stream = self._streams[row]
            words += [(request, *word) for word in self._reader.spoken(stream)]
            if self._reader.owes(stream):
                owing.append(request)
            elif end:
                del self._streams[row]
        return np.array(owing, np.int64), np.array(words, np.int64).reshape(-1)

    def _forget(self, rows: Iterable[int]) -> None:
        """Not before what they owe is known."""
