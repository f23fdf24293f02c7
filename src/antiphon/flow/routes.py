"""A reply's route through the stages: who gets its tokens and frames next, and what of them goes out."""

from __future__ import annotations

from antiphon.core.facts import Ints
from antiphon.core.graph import Edge, StageGraph
from antiphon.core.plans import AudioOut, DropPayload, Handoff, TokensOut, ints
from antiphon.flow.outbox import Outbox
from antiphon.flow.stages import Stages
from antiphon.flow.turn import Turn
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import Heard
from antiphon.stage.requests import Progress
from antiphon.stage.rows import UNBOUNDED


class Routes:
    """Text to the client and to the stage that speaks it, frames to the vocoder, sound to the client.

    Owns nothing: what a reply has come to is in its turn, and what the stages hold is theirs.
    """

    def __init__(
        self,
        graph: StageGraph,
        stages: Stages,
        end_inputs: dict[str, int],
        call_ids: tuple[int, ...],
        outbox: Outbox,
    ) -> None:
        self._graph = graph
        self._stages = stages
        self._end_inputs = end_inputs
        self._call_ids = frozenset(call_ids)
        self._outbox = outbox

    def text(self, turn: Turn, progress: Progress, now: float) -> None:
        """A token of the reply: to the client, and over the edge to the stage that speaks it."""
        first = not turn.reply
        if progress.tokens is not None:
            tokens = progress.tokens[None]
            if first and turn.forced:
                turn.reply += turn.forced
                tokens = ints([*turn.forced, progress.first])[:, None]
            turn.reply.append(progress.first)
            self._emit_tokens(turn, self._stages.entry_stage, tokens)
        turn.cut = progress.end == "length"
        if turn.spec.speech and self._stages.speaker_stage is not None and not turn.is_calling:
            last = turn.reply if first else turn.reply[-1:]
            turn.is_calling = bool(turn.tools) and not self._call_ids.isdisjoint(last)
            over = turn.is_calling or progress.end is not None
            if not self._edge().streams:
                self._speak(turn, first, now, over)
            elif not first:
                known = turn.reply[:-1] if progress.tokens is not None else turn.reply
                self._speak_behind(turn, known, now, over)

    def say(self, turn: Turn, reply: Ints, now: float) -> None:
        """The reply is given. Who speaks needs nothing of it but its tokens, so nobody has to write it."""
        turn.reply = reply.tolist()
        self._emit_tokens(turn, self._stages.entry_stage, reply.reshape(-1, 1))
        if not self._start_speaking(turn, now):
            return
        speaker = self._speaker(turn)
        for token in (*turn.reply[1:], self._end_inputs[speaker.stage]):
            speaker.push(turn.request, token)
        speaker.close(turn.request)

    def frame(self, turn: Turn, progress: Progress) -> None:
        """A frame of the spoken reply: to the vocoder, and to the client that asked for codes."""
        assert turn.path is not None
        speaker, vocoder = self._speaker(turn), self._stages.codec[turn.path.vocoder]
        if progress.tokens is not None:
            turn.num_frames += 1
            vocoder.push(turn.request, progress.tokens, turn.spec.voice)
            if turn.spec.codes:
                self._emit_tokens(turn, speaker.stage, progress.tokens[None])
        if progress.end is not None:
            self.drop_payload(turn, speaker.name)
            if vocoder.close(turn.request):
                turn.open_units.discard(vocoder.name)

    def heard(self, turn: Turn, heard: Heard) -> None:
        """Sound of the reply, to the client; a step may bring none."""
        if heard.samples:
            self._outbox.outputs.append(AudioOut(turn.session, turn.spec.response, turn.epoch, heard.audio))
        self._speaker(turn).grant(turn.request, self._credit(turn, heard.frames))

    def drop_payload(self, turn: Turn, unit: str) -> None:
        """The unit needs what was handed over to it no more."""
        if unit not in self._stages.lost and len(turn.prompts[self._stages.stage_of(unit)].gather):
            self._outbox.orders.append(DropPayload(unit, turn.request))

    def _speaker(self, turn: Turn) -> ArScheduler:
        assert turn.path is not None
        return self._stages.ar[turn.path.speaker]

    def _speak(self, turn: Turn, first: bool, now: float, over: bool) -> None:
        """The reply's route. `over`: its words end before this token, since the text or a call begins there.

        Who begins with a call, or says nothing, is never given to the stage that speaks.
        """
        if first and not over:
            self._start_speaking(turn, now)
        elif not first and turn.is_spoken:
            if over:
                self._end_text(turn)
            else:
                self._speaker(turn).push(turn.request, turn.reply[-1])

    def _speak_behind(self, turn: Turn, known: list[int], now: float, over: bool) -> None:
        """The route over an edge that streams: a token goes with its state, which is computed when the next
        one is drawn. `known` are those that have one, at least one: the newest is handed over.
        """
        if len(known) == 1:
            self._start_speaking(turn, now)
        elif turn.path is not None and turn.path.speaker in turn.open_units:
            position = len(turn.prompts[self._stages.entry_stage].token_ids) + len(known) - 1
            if self._hand_over(turn, self._speaker(turn), ints([position])):
                turn.on_the_way.append(known[-1])
            else:
                self._speaker(turn).push(turn.request, known[-1])
        if over and turn.is_spoken:
            self._end_text(turn)

    def arrived(self, turn: Turn) -> None:
        """What was handed over first of all that is on its way to who speaks is there."""
        speaker = self._speaker(turn)
        if speaker.waits_for_payload(turn.request):
            speaker.arrived(turn.request)
        elif turn.on_the_way:
            speaker.push(turn.request, turn.on_the_way.popleft())
        if turn.ends_behind and not turn.on_the_way:
            self._end_text(turn)

    def _end_text(self, turn: Turn) -> None:
        """The text is over, once all of it is there."""
        turn.ends_behind = bool(turn.on_the_way)
        if not turn.ends_behind:
            speaker = self._speaker(turn)
            speaker.push(turn.request, self._end_inputs[speaker.stage])
            speaker.close(turn.request)

    def _start_speaking(self, turn: Turn, now: float) -> bool:
        """The first token is out and more will follow: hand the prompt over and let the talker begin.

        False where no unit that speaks is there: the turn cannot be ended here, and is marked.
        """
        assert turn.path is not None
        if not self._stages.speak(turn.path, turn.session, now, turn.spec.remember):
            turn.is_mute = True
            return False
        speaker = self._speaker(turn)
        waits = self._hand_over(turn, speaker, turn.prompts[speaker.stage].gather)
        turn.open_units |= {speaker.name, turn.path.vocoder}
        turn.is_spoken = True
        sampling = turn.sampling(speaker)
        residual = turn.spec.sampling.get(self._graph.stage(speaker.stage).residual or "")
        request = turn.ar_request(
            speaker, sampling, first_input=turn.reply[0], voice=turn.spec.voice, residual=residual
        )
        request.waits_for_payload = waits
        request.granted = self._credit(turn, frames=0)
        speaker.submit(request)
        return True

    def _credit(self, turn: Turn, frames: int) -> int:
        """Frames that may be drawn once the vocoder has taken up so many."""
        assert turn.path is not None
        target = self._stages.stage_of(turn.path.vocoder)
        credit = self._graph.edge(self._speaker(turn).stage, target).credit
        return UNBOUNDED if credit is None else frames + credit

    def _hand_over(self, turn: Turn, speaker: ArScheduler, positions: Ints) -> bool:
        """Order rows of the entry's payload, where the edge has one; True if the speaker has to wait."""
        assert turn.path is not None
        source, group = turn.path.entry, self._edge().prompt_group
        if group is None or not len(positions):
            return False
        row = turn.entry.row if turn.entry else None
        turn.payload_source = source
        assert row is not None, "who has drawn a token has a row, or had it until this step"
        self._outbox.orders.append(
            Handoff(source, speaker.name, group, row, turn.request, turn.epoch, positions)
        )
        return not self._stages.is_local(source, speaker.name)

    def _edge(self) -> Edge:
        """From who writes to who speaks."""
        assert self._stages.speaker_stage is not None
        return self._graph.edge(self._stages.entry_stage, self._stages.speaker_stage)

    def _emit_tokens(self, turn: Turn, stage: str, tokens: Ints) -> None:
        """`tokens` int64 [n, width]."""
        spec = turn.spec
        self._outbox.outputs.append(TokensOut(spec.session, spec.response, turn.epoch, stage, tokens))
