"""How a turn gets to the server: typed, spoken and committed, or spoken into an open microphone."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from antiphon.bench.ear import Ear, GaveUp
from antiphon.bench.logfile import LogWriter
from antiphon.bench.microphone import BYTES_PER_S, Microphone
from antiphon.bench.pictures import data_url, frame_urls
from antiphon.bench.target import Pace
from antiphon.bench.voice import Voices, silence
from antiphon.bench.wire_client import WireClient
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.workload.script import PersonScript, TurnScript

CONFIGURE_S = 10.0
"""Longest wait for session.created and session.updated."""
CANCEL_S = 5.0
"""Longest wait for a cancelled reply to end before the next is asked for."""


class Mouth:
    """Says what one person has to say. Raises ConnectionLost, GaveUp or ConfigError."""

    def __init__(
        self, script: PersonScript, pace: Pace, voices: Voices, client: WireClient, ear: Ear, log: LogWriter
    ) -> None:
        self._script = script
        self._voices = voices
        self._client = client
        self._ear = ear
        self._log = log
        self._patience_s = pace.patience_s
        self._has_vad = pace.turn_detection == "server_vad"
        self._options: dict[str, Any] = {}
        self.microphone = Microphone(client, is_open=self._has_vad)

    async def introduce(self) -> None:
        """Say what this session is. The microphone should be off until then."""
        if not await self._ear.until(lambda: self._ear.num_configs > 0, self._log.now_s() + CONFIGURE_S):
            raise GaveUp(f"no session.created within {CONFIGURE_S:g} s")
        detection = {"type": "server_vad", "create_response": True, "interrupt_response": True}
        pcm = {"type": "audio/pcm", "rate": 24_000}
        heard = {"format": pcm, "turn_detection": detection if self._has_vad else None}
        session: dict[str, Any] = {"audio": {"input": heard, "output": {"format": pcm}}}
        if self._script.instructions:
            session["instructions"] = self._script.instructions
        if self._script.turns:
            self._options = reply_options(self._script.turns[0])
        await self._update(session | self._options)

    async def take(self, number: int, turn: TurnScript, opening_s: float = 0.0) -> None:
        """One whole turn. `opening_s` of voice come first: the barge-in by which the turn was won."""
        is_spoken = bool(turn.voice) or (self._has_vad and opening_s > 0)
        modality: Literal["speech", "text"] = "speech" if is_spoken else "text"
        self._ear.begin(number, turn.wants)
        self._log.write(
            TurnStarted(t_s=self._log.now_s(), session=self._script.name, turn=number, modality=modality)
        )
        if not is_spoken:
            await self._type(number, turn)
        elif self._has_vad:
            await self._speak_openly(number, turn, opening_s)
        else:
            await self._speak_and_commit(number, turn, opening_s)

    async def remark(self, speech_s: float, *names: str) -> None:
        """Something said over a reply that is no turn: no manual commit follows, and none may pick it up."""
        await self.microphone.say(self._voices.speak(speech_s, self._script.seed, *names))
        if not self._has_vad:
            await self._client.send({"type": "input_audio_buffer.clear"})

    async def _type(self, number: int, turn: TurnScript) -> None:
        await asyncio.sleep(turn.typing_s)
        await self._show(turn)
        await self._ask(number, turn)
        now = self._log.now_s()
        self._log.write(TurnEnded(t_s=now, session=self._script.name, turn=number, speech_end_s=now))

    async def _speak_and_commit(self, number: int, turn: TurnScript, opening_s: float) -> None:
        await self._show(turn)
        pcm = self._voice(number, turn, opening_s)
        await self.microphone.say(pcm)
        speech_end_s = self._log.now_s()
        await self._client.send({"type": "input_audio_buffer.commit"})
        await self._ask(number, turn)
        self._log.write(
            TurnEnded(
                t_s=self._log.now_s(),
                session=self._script.name,
                turn=number,
                speech_end_s=speech_end_s,
                audio_s=len(pcm) / BYTES_PER_S,
            )
        )

    async def _speak_openly(self, number: int, turn: TurnScript, opening_s: float) -> None:
        """The server decides when the turn is over, and answers by itself."""
        if reply_options(turn) != self._options:
            self._options = reply_options(turn)
            await self._update(self._options)
        await self._show(turn)
        started_s = self._log.now_s()
        pcm = self._voice(number, turn, opening_s)
        await self.microphone.say(pcm)
        speech_end_s = self._log.now_s()
        await self._be_understood(started_s, speech_end_s)
        self._log.write(
            TurnEnded(
                t_s=self._log.now_s(),
                session=self._script.name,
                turn=number,
                speech_end_s=speech_end_s,
                audio_s=len(pcm) / BYTES_PER_S,
                manual=False,
            )
        )

    async def _be_understood(self, started_s: float, speech_end_s: float) -> None:
        """Wait until the server takes the turn as over: it heard the voice end, or answers already."""
        ear = self._ear

        def is_understood() -> bool:
            if ear.is_hearing:
                return False
            was_heard = ear.speech_started_s is not None and ear.speech_started_s >= started_s
            return was_heard or bool(ear.answers())

        if not await ear.until(is_understood, speech_end_s + self._patience_s):
            raise GaveUp(f"the server noticed no end of speech within {self._patience_s:g} s")

    async def _show(self, turn: TurnScript) -> None:
        """Words, pictures and clips of the turn, as one item."""
        content: list[dict[str, Any]] = [
            {"type": "input_image", "image_url": data_url(picture.width, picture.height)}
            for picture in turn.pictures
        ]
        content += [
            {"type": "input_video", "video": list(frame_urls(clip)), "fps": clip.fps} for clip in turn.clips
        ]
        if turn.text:
            content.append({"type": "input_text", "text": turn.text})
        if content:
            item = {"type": "message", "role": "user", "content": content}
            await self._client.send({"type": "conversation.item.create", "item": item})

    async def _ask(self, number: int, turn: TurnScript) -> None:
        await self._ear.until(lambda: not self._ear.open_replies(), self._log.now_s() + CANCEL_S)
        asked = {"type": "response.create", "event_id": ask_id(number), "response": reply_options(turn)}
        await self._client.send(asked)

    async def _update(self, session: dict[str, Any]) -> None:
        ear = self._ear
        before = ear.num_configs
        event_id = f"session-{before}"
        update = {"type": "session.update", "event_id": event_id, "session": {"type": "realtime"} | session}
        await self._client.send(update)

        def is_answered() -> bool:
            return ear.num_configs > before or event_id in ear.refused

        if not await ear.until(is_answered, self._log.now_s() + CONFIGURE_S):
            raise GaveUp(f"no session.updated within {CONFIGURE_S:g} s")
        if event_id in ear.refused:
            raise ConfigError(f"the server refused the session's settings: {ear.last_error}")

    def _voice(self, number: int, turn: TurnScript, opening_s: float) -> bytes:
        """All of the turn's PCM; the pause after its last stretch is no part of it."""
        seed = self._script.seed
        pcm = self._voices.speak(opening_s, seed, "opening", str(number)) if opening_s else b""
        for index, voiced in enumerate(turn.voice):
            pcm += self._voices.speak(voiced.speech_s, seed, str(number), str(index))
            if index + 1 < len(turn.voice):
                pcm += silence(voiced.pause_s)
        return pcm


def reply_options(turn: TurnScript) -> dict[str, Any]:
    options: dict[str, Any] = {"output_modalities": ["audio" if turn.wants == "speech" else "text"]}
    if turn.max_output_tokens is not None:
        options["max_output_tokens"] = turn.max_output_tokens
    return options


def ask_id(number: int) -> str:
    """event_id of the response.create of a turn: the server's refusal names it."""
    return f"ask-{number}"
