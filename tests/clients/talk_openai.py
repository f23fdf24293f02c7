"""openai-python: the SDK's own connection, with nothing but its base URL set."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from typing import Any

from openai import AsyncOpenAI
from talk import Arguments, check, listen, microphone, run, until

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Client:
    """A person at one connection, who notes all that comes."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self.seen: Counter[str] = Counter()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self.connection:
            self.events.append(event)
            self.seen[event.type] += 1

    async def wait(self, kind: str, number: int = 1) -> Any:
        """The event of this type that is the `number`th."""
        await until(lambda: self.seen[kind] >= number or self._listening.done(), f"{kind} ({number})")
        check(self.seen[kind] >= number, f"the connection ended before {kind} ({number})")
        return [event for event in self.events if event.type == kind][number - 1]

    async def hear(self, kind: str, number: int) -> None:
        """As `wait`, with the microphone open."""
        await listen(self.speak, lambda: self.seen[kind] >= number, f"{kind} ({number})")

    async def done(self) -> Any:
        """The next response to end."""
        return (await self.wait("response.done", self.seen["response.done"] + 1)).response

    async def say(self, text: str) -> None:
        content: Any = [{"type": "input_text", "text": text}]
        await self.connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": content}
        )

    async def speak(self, pcm: bytes) -> None:
        async for piece in microphone(pcm):
            await self.connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())


async def talk(arguments: Arguments) -> None:
    client = AsyncOpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    async with client, client.realtime.connect(model=arguments.model) as connection:
        person = Client(connection)
        await typed_turn(person)
        await barge_in(person, arguments.speech)
        await tool_turn(person)
        await cancelled_turn(person)
        check(not person.seen["error"], f"errors: {[e.error for e in person.events if e.type == 'error']}")


async def typed_turn(person: Client) -> None:
    await person.say("Tell me about the sea.")
    await person.connection.response.create(
        response={"output_modalities": ["text"], "max_output_tokens": 12, "metadata": {"turn": "typed"}}
    )
    response = await person.done()
    check(response.status in ("completed", "incomplete"), f"the typed turn was {response.status}")
    check(response.metadata == {"turn": "typed"}, f"metadata came back as {response.metadata}")
    check(person.seen["response.output_text.delta"], "no text came")


async def barge_in(person: Client, speech: bytes) -> None:
    """A spoken turn; its reply is spoken over while it is made, the next one while it only plays."""
    sounds, ended = person.seen["response.output_audio.delta"], person.seen["response.done"]
    await person.speak(speech)
    await person.hear("response.output_audio.delta", sounds + 1)
    await spoken_over(person, speech, 1)
    response = (await person.wait("response.done", ended + 1)).response
    check(response.status == "cancelled", f"the reply spoken over was {response.status}")
    check(response.status_details.reason == "turn_detected", f"cancelled by {response.status_details}")
    await person.hear("response.done", ended + 2)
    await spoken_over(person, speech, 2)
    await person.hear("response.done", ended + 3)


async def spoken_over(person: Client, speech: bytes, number: int) -> None:
    """Speak; say how much of the reply was heard. The server replies to what was said."""
    replies, spoken = person.seen["response.created"], person.seen["input_audio_buffer.speech_started"]
    reply = next(e for e in reversed(person.events) if e.type == "response.output_audio.delta")
    await person.speak(speech)
    await person.hear("input_audio_buffer.speech_started", spoken + 1)
    await person.connection.conversation.item.truncate(
        item_id=reply.item_id, content_index=0, audio_end_ms=80
    )
    cut = await person.wait("conversation.item.truncated", number)
    check(cut.item_id == reply.item_id, f"{cut.item_id} was cut, not {reply.item_id}")
    await person.connection.conversation.item.retrieve(item_id=reply.item_id)
    await person.wait("conversation.item.retrieved", number)
    await person.hear("response.created", replies + 1)


async def tool_turn(person: Client) -> None:
    """A call is asked for by name; what the tool found is taken, and what follows is a reply."""
    tools: Any = [WEATHER]
    await person.connection.session.update(session={"type": "realtime", "tools": tools})
    await person.say("What is the weather in Lisbon?")
    choice: Any = {"type": "function", "name": "weather"}
    await person.connection.response.create(response={"tool_choice": choice, "max_output_tokens": 64})
    response = await person.done()
    calls = [item for item in response.output if item.type == "function_call"]
    check([call.name for call in calls] == ["weather"], f"no call of the tool: {response.output}")
    json.loads(calls[0].arguments)
    await person.connection.conversation.item.create(
        item={"type": "function_call_output", "call_id": calls[0].call_id, "output": '{"sky": "clear"}'}
    )
    await person.connection.response.create(response={"tool_choice": "none", "max_output_tokens": 12})
    response = await person.done()
    check(response.output[0].type == "message", f"no reply to what the tool found: {response.output}")


async def cancelled_turn(person: Client) -> None:
    """Cancelled by hand; the turn after it is whole."""
    await person.say("Tell me a long story.")
    await person.connection.response.create()
    await person.wait("response.created", person.seen["response.created"] + 1)
    await person.connection.response.cancel()
    response = await person.done()
    check(response.status == "cancelled", f"the cancelled response was {response.status}")
    await person.say("Never mind. Good night.")
    await person.connection.response.create(response={"max_output_tokens": 12})
    response = await person.done()
    check(response.status in ("completed", "incomplete"), f"the last turn was {response.status}")


if __name__ == "__main__":
    run(talk)
