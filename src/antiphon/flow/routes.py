"""A reply's route through the stages: who gets its tokens and frames next, and what of them goes out."""

from __future__ import annotations

from antiphon.core.facts import Ints
from antiphon.core.graph import StageGraph
from antiphon.core.plans import AudioOut, DropPayload, Handoff, TokensOut, ints
from antiphon.flow.outbox import Outbox
from antiphon.flow.stages import Stages
from antiphon.flow.turn import Turn
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import Heard
from antiphon.stage.requests import ArRequest, Progress


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

    def text(self, turn: Turn, progress: Progress) -> None:
        """A token of the reply: to the client, and over the edge to the stage that speaks it."""
        first = not turn.reply
        if progress.tokens is not None:
            new = [*(turn.forced if first else ()), int(progress.tokens[0])]
            turn.reply += new
            self._emit_tokens(turn, self._stages.entry.name, ints(new).reshape(-1, 1))
        turn.cut = progress.end == "length"
        speaker = self._stages.speaker if turn.spec.speech else None
        if speaker is not None and not turn.is_calling:
            last = turn.reply if first else turn.reply[-1:]
            turn.is_calling = bool(turn.tools) and not self._call_ids.isdisjoint(last)
            self._speak(turn, speaker, first, over=turn.is_calling or progress.end is not None)

    def say(self, turn: Turn, reply: Ints) -> None:
        """The reply is given. Who speaks needs nothing of it but its tokens, so nobody has to write it."""
        turn.reply, speaker = reply.tolist(), self._stages.speaker
        assert speaker is not None, "a text to say is rendered only where there is a voice"
        self._emit_tokens(turn, self._stages.entry.name, reply.reshape(-1, 1))
        self._start_speaking(turn, speaker)
        for token in (*turn.reply[1:], self._end_inputs[speaker.name]):
            speaker.push(turn.request, token)
        speaker.close(turn.request)

    def frame(self, turn: Turn, stage: str, progress: Progress) -> None:
        """A frame of the spoken reply: to the vocoder, and to the client that asked for codes."""
        vocoder = self._stages.codec[self._stages.vocoder_name]
        if progress.tokens is not None:
            turn.num_frames += 1
            vocoder.push(turn.request, progress.tokens)
            if turn.spec.codes:
                self._emit_tokens(turn, stage, progress.tokens.reshape(1, -1))
        if progress.end is not None:
            self.drop_payload(turn, stage)
            if vocoder.close(turn.request):
                turn.open_stages.discard(vocoder.name)

    def heard(self, turn: Turn, heard: Heard) -> None:
        """Sound of the reply, to the client."""
        self._outbox.outputs.append(AudioOut(turn.session, turn.spec.response, turn.epoch, heard.audio))

    def drop_payload(self, turn: Turn, stage: str) -> None:
        """The stage needs what was handed over to it no more."""
        if len(turn.prompts[stage].gather):
            self._outbox.orders.append(DropPayload(stage, turn.request))

    def _speak(self, turn: Turn, speaker: ArScheduler, first: bool, over: bool) -> None:
        """The reply's route. `over`: its words end before this token, since the text or a call begins there.

        Who begins with a call, or says nothing, is never given to the stage that speaks.
        """
        if over:
            speaker.push(turn.request, self._end_inputs[speaker.name])
            speaker.close(turn.request)
        elif first:
            self._start_speaking(turn, speaker)
        else:
            speaker.push(turn.request, turn.reply[-1])

    def _start_speaking(self, turn: Turn, speaker: ArScheduler) -> None:
        """The first token is out and more will follow: hand the prompt over and let the talker begin."""
        source, target = self._stages.entry.name, speaker.name
        prompt = turn.prompts[target]
        group = self._graph.edge(source, target).prompt_group
        if group is not None and len(prompt.gather):
            row = turn.entry.row if turn.entry else None
            assert row is not None, "who has drawn a token and goes on has a row"
            self._outbox.orders.append(
                Handoff(source, target, group, row, turn.request, turn.epoch, prompt.gather)
            )
        turn.open_stages |= {target, self._stages.vocoder_name}
        sampling = turn.sampling(speaker)
        residual = turn.spec.sampling.get(self._graph.stage(target).residual or "")
        first, voice = turn.reply[0], turn.spec.voice
        speaker.submit(ArRequest(turn.request, turn.session, prompt, sampling, first, voice, residual))

    def _emit_tokens(self, turn: Turn, stage: str, tokens: Ints) -> None:
        """`tokens` int64 [n, width]."""
        self._outbox.outputs.append(TokensOut(turn.session, turn.spec.response, turn.epoch, stage, tokens))
