"""How a turn gets to the server: typed, spoken and committed, or spoken into an open microphone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from antiphon.core.errors import ConfigError
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.people.acts import Act, Doing, Journal, Say, Send, Stretch, Wait
from antiphon.people.downlink import Downlink, GaveUp
from antiphon.people.seat import Seat
from antiphon.workload.script import PersonScript, Script, TurnScript

CONFIGURE_S = 10.0
"""Longest wait for session.created and session.updated."""
CANCEL_S = 5.0
"""Longest wait for a cancelled reply to end before the next is asked for."""


class Uplink:
    """Says what one person has to say. Raises GaveUp, and ConfigError if the server refuses the settings."""

    def __init__(self, script: PersonScript, seat: Seat) -> None:
        self._script = script
        self._seat = seat
        self._downlink = seat.downlink
        self._log = seat.log
        self._options = reply_options(script.turns[0]) if script.turns else {}

    def take(self, number: int, turn: TurnScript, opening_s: float = 0.0) -> Doing:
        """One whole turn. `opening_s` of voice come first: the barge-in by which the turn was won."""
        is_spoken = bool(turn.voice) or (self._seat.has_vad and opening_s > 0)
        modality: Literal["speech", "text"] = "speech" if is_spoken else "text"
        self._downlink.begin(number, turn.wants)
        self._log.write(
            TurnStarted(t_s=self._log.now_s(), session=self._script.name, turn=number, modality=modality)
        )
        said = said_in(number, turn, opening_s)
        if not is_spoken:
            yield from self._type(number, turn)
        elif self._seat.has_vad:
            yield from self._speak_openly(number, turn, said)
        else:
            yield from self._speak_and_commit(number, turn, said)

    def remark(self, speech_s: float, name: str) -> Doing:
        """Something said over a reply that is no turn: no manual commit follows, and none may pick it up."""
        yield Say((Stretch(speech_s, 0.0, ("remark", name)),))
        if not self._seat.has_vad:
            yield Send({"type": "input_audio_buffer.clear"})

    def _type(self, number: int, turn: TurnScript) -> Doing:
        yield Wait(self._log.now_s() + turn.typing_s)
        yield from self._show(turn)
        yield from self._ask(number, turn)
        self._ended(number, self._log.now_s(), 0.0, manual=True)

    def _speak_and_commit(self, number: int, turn: TurnScript, said: Say) -> Doing:
        yield from self._show(turn)
        yield said
        speech_end_s = self._log.now_s()
        yield Send({"type": "input_audio_buffer.commit"})
        yield from self._ask(number, turn)
        self._ended(number, speech_end_s, said.length_s, manual=True)

    def _speak_openly(self, number: int, turn: TurnScript, said: Say) -> Doing:
        """The server decides when the turn is over, and answers by itself."""
        changed_by = yield from self._change_options(number, turn)
        yield from self._show(turn)
        started_s = self._log.now_s()
        yield said
        speech_end_s = self._log.now_s()
        yield from self._be_understood(started_s, speech_end_s)
        if changed_by in self._downlink.refused:
            raise refused_settings(self._downlink)
        self._ended(number, speech_end_s, said.length_s, manual=False)

    def _change_options(self, number: int, turn: TurnScript) -> Generator[Act, None, str]:
        """The server will answer by itself, so the session's settings say what the reply shall be. Nobody
        waits for the echo before they speak: a server takes events in order."""
        options, event_id = reply_options(turn), f"session-{number}"
        if options != self._options:
            self._options = options
            session = {"type": "realtime"} | options
            yield Send({"type": "session.update", "event_id": event_id, "session": session})
        return event_id

    def _be_understood(self, started_s: float, speech_end_s: float) -> Doing:
        """Wait until the server takes the turn as over: it heard the voice end, or answers already."""
        downlink = self._downlink

        def is_understood() -> bool:
            if downlink.is_hearing:
                return False
            was_heard = downlink.speech_started_s is not None and downlink.speech_started_s >= started_s
            return was_heard or bool(downlink.answers())

        if not (yield from downlink.until(is_understood, speech_end_s + self._seat.patience_s)):
            raise GaveUp(f"the server noticed no end of speech within {self._seat.patience_s:g} s")

    def _show(self, turn: TurnScript) -> Doing:
        """Words, pictures and clips of the turn, as one item."""
        content: list[dict[str, Any]] = [
            {"type": "input_image", "image_url": self._seat.picture_url(picture.width, picture.height)}
            for picture in turn.pictures
        ]
        content += [
            {"type": "input_video", "video": list(self._seat.clip_urls(clip)), "fps": clip.fps}
            for clip in turn.clips
        ]
        if turn.text:
            content.append({"type": "input_text", "text": turn.text})
        if content:
            yield user_item(content)

    def _ask(self, number: int, turn: TurnScript) -> Doing:
        downlink = self._downlink
        yield from downlink.until(lambda: not downlink.open_replies, self._log.now_s() + CANCEL_S)
        yield ask(number, reply_options(turn))

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


def said_in(number: int, turn: TurnScript, opening_s: float) -> Say:
    """The turn's voice; the pause after its last stretch is no part of it."""
    opening = (Stretch(opening_s, 0.0, ("opening", str(number))),) if opening_s else ()
    last = len(turn.voice) - 1
    voiced = (
        Stretch(voiced.speech_s, voiced.pause_s if index < last else 0.0, (str(number), str(index)))
        for index, voiced in enumerate(turn.voice)
    )
    return Say((*opening, *voiced))


