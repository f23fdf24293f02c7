"""openai-agents (Python): a RealtimeSession with its own turn detector, tools and playback clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.realtime.model_inputs import RealtimeModelSendRawMessage
from agents.tool import function_tool
from talk import Arguments, check, listen, microphone, run, until

CALLED: list[str] = []


@function_tool
def weather() -> str:
    """The weather here."""
    CALLED.append("weather")
    return "clear"


class Client:
    """A person at one session, who notes all that comes."""

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.raw: list[Any] = []
        self.server: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self.session:
            self.seen[event.type] += 1
            if event.type == "error":
                self.errors.append(repr(event.error))
            if event.type == "raw_model_event":
                self._note(event.data)

    def _note(self, data: Any) -> None:
        self.seen[f"model.{data.type}"] += 1
        if data.type in ("error", "exception"):
            self.errors.append(repr(data))
        if data.type == "raw_server_event":
            self.raw.append(data.data)
            self.server[data.data["type"]] += 1

    async def wait(self, kind: str, number: int = 1) -> None:
        """The server's event of this type that is the `number`th."""
        await until(lambda: self.server[kind] >= number or self._listening.done(), f"{kind} ({number})")
        check(self.server[kind] >= number, f"the session ended before {kind} ({number}): {self.errors}")

    async def hear(self, kind: str, number: int) -> None:
        """As `wait`, with the microphone open."""
        await listen(self.speak, lambda: self.server[kind] >= number, f"{kind} ({number})")

    async def done(self) -> dict[str, Any]:
        """The next response to end."""
        number = self.server["response.done"] + 1
        await self.wait("response.done", number)
        return [event for event in self.raw if event["type"] == "response.done"][number - 1]["response"]

    async def speak(self, pcm: bytes) -> None:
        async for piece in microphone(pcm):
            await self.session.send_audio(piece)


async def talk(arguments: Arguments) -> None:
    agent = RealtimeAgent(name="Assistant", instructions="Be brief.", tools=[weather])
    runner = RealtimeRunner(agent, config={"tracing_disabled": True})
    url = f"{arguments.ws_url}/v1/realtime?model={arguments.model}"
    async with await runner.run(model_config={"url": url, "api_key": "none"}) as session:
        person = Client(session)
        await session.send_message("Tell me about the sea.")
        response = await person.done()
        check(response["status"] == "completed", f"the typed turn was {response['status']}")
        check(person.seen["audio"], "no sound came")
        await barge_in(person, arguments.speech)
        await tool_turn(person)
        await interrupted_turn(person)
        check(not person.errors, f"errors: {person.errors}")


async def barge_in(person: Client, speech: bytes) -> None:
    """A spoken turn; its reply is spoken over while it is made, the next one while it only plays. The agent
    truncates and retrieves by itself."""
    ended, sounds = person.server["response.done"], person.server["response.output_audio.delta"]
    await person.speak(speech)
    await person.hear("response.output_audio.delta", sounds + 1)
    await spoken_over(person, speech)
    await person.hear("response.done", ended + 2)
    await spoken_over(person, speech)
    await person.hear("response.done", ended + 3)
    statuses = [event["response"]["status"] for event in person.raw if event["type"] == "response.done"]
    check(statuses[ended] == "cancelled", f"the reply spoken over was {statuses[ended]}")
    check(person.seen["audio_interrupted"] >= 2, "the agent did not notice that it was interrupted")


async def spoken_over(person: Client, speech: bytes) -> None:
    replies, cuts = person.server["response.created"], person.server["conversation.item.truncated"]
    await person.speak(speech)
    await person.hear("conversation.item.truncated", cuts + 1)
    await person.hear("response.created", replies + 1)


async def tool_turn(person: Client) -> None:
    """The agent is made to call its tool, runs it, and the model replies to what it found."""
    model: Any = person.session.model
    choice = {"type": "function", "name": "weather"}
    text = [{"type": "input_text", "text": "What is the weather?"}]
    item = {"type": "message", "role": "user", "content": text}
    before = person.server["response.done"]
    for kind, fields in (
        ("conversation.item.create", {"item": item}),
        ("response.create", {"response": {"tool_choice": choice}}),
    ):
        await model.send_event(RealtimeModelSendRawMessage(message={"type": kind, "other_data": fields}))
    await until(lambda: person.seen["tool_end"], "the tool to be run")
    check(CALLED == ["weather"], f"the tool was run {len(CALLED)} times")
    await person.wait("response.done", before + 2)


async def interrupted_turn(person: Client) -> None:
    """Interrupted by hand; the turn after it is whole."""
    started = person.server["response.created"]
    await person.session.send_message("Tell me a long story.")
    await person.wait("response.created", started + 1)
    await person.session.interrupt()
    await person.wait("response.done", started + 1)
    await person.session.send_message("Never mind. Good night.")
    response = await person.done()
    check(response["status"] == "completed", f"the last turn was {response['status']}")


if __name__ == "__main__":
    run(talk)
