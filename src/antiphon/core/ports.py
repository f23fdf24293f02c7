"""Ports: what the executing half offers to a driver, and nothing more.

Each port has a fake in tests/fakes, which checks what it is ordered to do; except Processes and
GuideCompiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from antiphon.core.facts import Fact, PromptFailed, PromptReady
from antiphon.core.plans import (
    CopyBlocks,
    DropMedia,
    DropPayload,
    Handoff,
    MoveBlocks,
    RenderPrompt,
    SendMedia,
    Step,
)
from antiphon.core.sampling import Guide


class Executor(Protocol):
    """Carries out the steps of one stage, in the order given.

    `submit` may return before the step has run; `poll` then returns its fact later. An executor never
    raises for a step: it reports StepFailed for the requests that the step named in rows and joins. The
    delta of a failed step (leaves, joins, blocks, inputs) holds all the same: it is not ordered again.
    Every step is reported once, in the order given.
    """

    depth: int
    """Steps that may be in flight when the next is planned."""

    def submit(self, step: Step) -> None: ...

    def poll(self) -> list[Fact]: ...


class Wakeup(Protocol):
    """Wakes a driver that waits while steps are in flight."""

    def fileno(self) -> int:
        """A file descriptor that is readable once a step has ended since the last `clear`."""
        ...

    def clear(self) -> None:
        """Forget what has ended so far; executors are polled after it, so that no end is missed.

        Raises what an order beside the steps (a hand-off, a drop) raised.
        """
        ...


class PayloadMover(Protocol):
    """Moves payloads between stages as ordered."""

    def handoff(self, order: Handoff) -> None: ...

    def drop_payload(self, order: DropPayload) -> None: ...

    def drop_media(self, order: DropMedia) -> None: ...

    def send_media(self, order: SendMedia) -> None:
        """Ordered between two processes only."""
        ...


class Processes(Protocol):
    """The processes that units of an engine live in, beside the one that decides."""

    @property
    def num_awaited(self) -> int:
        """Payloads and copies on their way between processes, whose arrival rings the engine's wakeup."""
        ...

    @property
    def lost(self) -> dict[str, str]:
        """Units that are not there, and why, in words."""
        ...

    def stats(self) -> dict[str, float]:
        """Metrics by name."""
        ...

    def close(self) -> None:
        """End them all; twice does nothing."""
        ...


class KvMover(Protocol):
    """Copies KV blocks between the tiers of a unit, and from unit to unit, beside the steps.

    `copy` and `move` return at once and never raise for what goes wrong while copying: `poll` returns one
    CopyDone or CopyFailed per order, those of a unit in the order given.
    """

    @property
    def num_in_flight(self) -> int:
        """Copies that are not reported yet."""
        ...

    def copy(self, order: CopyBlocks) -> None: ...

    def move(self, order: MoveBlocks) -> None: ...

    def poll(self) -> list[Fact]: ...


class Prompter(Protocol):
    """Turns a conversation record into prompts. Pure; errors come back as PromptFailed."""

    @property
    def takes_tools(self) -> bool:
        """Whether its prompts show the tools of a request."""
        ...

    @property
    def json_call_ids(self) -> tuple[int, ...]:
        """Tokens with which a reply begins that is a call, where the chat template asks for calls as bare
        JSON; none where it asks for calls in tags."""
        ...

    @property
    def blank_ids(self) -> tuple[int, ...]:
        """Tokens of white space, which may stand before such a call; none where there are no such calls."""
        ...

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed: ...


class GuideCompiler(Protocol):
    """Compiles guides beside the steps, wherever texts are written that follow them."""

    def prepare(self, guide: Guide) -> Callable[[], bool]:
        """Begin, if need be; returns at once what says whether it is over. What is wrong with a guide ends
        the text that begins to follow it."""
        ...
