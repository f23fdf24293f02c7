"""How a turn gets to the server: typed, spoken and committed, or spoken into an open microphone."""

from __future__ import annotations

from typing import Literal

from antiphon.core.conversation import ImagePart, Part, TextPart, VideoPart
from antiphon.core.ids import content_key
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.sim.ear import GaveUp
from antiphon.sim.process import Doing, Wait
from antiphon.sim.seat import Seat
from antiphon.sim.sessions import Asked
from antiphon.workload.script import Clip, PersonScript, TurnScript, Voiced

CANCEL_S = 5.0
"""Longest wait for a cancelled reply to end before the next is asked for."""
FRAME_S = 0.04
"""A microphone sends audio in frames of this length, as `bench.microphone` does."""


class Mouth:
    """Says what one person has to say. Raises GaveUp."""

    def __init__(self, script: PersonScript, seat: Seat) -> None:
        self._script = script
        self._seat = seat
        self._ear = seat.ear
        self._log = seat.log

    def take(self, number: int, turn: TurnScript, opening_s: float = 0.0) -> Doing:
        """One whole turn. `opening_s` of voice come first: the barge-in by which the turn was won."""
        is_spoken = bool(turn.voice) or (self._seat.has_vad and opening_s > 0)
        modality: Literal["speech", "text"] = "speech" if is_spoken else "text"
        self._ear.begin(number, turn.wants)
        self._log.write(
            TurnStarted(t_s=self._log.now_s(), session=self._script.name, turn=number, modality=modality)
        )
        opening = (Voiced(opening_s),) if opening_s else ()
        said = (*opening, *turn.voice)
        if not is_spoken:
            yield from self._type(number, turn)
        elif self._seat.has_vad:
            yield from self._speak_openly(number, turn, said)
        else:
            yield from self._speak_and_commit(number, turn, said)

    def remark(self, speech_s: float) -> Doing:
        """Something said over a reply that is no turn: who commits by hand does not commit it."""
        if self._seat.hearing is None:
            yield from self._append(speech_s)
            self._seat.up.send(self._seat.server.clear)
            return
        self._seat.up.send(self._seat.hearing.hear, (Voiced(speech_s),), None)
        yield Wait(self._log.now_s() + speech_s)

    def _type(self, number: int, turn: TurnScript) -> Doing:
        yield Wait(self._log.now_s() + turn.typing_s)
        self._show(turn)
        yield from self._ask(number, turn)
        self._ended(number, self._log.now_s(), 0.0, manual=True)

    def _speak_and_commit(self, number: int, turn: TurnScript, said: tuple[Voiced, ...]) -> Doing:
        self._show(turn)
        audio_s = length_s(said)
        yield from self._append(audio_s)
        speech_end_s = self._log.now_s()
        self._seat.up.send(self._seat.server.commit, audio_s)
        yield from self._ask(number, turn)
        self._ended(number, speech_end_s, audio_s, manual=True)

    def _append(self, audio_s: float) -> Doing:
        """The first frame leaves when it has been spoken; what the others bring is counted at the commit."""
        started_s = self._log.now_s()
        yield Wait(started_s + min(FRAME_S, audio_s))
        self._seat.up.send(self._seat.server.append)
        yield Wait(started_s + audio_s)

    def _speak_openly(self, number: int, turn: TurnScript, said: tuple[Voiced, ...]) -> Doing:
        """The server decides when the turn is over, and answers by itself."""
        self._show(turn)
        hearing, started_s = self._seat.hearing, self._log.now_s()
        assert hearing is not None
        self._seat.up.send(hearing.hear, said, asked(number, turn))
        yield Wait(started_s + length_s(said))
        speech_end_s = self._log.now_s()
        yield from self._be_understood(started_s, speech_end_s)
        self._ended(number, speech_end_s, length_s(said), manual=False)

    def _be_understood(self, started_s: float, speech_end_s: float) -> Doing:
        """Wait until the server takes the turn as over: it heard the voice end, or answers already."""
        ear = self._ear

        def is_understood() -> bool:
            if ear.is_hearing:
                return False
            was_heard = ear.speech_started_s is not None and ear.speech_started_s >= started_s
            return was_heard or bool(ear.answers())

        if not (yield from ear.until(is_understood, speech_end_s + self._seat.patience_s)):
            raise GaveUp(f"the server noticed no end of speech within {self._seat.patience_s:g} s")

    def _show(self, turn: TurnScript) -> None:
        """Words, pictures and clips of the turn, as one item."""
        parts: list[Part] = [
            ImagePart(b"", shown.width, shown.height, picture_key(shown.width, shown.height))
            for shown in turn.pictures
        ]
        parts += [
            VideoPart(b"", shown.width, shown.height, shown.num_frames, shown.fps, None, clip_key(shown))
            for shown in turn.clips
        ]
        if turn.text:
            parts.append(TextPart(turn.text))
        if parts:
            self._seat.up.send(self._seat.server.add, *parts)

    def _ask(self, number: int, turn: TurnScript) -> Doing:
        yield from self._ear.until(lambda: not self._ear.open_replies, self._log.now_s() + CANCEL_S)
        self._seat.up.send(self._seat.server.create, asked(number, turn))

    def _ended(self, number: int, speech_end_s: float, audio_s: float, *, manual: bool) -> None:
        self._log.write(
            TurnEnded(
                t_s=self._log.now_s(),
                session=self._script.name,
                turn=number,
                speech_end_s=speech_end_s,
                audio_s=audio_s,
                manual=manual,
            )
        )


def asked(number: int, turn: TurnScript) -> Asked:
    """The reply that a turn wants."""
    return Asked(ask_id(number), turn.wants == "speech", turn.max_output_tokens)


def ask_id(number: int) -> str:
    """What the request for the reply to a turn is called."""
    return f"ask-{number}"


def length_s(said: tuple[Voiced, ...]) -> float:
    """With its inner pauses; the pause after the last stretch is no part of it."""
    return sum(one.speech_s + one.pause_s for one in said) - said[-1].pause_s if said else 0.0


def clip_key(clip: Clip) -> int:
    """Of what it shows."""
    return content_key(b"clip", repr(clip).encode())


def picture_key(width: int, height: int) -> int:
    """All pictures of a size are the same one, as those of `bench.pictures` are."""
    return content_key(b"picture", f"{width}x{height}".encode())
