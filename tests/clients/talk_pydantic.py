"""pydantic-ai: an Agent's realtime session, which plays and interrupts by itself.

Its sessions refuse to force a call, so the tool is offered in every turn, and not called for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.realtime.openai import OpenAIRealtimeModel
from talk import Arguments, check, listen, microphone, run, until

SPOKEN, TURN = "RealtimeInputSpeechStartEvent", "RealtimeTurnCompleteEvent"

agent = Agent(instructions="Be brief.")


@agent.tool_plain
def weather() -> str:
    """The weather here."""
    return "clear"


class Client:
    """A person at one session: a loudspeaker that plays in real time, and notes of all that comes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self.played_bytes = 0
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._play())]

    async def _listen(self) -> None:
        async for event in self.session:
            self.seen[type(event).__name__] += 1
            if "Error" in type(event).__name__:
                self.errors.append(repr(event))

    async def _play(self) -> None:
        async for sound in self.session.stream_audio():
            self.played_bytes += len(sound)
            await asyncio.sleep(len(sound) / 48_000)

    async def wait(self, kind: str, number: int = 1) -> None:
        """The event of this class that is the `number`th."""
        await until(lambda: self.seen[kind] >= number or self._tasks[0].done(), f"{kind} ({number})")
        check(self.seen[kind] >= number, f"the session ended before {kind} ({number}): {self.errors}")

    async def speak(self, pcm: bytes) -> None:
        await self.session.send_audio(microphone(pcm))

    async def hear(self, kind: str, number: int) -> None:
        """As `wait`, with the microphone open."""
        await listen(self.speak, lambda: self.seen[kind] >= number, f"{kind} ({number}); {self.errors}")

    async def ask(self, text: str) -> None:
        turns = self.seen[TURN]
        await self.session.send(text)
        await self.wait(TURN, turns + 1)


async def talk(arguments: Arguments) -> None:
    provider = OpenAIProvider(base_url=f"{arguments.url}/v1", api_key="none")
    model = OpenAIRealtimeModel(arguments.model, provider=provider)
    async with agent.realtime(model).session(handle_barge_in=True) as session:
        person = Client(session)
        await person.ask("Tell me about the sea.")
        await until(lambda: person.played_bytes, "a sound")
        await barge_in(person, arguments.speech)
        await interrupted_turn(person)
        check(not person.errors, f"errors: {person.errors}")
        check(len(session.all_messages()) >= 8, f"too short a history: {session.all_messages()}")


async def barge_in(person: Client, speech: bytes) -> None:
    """A spoken turn; its reply is spoken over while it is made, the next one while it only plays. The session
    truncates by itself."""
    await spoken_to(person, speech)
    await spoken_to(person, speech)
    await person.hear(TURN, person.seen[TURN] + 1)
    await spoken_to(person, speech)
    await person.hear(TURN, person.seen[TURN] + 1)


async def spoken_to(person: Client, speech: bytes) -> None:
    """Speak until the reply sounds. What is left of the one before is not played: the session dropped it."""
    spoken = person.seen[SPOKEN]
    await person.speak(speech)
    await person.hear(SPOKEN, spoken + 1)
    played = person.played_bytes
    await listen(person.speak, lambda: person.played_bytes > played, "the reply's first sound")


async def interrupted_turn(person: Client) -> None:
    """Interrupted by hand; the turn after it is whole."""
    played = person.played_bytes
    await person.session.send("Tell me a long story.")
    await until(lambda: person.played_bytes > played, "the story's first sound")
    await person.session.interrupt(played_ms=40)
    await person.ask("Never mind. Good night.")


if __name__ == "__main__":
    run(talk)
