"""What was said, in writing, where a stage of its own writes it down before a prompt is made of it.

A transcript is made once for each recording, whoever asks, by a request of its own: through the encoder and
the transcriber as a written reply goes through the encoder and the thinker. A response whose transcripts lack
waits (its phase is RENDERING); its prompt is ordered once they are there. One that is wanted for nothing but
what was said has no prompt: `words` sends it. A transcript is as urgent as the most urgent response that
waits for it, and preparatory while it is wanted only to show words so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile

import msgspec

from antiphon.core.conversation import AudioPart, TranscriptOptions
from antiphon.core.facts import NO_INTS, Ints, PromptReady, ResponseRequested, Span, StagePrompt
from antiphon.core.plans import NO_SPEECH, ints
from antiphon.flow.preparation import STAGE_LOST, Preparation
from antiphon.flow.response import TIERS, ResponseState
from antiphon.flow.sessions import Sessions
from antiphon.flow.stages import Stages
from antiphon.interaction.frontier import NOWHERE
from antiphon.policy.base import Tier
from antiphon.stage.requests import RequestProgress

UNHEARD = "stage_failed"
"""Why a recording has no transcript that would have none the next time either."""
AT_ONCE = 2
"""Recordings of a response that is told them one after the other: one is encoded while another is written."""
MOST_KEPT = 4096
"""Transcripts; older ones that no open response shows are forgotten, and written anew when one does."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A transcript of a turn so far, or of a piece of it.

    options  how it was asked for
    tokens   those that are written; there may be more
    draft    what it was expected to be
    """

    options: TranscriptOptions | None
    tokens: list[int]
    draft: tuple[int, ...]


class Transcripts:
    """Owner of what was written down, of what is being, and of the turns that wait for it. In a model without
    a transcriber nothing lacks, and every prompt is ordered at once."""

    def __init__(
        self,
        stages: Stages,
        sessions: Sessions,
        preparation: Preparation,
        known: dict[int, tuple[int, ...]],
        prompt: tuple[int, ...],
    ) -> None:
        """known: tokens by `AudioPart.transcript_key`, which `preparation` reads; prompt: what a transcript
        begins with for which nothing else was asked."""
        self._stages = stages
        self._sessions = sessions
        self._preparation = preparation
        self._known = known
        self._prompt = prompt
        self._running: dict[int, ResponseState] = {}
        """By `AudioPart.transcript_key`."""
        self._failed: set[int] = set()
        """Of what is known, recordings that could not be heard."""
        self._waiting: dict[int, ResponseState] = {}
        """By request."""
        self._heard: dict[str, dict[int, _Heard]] = {}
        """By session, the last one that was begun of its turn, for each piece that a long turn has: the next
        is expected to begin so."""

    def render(self, response: ResponseState, now: float) -> None:
        """Order its prompt, now or once it can be written; one that transcribes has none."""
        if not self._lacking(response) and not self._is_told(response):
            self._go_on(response)
            return
        self._waiting[response.request] = response
        self._make_way(response)
        self._begin_lacking(response, now)

    @property
    def asked(self) -> tuple[ResponseState, ...]:
        """Responses that are to be told what was said, and are not over."""
        return tuple(one for one in self._waiting.values() if self._is_told(one) and self._is_open(one))

    def said(self, response: ResponseState) -> tuple[list[int], bool]:
        """What is written of its recordings, one after the other, and whether that is all."""
        tokens: list[int] = []
        for part in self._preparation.recordings(response):
            key = part.transcript_key
            if key not in self._known:
                running = self._running.get(key)
                return tokens + (running.reply if running is not None else []), False
            tokens += self._known[key]
        return tokens, True

    @property
    def stage(self) -> str | None:
        """The stage that writes down what is said, if the model has one."""
        return self._stages.transcriber_stage

    @property
    def is_preparing(self) -> bool:
        """Is a recording written down only to show its words so far?"""
        return any(running.is_ahead for running in self._running.values())

    def has_row(self, parts: tuple[AudioPart, ...]) -> bool:
        """Is what is lacking of these being written down, or is nothing?"""
        running = [self._running.get(part.transcript_key) for part in self._unknown(parts)]
        return not running or any(one is not None and _has_row(one) for one in running)

    def has_begun(self, parts: tuple[AudioPart, ...]) -> bool:
        """Was each of these written down, or is it being?"""
        running = [self._running.get(part.transcript_key) for part in self._unknown(parts)]
        return all(one is not None and self._is_open(one) for one in running)

    def _unknown(self, parts: tuple[AudioPart, ...]) -> tuple[AudioPart, ...]:
        return tuple(part for part in parts if part.transcript_key not in self._known)

    def prompted(self, running: ResponseState, fact: PromptReady, now: float) -> None:
        """What a transcript begins with for which something was asked."""
        assert self._stages.transcriber_stage is not None
        self._queue(running, fact.prompts[self._stages.transcriber_stage].token_ids, now)

    def progressed(self, progress: RequestProgress) -> bool:
        """A step of the transcriber brought a request something. False if it is over with that, and has to be
        ended."""
        running = self._sessions.by_request[progress.request]
        if progress.tokens is not None:
            running.reply.append(progress.first)
        if progress.end is not None:
            assert isinstance(running.transcribes, AudioPart)
            self._known[running.transcribes.transcript_key] = tuple(running.reply)
        return progress.end is None

    def settle(self, now: float) -> None:
        """Go on with responses whose transcripts are there, end those whose transcripts failed, and stop what
        nobody waits for."""
        if not self._waiting and not self._running:
            return
        for key, running in list(self._running.items()):
            if not self._is_open(running):
                del self._running[key]
                if key not in self._known:
                    self._fail(key, running)
        for request, response in list(self._waiting.items()):
            if not self._is_open(response):
                self._waiting.pop(request, None)
            elif not (self._is_told(response) or self._lacking(response)):
                del self._waiting[request]
                self._go_on(response)
            else:
                self._begin_lacking(response, now)
        urgent_last = sorted(self._waiting.values(), key=_tier, reverse=True)
        wanted = {part.transcript_key: one for one in urgent_last for part in self._lacking(one)}
        for key, running in list(self._running.items()):
            if key not in wanted:
                self._sessions.end(running, "cancelled", "")
                del self._running[key]
            elif running.tier is not _tier(wanted[key]):
                self._rank(running, wanted[key])
        self._forget()

    def _rank(self, running: ResponseState, response: ResponseState) -> None:
        """It is as urgent as this response from now on: tell the stages that have it."""
        running.is_ahead = _shows_words(response)
        running.spec = msgspec.structs.replace(running.spec, tier=response.spec.tier)
        if running.entry is not None and running.path is not None:
            self._stages.encoders[running.path.encode].rank(running.request, running.tier)
            self._stages.ar[running.path.entry].rank(running.entry, running.tier)

    def _go_on(self, response: ResponseState) -> None:
        """All that it shows is written down: order its prompt, unless nobody spoke."""
        unheard = self._unheard(response)
        if response.spec.answers_silence or not unheard:
            self._preparation.render(response)
        elif self._failed.isdisjoint(unheard):
            message = "Nobody speaks in the recording that this would answer."
            self._sessions.end(response, "cancelled", NO_SPEECH, message)
        else:
            message = "The recording that this would answer could not be heard."
            self._sessions.end(response, "failed", UNHEARD, message)

    def _unheard(self, response: ResponseState) -> tuple[int, ...]:
        """Recordings without a word, by `transcript_key`, if nothing else was said since the last reply. What
        the model is told before them asks for nothing; what it is told after them does."""
        roles = [item.role for item in response.items]
        since = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else 0
        asked = dropwhile(lambda item: item.role == "system", response.items[since:])
        said = [part for item in asked for part in item.parts]
        keys = tuple(part.transcript_key for part in said if isinstance(part, AudioPart))
        is_silent = len(keys) == len(said) and not any(self._known.get(key, (0,)) for key in keys)
        return keys if is_silent else ()

    def _is_told(self, response: ResponseState) -> bool:
        """Is the transcript itself its reply?"""
        return response.spec.transcribe and self.stage is not None

    def forget(self, session: str) -> None:
        """Another turn begins, or the session is closed."""
        self._heard.pop(session, None)

    def _hear(self, running: ResponseState, part: AudioPart, response: ResponseState) -> None:
        """What it writes of the session's turn is expected to be what was written of less of it."""
        place = _place(part, response)
        if place is None:
            return
        heard = self._heard.setdefault(running.session, {})
        before = heard.get(place)
        if before is not None and before.options == part.options:
            running.draft = *before.tokens, *before.draft[len(before.tokens) :]
        heard[place] = _Heard(part.options, running.reply, running.draft)

    def _lacking(self, response: ResponseState) -> tuple[AudioPart, ...]:
        return self._unknown(self._preparation.recordings(response))

    def _next(self, response: ResponseState) -> tuple[AudioPart, ...]:
        """Recordings that are to be written down now. Of those that it is told only the next: others need the
        stages meanwhile."""
        lacking = self._lacking(response)
        return lacking[:AT_ONCE] if self._is_told(response) else lacking

    def _make_way(self, response: ResponseState) -> None:
        """What was begun ahead of it and has no row yet would wait behind all: it ends, and another begins in
        the place of the response."""
        if response.slot == NOWHERE:
            return
        for part in self._next(response):
            running = self._running.get(part.transcript_key)
            if running is None or running.slot != NOWHERE or _has_row(running):
                continue
            if self._is_open(running):
                self._sessions.end(running, "cancelled", "")
                del self._running[part.transcript_key]

    def _begin_lacking(self, response: ResponseState, now: float) -> None:
        for part in self._next(response):
            running = self._running.get(part.transcript_key)
            if running is None or not self._is_open(running):
                self._begin(part, response, now)
            if not self._is_open(response):
                return

    def _is_open(self, one: ResponseState) -> bool:
        return one.request in self._sessions.by_request

    def _begin(self, part: AudioPart, response: ResponseState, now: float) -> None:
        options = part.options
        tier = response.spec.tier
        asked = ResponseRequested(response.session, "", "", False, remember=False, tier=tier)
        running = self._sessions.begin_transcript(asked, part, response.slot)
        running.is_ahead = _shows_words(response)
        self._hear(running, part, response)
        self._running[part.transcript_key] = running
        if options is None:
            self._queue(running, ints(list(self._prompt)), now)
        else:
            self._preparation.render_transcript(running, options)
        if not self._is_open(running):
            del self._running[part.transcript_key]
            self._fail(part.transcript_key, running)

    def _queue(self, running: ResponseState, ids: Ints, now: float) -> None:
        """It begins with these."""
        stage, part = self._stages.transcriber_stage, running.transcribes
        assert stage is not None
        assert isinstance(part, AudioPart)
        running.path = self._stages.transcribe(running.session, now)
        if running.path is None:
            self._sessions.end(running, "failed", STAGE_LOST, f"The {stage} stage is starting again")
            return
        if (options := part.options) is not None:
            own = self._stages.ar[running.path.entry].config.sampling
            drawn = msgspec.structs.replace(own, temperature=options.temperature, seed=options.seed)
            running.spec = msgspec.structs.replace(running.spec, sampling={stage: drawn})
        span = Span(part.key, "audio", 0, len(ids))
        running.prompts = {stage: StagePrompt(ids, ids, (span,), 0, NO_INTS)}
        self._preparation.queue(running, now, is_taken=self._goes_on(part))

    def _goes_on(self, part: AudioPart) -> bool:
        """Was anybody told what was said before it? Whose reply was taken is not refused its end."""
        told = (one for one in self._waiting.values() if one.reply)
        return any(part in self._preparation.recordings(one) for one in told)

    def _fail(self, key: int, running: ResponseState) -> None:
        """End all that waited for a recording of which there will be no transcript. One that cannot be heard
        is shown as nothing from then on: it costs that reply, and not every later one. Where no reply waited
        for it, it costs nothing, and is tried again."""
        ended = [
            response
            for response in self._waiting.values()
            if self._is_open(response)
            and any(part.transcript_key == key for part in self._preparation.recordings(response))
        ]
        if running.failure[0] == UNHEARD and any(not response.is_ahead for response in ended):
            self._known[key] = ()
            self._failed.add(key)
        for response in ended:
            del self._waiting[response.request]
            self._sessions.end(response, "failed", *running.failure)

    def _forget(self) -> None:
        """Keep so many."""
        excess = len(self._known) - MOST_KEPT
        if excess <= 0:
            return
        shown = {
            part.transcript_key
            for one in self._sessions.by_request.values()
            for part in self._preparation.recordings(one)
        }
        for key in [key for key in self._known if key not in shown][:excess]:
            del self._known[key]
            self._failed.discard(key)


def _shows_words(response: ResponseState) -> bool:
    """Is it for nothing but the words so far?"""
    return response.is_ahead and response.spec.transcribe


def _tier(response: ResponseState) -> Tier:
    """Of what is written down for it: what is read ahead of a turn is wanted as soon as the turn is over."""
    return Tier.PREPARATORY if _shows_words(response) else TIERS[response.spec.tier]


def _place(part: AudioPart, response: ResponseState) -> int | None:
    """How many recordings of its turn, the last one that is shown, come before it. None: it is of another."""
    items = reversed(response.items)
    spoken = ([one for one in item.parts if isinstance(one, AudioPart)] for item in items)
    turn = [one.transcript_key for one in next(filter(None, spoken))]
    return turn.index(part.transcript_key) if part.transcript_key in turn else None


def _has_row(running: ResponseState) -> bool:
    return running.entry is not None and running.entry.row is not None
