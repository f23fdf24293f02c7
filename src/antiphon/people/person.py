"""The script of one person: thinks, speaks or types, listens or reads, interrupts, and goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from antiphon.metrics.log import Interrupted
from antiphon.people.acts import Act, Doing, Send, Wait
from antiphon.people.downlink import GaveUp, HeardReply
from antiphon.people.seat import Seat
from antiphon.people.uplink import Uplink, ask_id
from antiphon.workload.script import Interjection, PersonScript, TurnScript

REACTION_S = 0.2
"""From beginning to speak until a person's own client falls silent, where the server does not see to it."""
END_S = 5.0
"""The longest that a person waits, before leaving, for the end of a reply that they cut."""


class Person:
    """One session of a person."""

    def __init__(self, script: PersonScript, seat: Seat) -> None:
        self._script = script
        self._seat = seat
        self._downlink = seat.downlink
        self._log = seat.log
        self._uplink = Uplink(script, seat)

    def play(self) -> Doing:
        """The whole script. Raises GaveUp or ConfigError."""
        barge_in: Interjection | None = None
        for number, turn in enumerate(self._script.turns):
            if barge_in is None:
                yield Wait(self._log.now_s() + turn.think_s)
                yield from self._uplink.take(number, turn)
            else:
                yield from self._take_over(number, turn, barge_in)
            barge_in = yield from self._listen(number, turn)
        if barge_in is not None:
            yield from self._take_over(len(self._script.turns), None, barge_in)

    def _listen(self, number: int, turn: TurnScript) -> Generator[Act, None, Interjection | None]:
        """Until all answers to the turn have been heard or read, or they take the turn by a barge-in.

        A server may answer in more than one response, if it took the speaker to be done too early or a
        backchannel for a turn.
        """
        to_say = deque(enumerate(turn.interjections))
        asked_s = self._log.now_s()
        while True:
            now = self._log.now_s()
            answers = self._downlink.answers()
            reply = answers[0] if answers else None
            if number == len(self._script.turns) - 1 and answers and all(each.is_done for each in answers):
                self._seat.received()
            if ask_id(number) in self._downlink.refused or (answers and self._is_over(answers, now)):
                return None
            self._check_patience(answers, now, asked_s)
            due_s = _due_s(reply, to_say[0][1]) if to_say else None
            if reply is not None and due_s is not None and now >= due_s:
                index, interjection = to_say.popleft()
                if interjection.kind == "barge_in":
                    return interjection
                yield from self._remark(self._downlink.latest or reply, interjection, f"{number}.{index}")
                continue
            yield self._until_something(answers, now, asked_s, due_s)

    def _is_over(self, answers: list[HeardReply], now: float) -> bool:
        is_hearing = self._seat.has_vad and self._downlink.is_hearing
        return not is_hearing and all(reply.is_over(now) for reply in answers)

    def _check_patience(self, answers: list[HeardReply], now: float, asked_s: float) -> None:
        is_waiting = not answers or self._downlink.is_hearing or self._downlink.open_replies
        if is_waiting and now >= self._patient_until_s(asked_s):
            raise GaveUp(f"no sign of the reply for {self._seat.patience_s:g} s")

    def _until_something(
        self, answers: list[HeardReply], now: float, asked_s: float, due_s: float | None
    ) -> Wait:
        """A ring, an interjection, the end of playback, or the end of patience."""
        dry = [reply.playback.dry_at for reply in answers if reply.is_audible(now)]
        times = [
            time_s
            for time_s in (due_s, self._patient_until_s(asked_s), *dry)
            if time_s is not None and time_s > now
        ]
        return Wait(min(times), listens=True)

    def _patient_until_s(self, asked_s: float) -> float:
        return max(asked_s, self._downlink.last_event_s) + self._seat.patience_s

    def _remark(self, reply: HeardReply, interjection: Interjection, name: str) -> Doing:
        """A backchannel or a failed barge-in: spoken, and the person listens on."""
        now = self._log.now_s()
        if reply.is_audible(now):
            self._log_interruption(reply, interjection, now)
            yield from self._uplink.remark(interjection.speech_s, name)

    def _take_over(self, number: int, turn: TurnScript | None, barge_in: Interjection) -> Doing:
        """Speak over the reply until it stops, and go on with the next turn (if there is one)."""
        started_s = self._log.now_s()
        replies = [reply for reply in self._downlink.answers() if not reply.is_over(started_s)]
        if not self._seat.has_vad:
            yield from self._fall_silent(replies, barge_in)
            if turn is not None:
                yield from self._uplink.take(number, turn, barge_in.speech_s)
            else:
                yield from self._hear_the_end(replies)
            return
        stopping = self._seat.beside(self._stop_when_noticed(replies, barge_in, started_s))
        try:
            if turn is None:
                yield from self._uplink.remark(barge_in.speech_s, "last")
            else:
                yield from self._uplink.take(number, turn, barge_in.speech_s)
            while not stopping.is_over:
                yield Wait(listens=True)
        finally:
            stopping.stop()
        if turn is None:
            yield from self._hear_the_end(replies)

    def _hear_the_end(self, replies: list[HeardReply]) -> Doing:
        """Of replies that were cut last: leaving at once, a person never learns what was made of them."""
        until_s = self._log.now_s() + min(self._seat.patience_s, END_S)
        yield from self._downlink.until(lambda: all(reply.is_done for reply in replies), until_s)

    def _stop_when_noticed(
        self, replies: list[HeardReply], barge_in: Interjection, started_s: float
    ) -> Doing:
        """Playback goes on until the server has noticed, if it is one that interrupts."""
        downlink = self._downlink

        def is_noticed() -> bool:
            return downlink.speech_started_s is not None and downlink.speech_started_s >= started_s

        if downlink.interrupts:
            yield from downlink.until(is_noticed, started_s + self._seat.patience_s)
        else:
            yield Wait(started_s + REACTION_S)
        yield from self._fall_silent(replies, barge_in)

    def _fall_silent(self, replies: list[HeardReply], barge_in: Interjection) -> Doing:
        """Stop playback, end what is still being generated, and tell the server what was heard."""
        for reply in replies:
            now = self._log.now_s()
            self._log_interruption(reply, barge_in, now)
            heard_s = reply.silence(now)
            if not reply.is_done and not (self._seat.has_vad and self._downlink.interrupts):
                yield Send({"type": "response.cancel", "response_id": reply.id})
            if reply.has_audio and reply.item:
                truncate = {"type": "conversation.item.truncate", "item_id": reply.item}
                place = {"content_index": reply.content_index, "audio_end_ms": int(1000 * heard_s)}
                yield Send(truncate | place)

    def _log_interruption(self, reply: HeardReply, interjection: Interjection, now: float) -> None:
        self._log.write(
            Interrupted(
                t_s=now,
                session=self._script.name,
                response=reply.id,
                kind=interjection.kind,
                heard_s=reply.playback.played_s(now),
            )
        )


def _due_s(reply: HeardReply | None, interjection: Interjection) -> float | None:
    first_s = reply.playback.first_at if reply is not None else None
    return None if first_s is None else first_s + interjection.after_s
