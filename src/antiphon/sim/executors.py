"""What simulated steps bring: tokens without meaning, in the numbers that a real model would draw.

No audio is made: a chunk is silence of the right length, the same bytes for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import NO_INTS, NO_TOKENS, StageFact, StepDone
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, Join, Step, ints
from antiphon.core.rng import stream
from antiphon.core.sampling import Sampling
from antiphon.latency.profile import Replies, SoundWindow
from antiphon.workload.fitted import READ_ALOUD_WORDS_PER_S, TOKENS_PER_WORD

FRAMES_PER_S = 12.5
FRAME_SAMPLES = 1920
"""24 kHz samples of a frame."""
DELAY_SAMPLES = 555
"""The vocoder looks ahead: a stream's first chunk lacks so many."""
FRAMES_PER_TOKEN = FRAMES_PER_S / (READ_ALOUD_WORDS_PER_S * TOKENS_PER_WORD)
"""Of a spoken reply: 3.15, at the rate of reading aloud; used where no other is known."""
DEFAULT_REPLIES = Replies(frames_per_token=FRAMES_PER_TOKEN)
FIRST_TOKEN = 1 << 20
"""Drawn tokens are above every id that means something, and no two requests draw the same."""
TOKENS_APART = 1 << 14
NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class ReplyLengths:
    """How long replies are, in tokens: one short of what the client allows, so that the end of the turn is
    the last that is drawn; lognormal where the client leaves it to the server.

    default_tokens  the stage's own limit: a request with another was limited by its client; None: all were
    """

    default_tokens: int | None
    law: Replies = DEFAULT_REPLIES

    def of(self, sampling: Sampling) -> int:
        if sampling.max_tokens != self.default_tokens:
            return max(1, sampling.max_tokens - 1)
        rng = stream(sampling.seed, "reply")
        return max(1, round(float(rng.lognormal(log(self.law.median_tokens), self.law.sigma))))


class Writer:
    """A decoder that writes text. Each row ends after as many tokens as its reply is long."""

    def __init__(self, config: ArConfig, lengths: ReplyLengths | None = None) -> None:
        self._lengths = lengths or ReplyLengths(config.sampling.max_tokens)
        self._stop = config.stop_ids[0]
        self._request = np.zeros(config.max_rows, np.int64)
        self._prompt = np.zeros(config.max_rows, np.int64)
        self._length = np.zeros(config.max_rows, np.int64)

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, ArStep)
        for join in step.joins:
            self._join(join)
        emits = step.emits == 1
        rows = step.rows[emits]
        requests = self._request[rows]
        drawn = step.starts[emits] + step.counts[emits] - self._prompt[rows]
        tokens = FIRST_TOKEN + requests * TOKENS_APART + drawn
        tokens[drawn >= self._length[rows]] = self._stop
        return StepDone(step.stage, step.step, requests, tokens.reshape(-1, 1), NO_INTS, NO_INTS)

    def _join(self, join: Join) -> None:
        self._request[join.row] = join.request
        self._prompt[join.row] = len(join.prompt.token_ids)
        self._length[join.row] = self._lengths.of(join.sampling)


class Talker:
    """A decoder that is given a text, token by token, and speaks it in frames: so many a token, once the text
    is over.

    frame_samples  of the sound that it makes of a frame; 0: a vocoder does
    """

    def __init__(
        self,
        config: ArConfig,
        end_input: int,
        frames_per_token: float = FRAMES_PER_TOKEN,
        frame_samples: int = 0,
    ) -> None:
        self._sound = bytes(4 * frame_samples)
        self._end_input = end_input
        self._frames_per_token = frames_per_token
        self._stop = config.stop_ids[0]
        self._frames = np.ones((config.max_rows, config.width), np.int64)
        self._frames[:, 0] = FIRST_TOKEN
        self._request = np.zeros(config.max_rows, np.int64)
        self._prompt = np.zeros(config.max_rows, np.int64)
        self._words = np.zeros(config.max_rows, np.int64)
        self._length = np.full(config.max_rows, NEVER, np.int64)

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, ArStep)
        for join in step.joins:
            self._request[join.row] = join.request
            self._prompt[join.row] = len(join.prompt.token_ids)
            self._words[join.row], self._length[join.row] = 1, NEVER
        for row, token in zip(step.inputs_rows.tolist(), step.inputs_tokens.tolist(), strict=True):
            self._hear(row, token)
        emits = step.emits == 1
        rows = step.rows[emits]
        drawn = step.starts[emits] + step.counts[emits] - self._prompt[rows]
        tokens = self._frames[: len(rows)].copy()
        tokens[drawn >= self._length[rows], 0] = self._stop
        samples, audio = NO_INTS, ()
        if self._sound:
            audio = tuple(b"" if first == self._stop else self._sound for first in tokens[:, 0].tolist())
            samples = ints([len(one) // 4 for one in audio])
        return StepDone(step.stage, step.step, self._request[rows], tokens, samples, NO_INTS, audio)

    def _hear(self, row: int, token: int) -> None:
        if token == self._end_input:
            self._length[row] = max(1, self._num_frames(row))
        else:
            self._words[row] += 1

    def _num_frames(self, row: int) -> int:
        """Of the text that the row was given."""
        return round(int(self._words[row]) * self._frames_per_token)


class Vocoder:
    """Frames in, silence of their length out."""

    def __init__(self, frame_samples: int = FRAME_SAMPLES, delay_samples: int = DELAY_SAMPLES) -> None:
        self._frame_samples, self._delay_samples = frame_samples, delay_samples
        self._silences: dict[int, bytes] = {}

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, CodecStep)
        joins = set(step.joins.tolist())
        samples = [
            count * self._frame_samples - (self._delay_samples if row in joins else 0)
            for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True)
        ]
        audio = tuple(self._silence(count) for count in samples)
        return StepDone(step.stage, step.step, step.requests, NO_TOKENS, ints(samples), NO_INTS, audio)

    def _silence(self, num_samples: int) -> bytes:
        """Float32."""
        found = self._silences.get(num_samples)
        if found is None:
            found = self._silences[num_samples] = bytes(4 * num_samples)
        return found


class WindowedVocoder:
    """Frames in, silence out for those that are sure."""

    def __init__(self, frame_samples: int, window: SoundWindow) -> None:
        self._frame_samples, self._window = frame_samples, window
        self._known: dict[int, int] = {}
        self._done: dict[int, int] = {}

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, CodecStep)
        self._known |= dict.fromkeys(step.joins.tolist(), 0)
        self._done |= dict.fromkeys(step.joins.tolist(), 0)
        columns = step.rows.tolist(), step.counts.tolist(), step.ends.tolist()
        samples = [self._sounds(row, count, bool(end)) for row, count, end in zip(*columns, strict=True)]
        audio = tuple(bytes(4 * count) for count in samples)
        return StepDone(step.stage, step.step, step.requests, NO_TOKENS, ints(samples), NO_INTS, audio)

    def _sounds(self, row: int, count: int, is_last: bool) -> int:
        """Samples of what a row's next frames make sure."""
        self._known[row] += count
        done, sure = self._done[row], self._window.num_sure(self._known[row], is_last)
        self._done[row] = max(done, sure)
        return (self._done[row] - done) * self._frame_samples


class Encoder:
    """Media in; what comes out is known by their keys."""

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, EncodeStep)
        keys = ints([part.key for part in step.media])
        return StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, keys)
