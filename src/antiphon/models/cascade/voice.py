"""A cascade's voice: the reply's text tokens in, sound out, phrase by phrase and window by window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import soxr
import torch
from tokenizers import Tokenizer
from torch import Tensor

from antiphon.core.facts import Ints
from antiphon.core.ids import content_key
from antiphon.core.latin import has_words
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.models.cascade.phrases import next_phrase, shortened
from antiphon.models.cascade.symbols import Symbols
from antiphon.models.cascade.vits import Frames, Vits
from antiphon.models.detokenise import Spelling, StreamingDetokeniser

WINDOW = 24
"""Frames that are decoded at a time: what a step of the voice takes, and the least of what is heard first."""
MOST_TOKENS = 128
"""Text without an end in sight is spoken after so many: the stage that writes it may be held back."""
MOST_CHARACTERS, MOST_SYMBOLS = 256, 640
"""Of a phrase. Its cost grows with the square of its symbols, and a step of the voice makes one whole."""


@dataclass(slots=True)
class _Stream:
    """One reply.

    text      what of it is not in a phrase yet, from character `start` of the reply on
    tokens    so far, and after how many characters each of them is certain (`token_ends`)
    frames    the phrase that is being spoken, of which the first `done` are sound
    words     that have not ended: after how many frames each does, and tokens of the reply over then
    before    frames of earlier phrases
    over      tokens that were said to be
    resample  to the wire's rate; None where the voice has it
    """

    pieces: StreamingDetokeniser
    resample: soxr.ResampleStream | None
    tokens: list[int] = field(default_factory=list[int])
    token_ends: list[int] = field(default_factory=list[int])
    text: str = ""
    start: int = 0
    is_over: bool = False
    frames: Frames | None = None
    words: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    done: int = 0
    before: int = 0
    over: int = 0
    num_phrases: int = 0


class VitsVoice:
    """A step gives a stream one window of what it has to say. Implements `engine.family.WindowedVocoder`."""

    def __init__(self, vits: Vits, symbols: Symbols, tokenizer: Tokenizer) -> None:
        """tokenizer: of the stage that writes."""
        self._vits, self._symbols, self._tokenizer = vits, symbols, tokenizer
        self._spelling = Spelling(tokenizer)
        self._rate = vits.config.sample_rate

    def open(self, voice: str | None) -> _Stream:
        is_alike = self._rate == WIRE_SAMPLE_RATE_HZ
        resample = None if is_alike else soxr.ResampleStream(self._rate, WIRE_SAMPLE_RATE_HZ, 1, "float32")
        return _Stream(StreamingDetokeniser(self._tokenizer, self._spelling), resample)

    def owes(self, stream: _Stream) -> bool:
        """Would a step without another token bring more sound?"""
        return stream.frames is not None or self._phrase_end(stream) is not None

    def spoken(self, stream: _Stream) -> list[tuple[int, int]]:
        """Tokens that are over, and after how many samples of the stream, since this was asked last. What
        nobody can say is over when it is its turn."""
        found: list[tuple[int, int]] = []
        now = stream.before + stream.done
        if stream.frames is None and not stream.text and len(stream.tokens) > stream.over:
            stream.words.append((now, len(stream.tokens)))
        while stream.words and stream.words[0][0] <= now:
            frames, tokens = stream.words.popleft()
            if tokens > stream.over:
                found.append((tokens, frames * self._vits.config.hop * WIRE_SAMPLE_RATE_HZ // self._rate))
                stream.over = tokens
        return found

    def decode(self, streams: Sequence[_Stream], codes: Sequence[Ints], ends: Sequence[bool]) -> list[Tensor]:
        """The next tokens int64 [n, 1] of each stream -> fp32 [samples] of its next window; none while its
        phrase is not complete."""
        for stream, tokens, is_over in zip(streams, codes, ends, strict=True):
            self._read(stream, tokens[:, 0].tolist(), is_over)
            if stream.frames is None:
                self._begin_phrase(stream)
        windows = self._windows(streams)
        return [self._on_the_wire(stream, pcm) for stream, pcm in zip(streams, windows, strict=True)]

    # -- text ----------------------------------------------------------------------------------------

    def _read(self, stream: _Stream, tokens: list[int], is_over: bool) -> None:
        for token in tokens:
            stream.text += stream.pieces.push([token])
            stream.token_ends.append(stream.start + len(stream.text))
        stream.tokens += tokens
        if is_over and not stream.is_over:
            stream.text += stream.pieces.flush()
            if stream.tokens:
                stream.token_ends[-1] = stream.start + len(stream.text)
            stream.is_over = True

    def _phrase_end(self, stream: _Stream) -> int | None:
        """Where the next phrase ends, as `next_phrase`: within the first MOST_CHARACTERS + 1 characters."""
        head = stream.text[: MOST_CHARACTERS + 1]
        is_whole = len(head) == len(stream.text)
        end = next_phrase(head, num_before=stream.num_phrases, is_over=stream.is_over and is_whole)
        if end is not None:
            return end
        if not is_whole:
            return len(head)
        last = bisect_right(stream.token_ends, stream.start) + MOST_TOKENS - 1
        if last >= len(stream.token_ends):
            return None
        return shortened(head, len(head) + 1, stream.token_ends[last] - stream.start)

    def _begin_phrase(self, stream: _Stream) -> None:
        """Take phrases until one can be said, and work out its frames."""
        while (end := self._phrase_end(stream)) is not None:
            end = shortened(stream.text, end, MOST_CHARACTERS)
            phrase, symbols, words = self._spelt(stream.text[:end])
            while len(symbols) > MOST_SYMBOLS and end > 1:
                end = shortened(stream.text, end, end // 2)
                phrase, symbols, words = self._spelt(stream.text[:end])
            written, first = stream.text[:end], stream.start
            stream.text, stream.start = stream.text[end:], first + end
            if not symbols:
                stream.words.append((stream.before, bisect_left(stream.token_ends, first + end) + 1))
                continue
            seed = content_key(b"phrase", str(stream.num_phrases).encode(), phrase.encode())
            counts, stream.frames = self._vits.phrase(symbols, seed)
            if stream.num_phrases:
                stream.frames.until(len(stream.frames))  # in one, which takes less: there is sound to hear
            ends, first = np.cumsum(counts), first + len(written) - len(written.lstrip())
            for num_chars, num_symbols in words:
                tokens = bisect_left(stream.token_ends, first + num_chars) + 1
                over = int(ends[num_symbols - 1]) if num_symbols else 0
                stream.words.append((stream.before + over, tokens))
            stream.num_phrases += 1
            return

    def _spelt(self, written: str) -> tuple[str, list[int], list[tuple[int, int]]]:
        """The phrase, its symbols, and where its words are over."""
        phrase = written.strip()
        symbols, words = self._symbols.read(phrase) if has_words(phrase, latin_only=False) else ([], [])
        return phrase, symbols, words

    # -- sound ---------------------------------------------------------------------------------------

    def _windows(self, streams: Sequence[_Stream]) -> list[Tensor]:
        """The next window of every phrase; those with as many frames around them together."""
        sounds = [torch.empty(0)] * len(streams)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for i, stream in enumerate(streams):
            if stream.frames is not None:
                groups.setdefault(self._span(stream), []).append(i)
        hop = self._vits.config.hop
        for (before, count, after), members in groups.items():
            parts: list[Tensor] = []
            for i in members:
                stream = streams[i]
                assert stream.frames is not None
                end = stream.done + count + after
                parts.append(stream.frames.until(end)[:, stream.done - before : end])
            made = self._vits.sound(torch.stack(parts))
            for i, pcm in zip(members, made, strict=True):
                sounds[i] = pcm[before * hop : (before + count) * hop]
                self._advance(streams[i], count)
        return sounds

    def _span(self, stream: _Stream) -> tuple[int, int, int]:
        """Frames before the next window that it needs, of the window, and behind it."""
        assert stream.frames is not None
        total, context = len(stream.frames), self._vits.config.context
        count = min(WINDOW, total - stream.done)
        return min(context, stream.done), count, min(context, total - stream.done - count)

    def _advance(self, stream: _Stream, count: int) -> None:
        assert stream.frames is not None
        stream.done += count
        if stream.done == len(stream.frames):
            stream.before, stream.done, stream.frames = stream.before + stream.done, 0, None

    def _on_the_wire(self, stream: _Stream, pcm: Tensor) -> Tensor:
        """At the wire's rate. What the resampler holds back comes with the end of the reply."""
        if stream.resample is None:
            return pcm
        is_last = stream.is_over and not self.owes(stream)
        if not len(pcm) and not is_last:
            return pcm
        return torch.from_numpy(stream.resample.resample_chunk(np.asarray(pcm.float().cpu()), last=is_last))
