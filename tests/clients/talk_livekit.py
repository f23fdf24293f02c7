"""livekit-plugins-openai: its RealtimeModel's session, without a room."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai import realtime
from talk import Arguments, check, listen, microphone, run, until


@llm.function_tool
async def weather() -> str:
    """The weather here."""
    return "clear"


class Client:
    """A person at one session, who notes all that comes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self.replies: list[Any] = []
        self.sound_s = 0.0
        self.message_id = ""
        self._tasks: set[asyncio.Task[None]] = set()
        session.on("openai_server_event_received", self._note)
        session.on("generation_created", self._reply)
        session.on("error", lambda error: self.errors.append(repr(error.error)))

    def _note(self, event: dict[str, Any]) -> None:
        self.seen[event["type"]] += 1

    def _reply(self, reply: Any) -> None:
        self.replies.append(reply)
        task = asyncio.create_task(self._hear(reply))
        self._tasks.add(task)

    async def _hear(self, reply: Any) -> None:
        async for message in reply.message_stream:
            self.message_id = message.message_id
            async for frame in message.audio_stream:
                self.sound_s += frame.duration

    async def wait(self, kind: str, number: int = 1) -> None:
        """The server's event of this type that is the `number`th."""
        await until(lambda: self.seen[kind] >= number, f"{kind} ({number}); errors: {self.errors}")

    async def hear(self, kind: str, number: int) -> None:
        """As `wait`, with the microphone open."""
        await listen(
            self.speak, lambda: self.seen[kind] >= number, f"{kind} ({number}); errors: {self.errors}"
        )

    async def reply(self, **asked: Any) -> Any:
        """Have a reply generated, to its end."""
        ended = self.seen["response.done"]
        reply = await self.session.generate_reply(**asked)
        await self.wait("response.done", ended + 1)
        return reply

    async def speak(self, pcm: bytes) -> None:
        async for piece in microphone(pcm):
            self.session.push_audio(rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2))

    async def write(self, text: str) -> None:
        """A typed turn, by the way in which an agent keeps its context."""
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", content=text)
        await self.session.update_chat_ctx(context)


async def talk(arguments: Arguments) -> None:
    async with aiohttp.ClientSession() as http:
        model = realtime.RealtimeModel(
            model=arguments.model, base_url=f"{arguments.url}/v1", api_key="none", http_session=http
        )
        session = model.session()
        person = Client(session)
        await session.update_instructions("Be brief.")
        await session.update_tools([weather])
        await typed_turn(person)
        await barge_in(person, arguments.speech)
        await tool_turn(person)
        await interrupted_turn(person)
        await session.aclose()
        await model.aclose()
        check(not person.errors, f"errors: {person.errors}")


async def typed_turn(person: Client) -> None:
    await person.write("Tell me about the sea.")
    await person.reply()
    check(person.sound_s, "no sound came")


async def barge_in(person: Client, speech: bytes) -> None:
    """A spoken turn; its reply is spoken over while it is made, the next one while it only plays."""
    ended, sounds = person.seen["response.done"], person.seen["response.output_audio.delta"]
    await person.speak(speech)
    await person.hear("response.output_audio.delta", sounds + 1)
    await spoken_over(person, speech, 1)
    await person.hear("response.done", ended + 2)
    await spoken_over(person, speech, 2)
    await person.hear("response.done", ended + 3)
    check(len(person.replies) >= 4, f"of 4 replies {len(person.replies)} were announced")


async def spoken_over(person: Client, speech: bytes, number: int) -> None:
    """Speak, and cut the reply as an agent cuts it."""
    spoken, replies = person.seen["input_audio_buffer.speech_started"], person.seen["response.created"]
    message = person.message_id
    await person.speak(speech)
    await person.hear("input_audio_buffer.speech_started", spoken + 1)
    person.session.interrupt()
    person.session.truncate(message_id=message, modalities=["audio"], audio_end_ms=80)
    await person.hear("conversation.item.truncated", number)
    await person.hear("response.created", replies + 1)


async def tool_turn(person: Client) -> None:
    """The model is made to call; the tool's answer is written into the context, and replied to."""
    await person.write("What is the weather?")
    reply = await person.reply(tool_choice={"type": "function", "function": {"name": "weather"}})
    calls = [call async for call in reply.function_stream]
    check([call.name for call in calls] == ["weather"], f"the tools called: {calls}")
    context = person.session.chat_ctx.copy()
    context.items.append(
        llm.FunctionCallOutput(call_id=calls[0].call_id, name="weather", output="clear", is_error=False)
    )
    await person.session.update_chat_ctx(context)
    await person.reply(instructions="Say it in one sentence.", tool_choice="none")


async def interrupted_turn(person: Client) -> None:
    """Interrupted by hand; the turn after it is whole."""
    ended = person.seen["response.done"]
    await person.write("Tell me a long story.")
    await person.session.generate_reply()
    person.session.interrupt()
    await person.wait("response.done", ended + 1)
    heard_s = person.sound_s
    await person.write("Never mind. Good night.")
    await person.reply()
    check(person.sound_s > heard_s, "the last turn was not heard")


if __name__ == "__main__":
    run(talk)