def user_item(content: list[dict[str, Any]]) -> Send:
    """One message of the user's."""
    item = {"type": "message", "role": "user", "content": content}
    return Send({"type": "conversation.item.create", "item": item})


def ask(number: int, options: dict[str, Any]) -> Send:
    """Request the reply to a turn."""
    return Send({"type": "response.create", "event_id": ask_id(number), "response": options})


def ask_id(number: int) -> str:
    """event_id of the response.create of a turn: the server's refusal names it."""
    return f"ask-{number}"


def reply_options(turn: TurnScript) -> dict[str, Any]:
    """What a turn asks of its reply, as a session or a response is told."""
    options: dict[str, Any] = {"output_modalities": ["audio" if turn.wants == "speech" else "text"]}
    if turn.max_output_tokens is not None:
        options["max_output_tokens"] = turn.max_output_tokens
    return options


def settings(script: Script, *, has_vad: bool) -> dict[str, Any]:
    """The session that a script asks for, as session.update takes it."""
    session: dict[str, Any] = {"type": "realtime"}
    if isinstance(script, PersonScript):
        detection = {"type": "server_vad", "create_response": True, "interrupt_response": True}
        pcm = {"type": "audio/pcm", "rate": WIRE_SAMPLE_RATE_HZ}
        heard = {"format": pcm, "turn_detection": detection if has_vad else None}
        session["audio"] = {"input": heard, "output": {"format": pcm}}
        session |= reply_options(script.turns[0]) if script.turns else {}
    else:
        session["output_modalities"] = ["text"]
    if script.instructions:
        session["instructions"] = script.instructions
    return session


def introduce(session: dict[str, Any], downlink: Downlink, log: Journal) -> Doing:
    """Say what this session is. Raises GaveUp, and ConfigError if the server refuses it."""
    if not (yield from downlink.until(lambda: downlink.num_configs > 0, log.now_s() + CONFIGURE_S)):
        raise GaveUp(f"no session.created within {CONFIGURE_S:g} s")
    before, event_id = downlink.num_configs, "session"
    yield Send({"type": "session.update", "event_id": event_id, "session": session})

    def is_answered() -> bool:
        return downlink.num_configs > before or event_id in downlink.refused

    if not (yield from downlink.until(is_answered, log.now_s() + CONFIGURE_S)):
        raise GaveUp(f"no session.updated within {CONFIGURE_S:g} s")
    if event_id in downlink.refused:
        raise refused_settings(downlink)


def refused_settings(downlink: Downlink) -> ConfigError:
    return ConfigError(f"the server refused the session's settings: {downlink.last_error}")
