"""Plays the script of one person: thinks, speaks or types, listens or reads, interrupts, and goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from antiphon.bench.acks import acknowledge, wants_acks
from antiphon.bench.ear import Ear, GaveUp, Reply
from antiphon.bench.logfile import LogWriter
from antiphon.bench.mouth import Mouth, ask_id
from antiphon.bench.target import Pace, Target
from antiphon.bench.voice import Voices
from antiphon.bench.wire_client import WireClient
from antiphon.metrics.log import Interrupted
from antiphon.workload.script import Interjection, PersonScript, TurnScript

REACTION_S = 0.2
"""From beginning to speak until a person's own client falls silent, where the server does not see to it."""


class Person:
    """One session of a person."""

    def __init__(
        self,
        script: PersonScript,
        target: Target,
        pace: Pace,
        voices: Voices,
        log: LogWriter,
        received: asyncio.Event | None = None,
    ) -> None:
        """received: set when all replies of the script have come."""
        self._script = script
        self._received = received or asyncio.Event()
        self._target = target
        self._pace = pace
        self._voices = voices
        self._log = log
        self._ear = Ear(script.name, log, script.reading_tokens_per_s)

    async def play(self, client: WireClient) -> None:
        """The whole script. Raises ConnectionLost, GaveUp or ConfigError."""
        self._client = client
        self._mouth = Mouth(self._script, self._pace, self._voices, client, self._ear, self._log)
        helpers = [asyncio.create_task(self._ear.listen(client))]
        try:
            await self._mouth.introduce()
            helpers.append(asyncio.create_task(self._mouth.microphone.run()))
            if self._script.acks and wants_acks(self._target, self._ear):
                helpers.append(asyncio.create_task(acknowledge(self._script, self._ear, client, self._log)))
            await self._converse()
        finally:
            await end(helpers)

    async def _converse(self) -> None:
        barge_in: Interjection | None = None
        for number, turn in enumerate(self._script.turns):
            if barge_in is None:
                await self._ear.until(_never, self._log.now_s() + turn.think_s)
                await self._mouth.take(number, turn)
            else:
                await self._take_over(number, turn, barge_in)
            barge_in = await self._listen(number, turn)
        if barge_in is not None:
            await self._take_over(len(self._script.turns), None, barge_in)

    async def _listen(self, number: int, turn: TurnScript) -> Interjection | None:
        """Until all answers to the turn have been heard or read, or they take the turn by a barge-in.

        A server may answer in more than one response, if it took the speaker to be done too early or a
        backchannel for a turn.
        """
        to_say = deque(enumerate(turn.interjections))
        asked_s = self._log.now_s()
        while True:
            now = self._log.now_s()
            reply = next(iter(self._ear.answers()), None)
            if number == len(self._script.turns) - 1 and self._has_received():
                self._received.set()
            if ask_id(number) in self._ear.refused or (reply is not None and self._is_over(now)):
                return None
            self._check_patience(now, asked_s)
            due_s = self._due_s(reply, to_say[0][1]) if to_say else None
            if reply is not None and due_s is not None and now >= due_s:
                index, interjection = to_say.popleft()
                if interjection.kind == "barge_in":
                    return interjection
                await self._remark(self._ear.latest or reply, interjection, f"{number}.{index}")
                continue
            await self._until_something(now, asked_s, due_s)

    def _has_received(self) -> bool:
        answers = [*self._ear.answers()]
        return bool(answers) and all(reply.is_done for reply in answers)

    def _is_over(self, now: float) -> bool:
        is_hearing = self._pace.turn_detection == "server_vad" and self._ear.is_hearing
        return not is_hearing and all(reply.is_over(now) for reply in self._ear.answers())

    def _due_s(self, reply: Reply | None, interjection: Interjection) -> float | None:
        first_s = reply.playback.first_at if reply is not None else None
        return None if first_s is None else first_s + interjection.after_s

    def _check_patience(self, now: float, asked_s: float) -> None:
        is_waiting = not self._ear.answers() or self._ear.open_replies() or self._ear.is_hearing
        if is_waiting and now - max(asked_s, self._ear.last_event_s) >= self._pace.patience_s:
            raise GaveUp(f"no sign of the reply for {self._pace.patience_s:g} s")

    async def _until_something(self, now: float, asked_s: float, due_s: float | None) -> None:
        """The next event, interjection, end of playback, or the end of patience."""
        dry = [reply.playback.dry_at for reply in self._ear.answers() if reply.is_audible(now)]
        times = [due_s, max(asked_s, self._ear.last_event_s) + self._pace.patience_s, *dry]
        rings = self._ear.num_events
        deadline_s = min(time_s for time_s in times if time_s is not None and time_s > now)
        await self._ear.until(lambda: self._ear.num_events > rings, deadline_s)

    async def _remark(self, reply: Reply, interjection: Interjection, name: str) -> None:
        """A backchannel or a failed barge-in: spoken, and the person listens on."""
        now = self._log.now_s()
        if reply.is_audible(now):
            self._log_interruption(reply, interjection, now)
            await self._mouth.remark(interjection.speech_s, "remark", name)

    async def _take_over(self, number: int, turn: TurnScript | None, barge_in: Interjection) -> None:
        """Speak over the reply until it stops, and go on with the next turn (if there is one)."""
        started_s = self._log.now_s()
        replies = [reply for reply in self._ear.answers() if not reply.is_over(started_s)]
        if self._pace.turn_detection == "manual":
            await self._fall_silent(replies, barge_in)
            if turn is not None:
                await self._mouth.take(number, turn, barge_in.speech_s)
            return
        stopping = asyncio.create_task(self._stop_when_noticed(replies, barge_in, started_s))
        try:
            if turn is None:
                await self._mouth.remark(barge_in.speech_s, "remark", "last")
            else:
                await self._mouth.take(number, turn, barge_in.speech_s)
            await stopping
        finally:
            await end([stopping])

    async def _stop_when_noticed(
        self, replies: list[Reply], barge_in: Interjection, started_s: float
    ) -> None:
        """Playback goes on until the server has noticed, if it is one that interrupts."""
        ear = self._ear

        def is_noticed() -> bool:
            return ear.speech_started_s is not None and ear.speech_started_s >= started_s

        if _interrupts(ear):
            await ear.until(is_noticed, started_s + self._pace.patience_s)
        else:
            await asyncio.sleep(REACTION_S)
        await self._fall_silent(replies, barge_in)

    async def _fall_silent(self, replies: list[Reply], barge_in: Interjection) -> None:
        """Stop playback, end what is still being generated, and tell the server what was heard."""
        for reply in replies:
            now = self._log.now_s()
            self._log_interruption(reply, barge_in, now)
            heard_s = reply.silence(now)
            if not reply.is_done and not (
                self._pace.turn_detection == "server_vad" and _interrupts(self._ear)
            ):
                await self._client.send({"type": "response.cancel", "response_id": reply.id})
            if reply.has_audio and reply.item:
                truncate = {"type": "conversation.item.truncate", "item_id": reply.item}
                place = {"content_index": reply.content_index, "audio_end_ms": int(1000 * heard_s)}
                await self._client.send(truncate | place)

    def _log_interruption(self, reply: Reply, interjection: Interjection, now: float) -> None:
        self._log.write(
            Interrupted(
                t_s=now,
                session=self._script.name,
                response=reply.id,
                kind=interjection.kind,
                heard_s=reply.playback.played_s(now),
            )
        )


def _interrupts(ear: Ear) -> bool:
    """Does the server say that speech interrupts a reply?"""
    heard = (ear.config.get("audio") or {}).get("input") or {}
    detection = heard.get("turn_detection") or ear.config.get("turn_detection") or {}
    return bool(detection.get("interrupt_response", False))


def _never() -> bool:
    return False


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
