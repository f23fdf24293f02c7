"""Stages of a cascade on virtual time: recordings are written down, and a reply is spoken by phrases."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.conversation import AudioPart
from antiphon.core.facts import NO_INTS, NO_TOKENS, StageFact, StepDone
from antiphon.core.plans import CodecStep, EncodeStep, Join, Step, ints
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, WIRE_SAMPLE_RATE_HZ
from antiphon.latency.features import SpeechFeatures
from antiphon.latency.profile import Reading
from antiphon.sim.executors import Encoder, Writer
from antiphon.workload.fitted import SPOKEN_WORDS_PER_S, TOKENS_PER_WORD

TOKENS_PER_S = SPOKEN_WORDS_PER_S * TOKENS_PER_WORD
"""Of a transcript, a second of what was said."""
KEPT_RECORDINGS = 4096


class RecordingEncoder(Encoder):
    """An encoder that remembers how long its recordings are, for the stage that writes them down."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, float] = OrderedDict()

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, EncodeStep)
        for part in step.media:
            if isinstance(part, AudioPart):
                self._seconds[part.key] = part.num_samples / MODEL_SAMPLE_RATE_HZ
        while len(self._seconds) > KEPT_RECORDINGS:
            self._seconds.popitem(last=False)
        return super().run(step)

    def seconds(self, key: int) -> float:
        """Of a recording; 0 of one that is long forgotten."""
        return self._seconds.get(key, 0.0)


class Transcriber(Writer):
    """Writes as many tokens as what was said has, the one that ends it beside them."""

    def __init__(self, config: ArConfig, ears: RecordingEncoder) -> None:
        super().__init__(config)
        self._ears = ears

    def _join(self, join: Join) -> None:
        super()._join(join)
        said_s = sum(self._ears.seconds(span.key) for span in join.prompt.spans)
        self._length[join.row] = max(1, round(TOKENS_PER_S * said_s))


@dataclass(slots=True)
class _Stream:
    """One reply: tokens that are in no phrase yet, and those in phrases that have begun; samples that the
    phrase still owes, and those that were made; tokens that are spoken."""

    unread: int = 0
    begun: int = 0
    owed: int = 0
    made: int = 0
    over: int = 0
    is_over: bool = False


class ReadingVoice:
    """Text tokens in, silence of the length of what they sound out, a window a step.

    said  what was said in the step that ran last
    """

    def __init__(self, reading: Reading) -> None:
        self.said = SpeechFeatures()
        self._reading = reading
        self._streams: dict[int, _Stream] = {}

    def run(self, step: Step) -> StageFact:
        assert isinstance(step, CodecStep)
        self._streams |= {row: _Stream() for row in step.joins.tolist()}
        self.said = SpeechFeatures(streams=len(step.rows))
        samples: list[int] = []
        owing: list[int] = []
        words: list[int] = []
        columns = step.rows.tolist(), step.requests.tolist(), step.counts.tolist(), step.ends.tolist()
        for row, request, count, end in zip(*columns, strict=True):
            stream = self._streams[row]
            stream.unread += count
            stream.is_over |= bool(end)
            samples.append(self._window(stream))
            if self._owes(stream):
                owing.append(request)
            over = stream.begun if not stream.owed else stream.made // self._reading.token_samples
            if over > stream.over:
                stream.over = over
                words += [request, over, stream.made]
        audio = tuple(bytes(4 * count) for count in samples)
        about = step.stage, step.step, step.requests, NO_TOKENS, ints(samples), NO_INTS, audio
        return StepDone(*about, owing=ints(owing), words=np.array(words, np.int64))

    def _window(self, stream: _Stream) -> int:
        """Samples that a stream makes in a step."""
        begins = not stream.owed and self._phrase(stream) > 0
        if begins:
            tokens = self._phrase(stream)
            stream.unread -= tokens
            stream.begun += tokens
            stream.owed = tokens * self._reading.token_samples
        phrase_s = stream.owed / WIRE_SAMPLE_RATE_HZ if begins else 0.0
        made = min(stream.owed, self._reading.window_samples)
        stream.owed -= made
        stream.made += made
        sound = SpeechFeatures(0, int(begins), phrase_s, int(made > 0), made / WIRE_SAMPLE_RATE_HZ)
        self.said = self.said.plus(sound)
        return made

    def _owes(self, stream: _Stream) -> bool:
        return stream.owed > 0 or self._phrase(stream) > 0

    def _phrase(self, stream: _Stream) -> int:
        """Tokens of the phrase that can begin; 0: none can before more is written."""
        most = self._reading.phrase_tokens if stream.begun else self._reading.first_tokens
        if stream.unread >= most:
            return most
        return stream.unread if stream.is_over else 0
