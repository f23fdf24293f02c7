"""A reply's route through the stages: which unit gets its tokens and frames, and what of them goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antiphon.core.facts import NO_TOKENS, Ints
from antiphon.core.graph import Edge, StageGraph
from antiphon.core.plans import AudioOut, Handoff, TokensOut, Usage, ints
from antiphon.flow.outbox import Outbox
from antiphon.flow.response import ResponseState, SpeechPhase
from antiphon.flow.sessions import Sessions
from antiphon.flow.stages import Stages
from antiphon.interaction.frontier import Frontier
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import Heard
from antiphon.stage.requests import UNBOUNDED, RequestProgress

ENTRY = 0
"""The frontier's place of the stage that writes."""

PENDING, OPEN = SpeechPhase.PENDING, SpeechPhase.OPEN
"""What is written then is, or will be, spoken."""


class CallIds(NamedTuple):
    """Tokens by which a tool call is told: those that begin one anywhere, those that do where a reply begins,
    and the white space that may stand before these."""

    anywhere: tuple[int, ...] = ()
    at_first: tuple[int, ...] = ()
    blank: tuple[int, ...] = ()


class ReplyRoute:
    """Text to the client and to the talker, frames to the vocoder, sound to the client.

    Owns nothing: what a reply has come to is in its `ResponseState`, and what the stages hold is theirs.
    """

    def __init__(
        self,
        graph: StageGraph,
        stages: Stages,
        end_inputs: dict[str, int],
        call_ids: CallIds,
        sessions: Sessions,
        outbox: Outbox,
        frontier: Frontier,
    ) -> None:
        """A reply that begins like a call is not spoken, even if it turns out to be none."""
        self._frontier = frontier
        self._graph = graph
        self._stages = stages
        self._end_inputs = end_inputs
        self._call_ids = frozenset(call_ids.anywhere)
        self._first_call_ids = self._call_ids | frozenset(call_ids.at_first)
        self._blank_ids = frozenset(call_ids.blank)
        self._sessions = sessions
        self._outbox = outbox

    def text(self, response: ResponseState, progress: RequestProgress, now: float) -> None:
        """A token of the reply: to the client, and over the edge to the talker."""
        first = not response.reply
        if progress.tokens is not None:
            tokens, usage = progress.tokens, None
            if first and response.forced:
                response.reply += response.forced
                tokens = ints([*response.forced, progress.first])[:, None]
            response.reply.append(progress.first)
            spec = response.spec  # as `_emit_tokens`, without a call for every token of every reply
            if first and spec.tells_counts:
                usage = response.usage(self._stages.entry_stage)
            out = TokensOut(
                spec.session, spec.response, self._stages.entry_stage, tokens, usage, progress.logprobs
            )
            self._outbox.outputs.append(out)
        elif first and progress.logprobs:
            stage = self._stages.entry_stage  # a reply of no token still tells what was asked of its prompt
            self._emit_tokens(response, stage, NO_TOKENS, response.usage(stage), progress.logprobs)
        if progress.end is not None:
            response.is_cut = progress.end == "length"
        last = response.reply if first else response.reply[-1:]
        begins = response.is_blank
        call_ids = self._first_call_ids if begins else self._call_ids
        is_calling = not call_ids.isdisjoint(last) and bool(response.tools)
        if is_calling:
            self._frontier.call(response.slot)
        if begins:
            response.is_blank = self._blank_ids.issuperset(last)
        voice = response.voice
        if voice is not PENDING and voice is not OPEN:
            return
        over = is_calling or progress.end is not None
        if self._stages.talker_stage is None:
            words = () if is_calling or response.is_blank or progress.tokens is None else last
            self._read(response, response.reply if begins and words else words, now, over)
        elif self._edge().whole:
            if over and not first:
                words = response.reply if progress.tokens is None else response.reply[:-1]
                self._recite(response, words, now)
                self._frontier.end_speech(response.slot)
        elif not self._edge().streams:
            self._speak(response, first, now, over)
        elif not first:
            num_known = len(response.reply) - (progress.tokens is not None)
            self._speak_behind(response, num_known, now, over)
        if is_calling and response.voice is SpeechPhase.PENDING:
            response.voice = SpeechPhase.SILENT
            self._frontier.end_speech(response.slot)

    def say(self, response: ResponseState, reply: Ints, now: float) -> None:
        """The reply is given. The talker needs nothing of it but its tokens, so no stage has to write it."""
        response.reply = reply.tolist()
        self._frontier.make(ENTRY, response.slot, len(reply), now)
        if len(reply):
            self._emit_tokens(response, self._stages.entry_stage, reply.reshape(-1, 1))
        if response.voice is SpeechPhase.PENDING:
            self._recite(response, response.reply, now)

    def frame(self, response: ResponseState, progress: RequestProgress) -> None:
        """A frame of the spoken reply: to the vocoder, or its sound to the client; and to a client that asked
        for codes."""
        talker, vocoder = self._talker(response), self._stages.codec.get(response.route.vocoder)
        if progress.tokens is not None:
            response.num_frames += 1
            if vocoder is None:
                self._frontier.sound(1, progress.samples)
                self._sound(response, progress.samples, progress.audio)
            else:
                vocoder.open(response.request, response.spec.voice, response.slot, response.tier)
                vocoder.push(response.request, progress.tokens[0])
            if response.spec.codes:
                self._emit_tokens(response, talker.stage, progress.tokens)
        if progress.end is not None:
            self._frontier.end_speech(response.slot)
            self._sessions.drop_payload(response, talker.name)
            if vocoder is not None and vocoder.close(response.request):
                response.open_units.discard(vocoder.name)

    def heard(self, response: ResponseState, heard: Heard) -> None:
        """What the vocoder made of the reply's frames; a step may bring no sound."""
        self._sound(response, heard.samples, heard.audio, heard.words)
        if self._stages.talker_stage is not None:
            self._talker(response).grant(response.request, self._credit(response, heard.frames))
        elif response.voice is SpeechPhase.OPEN:
            self._hold_back(response, heard.frames)

    def arrived(self, response: ResponseState) -> None:
        """The oldest outstanding hand-off reached the talker."""
        talker = self._talker(response)
        if talker.waits_for_payload(response.request):
            talker.arrived(response.request)
        elif response.on_the_way:
            talker.push(response.request, response.on_the_way.popleft())
        if response.voice is SpeechPhase.CLOSING and not response.on_the_way:
            self._end_text(response)

    def _sound(
        self, response: ResponseState, samples: int, audio: bytes, words: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """To the client."""
        if samples:
            spec = response.spec
            self._outbox.outputs.append(AudioOut(spec.session, spec.response, audio, words))

    def _recite(self, response: ResponseState, words: list[int], now: float) -> None:
        """Have all of a text spoken, one token or more of it."""
        if self._stages.talker_stage is None:
            self._read(response, words, now, over=True)
            return
        if not self._start_speaking(response, now):
            return
        talker = self._talker(response)
        for token in (*words[1:], self._end_inputs[talker.stage]):
            talker.push(response.request, token)
        talker.close(response.request)
        response.voice = SpeechPhase.CLOSED

    def _read(self, response: ResponseState, words: Sequence[int], now: float, over: bool) -> None:
        """More of the text for a voice that reads it, and its end. A reply without words is not spoken."""
        path = response.route
        if words and response.voice is SpeechPhase.PENDING:
            if not self._stages.speak(path, response.session, now, response.spec.remember):
                response.voice = SpeechPhase.LOST
                return
            voice = self._stages.codec[path.vocoder]
            voice.open(response.request, response.spec.voice, response.slot, response.tier)
            response.open_units.add(voice.name)
            response.voice = SpeechPhase.OPEN
            if not self._stages.hands_on(path.entry):
                self._hold_back(response, 0)
        if response.voice is SpeechPhase.OPEN:
            voice = self._stages.codec[path.vocoder]
            for token in words:
                voice.push(response.request, ints([token]))
            if over:
                response.voice = SpeechPhase.CLOSED
                self._stages.ar[path.entry].grant(response.request, UNBOUNDED)
                if voice.close(response.request):
                    response.open_units.discard(voice.name)
        if over:
            self._frontier.end_speech(response.slot)

    def _hold_back(self, response: ResponseState, spoken: int) -> None:
        """What is written may be so far ahead of a voice that has spoken so many tokens of it."""
        self._stages.ar[response.route.entry].grant(response.request, self._credit(response, spoken))

    def _talker(self, response: ResponseState) -> ArScheduler:
        return self._stages.ar[response.route.talker]

    def _speak(self, response: ResponseState, first: bool, now: float, over: bool) -> None:
        """`over`: its words end before this token, since the text or a call begins there.

        A reply that begins with a call, or says nothing, is never given to the talker.
        """
        if first and not over:
            self._start_speaking(response, now)
        elif not first and response.is_spoken:
            if over:
                self._end_text(response)
            else:
                self._talker(response).push(response.request, response.reply[-1])

    def _speak_behind(self, response: ResponseState, num_known: int, now: float, over: bool) -> None:
        """Over an edge that streams: a token goes with its state, which is computed when the next one is
        drawn. The first `num_known` have one, at least one: the newest of them is handed over.
        """
        newest = response.reply[num_known - 1]
        if num_known == 1:
            self._start_speaking(response, now)
        elif response.path is not None and response.path.talker in response.open_units:
            position = len(response.prompts[self._stages.entry_stage].token_ids) + num_known - 1
            if self._hand_over(response, self._talker(response), ints([position])):
                response.on_the_way.append(newest)
            else:
                self._talker(response).push(response.request, newest)
        if over and response.is_spoken:
            self._end_text(response)

    def _end_text(self, response: ResponseState) -> None:
        """The text is over, once all of it is there."""
        self._frontier.end_speech(response.slot)
        if response.on_the_way:
            response.voice = SpeechPhase.CLOSING
            return
        response.voice = SpeechPhase.CLOSED
        talker = self._talker(response)
        talker.push(response.request, self._end_inputs[talker.stage])
        talker.close(response.request)

    def _start_speaking(self, response: ResponseState, now: float) -> bool:
        """The first token is out and more will follow: hand the prompt over and let the talker begin.

        False where no talker is there: the response cannot be ended here, and is marked as LOST.
        """
        if not self._stages.speak(response.route, response.session, now, response.spec.remember):
            response.voice = SpeechPhase.LOST
            return False
        talker = self._talker(response)
        waits = self._hand_over(response, talker, response.prompts[talker.stage].gather)
        response.open_units |= {talker.name, response.route.vocoder} - {""}
        response.voice = SpeechPhase.OPEN
        request = response.ar_request(
            talker,
            response.sampling(talker),
            first_input=response.reply[0],
            voice=response.spec.voice,
            residual=response.spec.sampling.get(self._graph.stage(talker.stage).residual or ""),
        )
        request.waits_for_payload = waits
        request.granted = self._credit(response, frames=0)
        talker.submit(request)
        return True

    def _credit(self, response: ResponseState, frames: int) -> int:
        """Frames that may be drawn once the vocoder has taken up so many; tokens, where it reads them."""
        vocoder = response.route.vocoder
        if not vocoder:
            return UNBOUNDED
        source = self._stages.talker_stage or self._stages.entry_stage
        credit = self._graph.edge(source, self._stages.stage_of(vocoder)).credit
        return UNBOUNDED if credit is None else frames + credit

    def _hand_over(self, response: ResponseState, talker: ArScheduler, positions: Ints) -> bool:
        """Order rows of the entry's payload, where the edge has one; True if the talker has to wait."""
        source, group = response.route.entry, self._edge().prompt_group
        if group is None or not len(positions):
            return False
        row = response.entry.row if response.entry else None
        response.payload_source = source
        assert row is not None, "a request that has drawn a token has a row, or had it until this step"
        self._outbox.orders.append(Handoff(source, talker.name, group, row, response.request, positions))
        return not self._stages.is_local(source, talker.name)

    def _edge(self) -> Edge:
        """From the stage that writes to the talker."""
        assert self._stages.talker_stage is not None
        return self._graph.edge(self._stages.entry_stage, self._stages.talker_stage)

    def _emit_tokens(
        self,
        response: ResponseState,
        stage: str,
        tokens: Ints,
        usage: Usage | None = None,
        logprobs: bytes = b"",
    ) -> None:
        """`tokens` int64 [n, width]."""
        spec = response.spec
        self._outbox.outputs.append(TokensOut(spec.session, spec.response, stage, tokens, usage, logprobs))
