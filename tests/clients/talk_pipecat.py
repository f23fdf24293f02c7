"""pipecat: its realtime service in a pipeline, between a microphone and a loudspeaker of ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
    TurnDetection,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner
from talk import Arguments, check, listen, microphone, run, until

WEATHER = FunctionSchema("weather", "The weather here.", {}, [])


class Ears(FrameProcessor):
    """Notes what comes past, both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.seen[type(frame).__name__] += 1
        if isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


class Person:
    """Speaks and writes into the pipeline; counts what the service sends and gets."""

    def __init__(self, worker: PipelineWorker, ears: Ears, service: Any) -> None:
        self.worker, self.ears, self.service = worker, ears, service
        self.server: Counter[str] = Counter()
        self._count(service)

    def _count(self, service: Any) -> None:
        """pipecat shows a reply's end by frames that an interruption makes too, so the events are counted."""
        for kind in ("response_done", "response_created", "audio_delta"):
            name = f"_handle_evt_{kind}"
            setattr(service, name, self._counted(kind, getattr(service, name)))

    def _counted(self, kind: str, handle: Any) -> Any:
        async def counted(event: Any) -> None:
            await handle(event)
            self.server[kind] += 1

        return counted

    async def wait(self, kind: str, number: int) -> None:
        await until(lambda: self.server[kind] >= number, f"{kind} ({number}); errors: {self.ears.errors}")

    async def speak(self, pcm: bytes) -> None:
        async for piece in microphone(pcm):
            await self.worker.queue_frame(InputAudioRawFrame(piece, 24_000, 1))

    async def hear(self, kind: str, number: int) -> None:
        """As `wait`, with the microphone open."""
        what = f"{kind} ({number}); errors: {self.ears.errors}"
        await listen(self.speak, lambda: self.server[kind] >= number, what)

    async def ask(self, text: str) -> None:
        """A written turn, to the end of its reply. What the service is given becomes an item."""
        ended = self.server["response_done"]
        message: Any = {"role": "user", "content": text}
        await self.service.queue_frame(LLMMessagesAppendFrame([message], run_llm=True))
        await self.wait("response_done", ended + 1)


def service_of(arguments: Arguments) -> OpenAIRealtimeLLMService:
    hearing = AudioInput(transcription=InputAudioTranscription(), turn_detection=TurnDetection())
    properties = SessionProperties(
        instructions="Be brief.",
        audio=AudioConfiguration(input=hearing),
        tools=ToolsSchema([WEATHER]),
    )
    return OpenAIRealtimeLLMService(
        api_key="none",
        base_url=f"{arguments.ws_url}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(model=arguments.model, session_properties=properties),
    )


async def talk(arguments: Arguments) -> None:
    service, ears = service_of(arguments), Ears()
    first: Any = {"role": "user", "content": "Tell me about the sea."}
    user, assistant = LLMContextAggregatorPair(LLMContext([first]))
    worker = PipelineWorker(Pipeline([user, service, ears, assistant]))
    person = Person(worker, ears, service)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        await conversation(person, arguments.speech)
        check(not ears.errors, f"errors: {ears.errors}")
        await worker.queue_frame(EndFrame())
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()


async def conversation(person: Person, speech: bytes) -> None:
    await person.worker.queue_frame(LLMRunFrame())
    await person.wait("response_done", 1)
    check(person.ears.seen[TTSAudioRawFrame.__name__], "no sound came")
    await barge_in(person, speech)
    await person.ask("And the boat?")
    await person.ask("Good night.")


async def barge_in(person: Person, speech: bytes) -> None:
    """A spoken turn; its reply is spoken over while it is made, the next one while it only plays. The service
    truncates by itself."""
    ended, sounds = person.server["response_done"], person.server["audio_delta"]
    await person.speak(speech)
    await person.hear("audio_delta", sounds + 1)
    for number in (1, 2):
        replies = person.server["response_created"]
        await person.speak(speech)
        await person.hear("response_created", replies + 1)
        await person.hear("response_done", ended + 1 + number)
    check(person.ears.seen[InterruptionFrame.__name__] >= 2, "the pipeline was not interrupted")


if __name__ == "__main__":
    run(talk)
