"""Ports: what the executing half offers to a driver, and nothing more.

Each port has a fake in tests/fakes, which checks what it is ordered to do; except KvMover, since nothing
in the deciding half orders copies.
"""

from __future__ import annotations

from typing import Protocol

from antiphon.core.facts import Fact, PromptFailed, PromptReady
from antiphon.core.plans import CopyBlocks, DropMedia, DropPayload, Handoff, RenderPrompt, Step


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


class KvMover(Protocol):
    """Copies KV blocks between the tiers of a stage, in the order given, beside the steps.

    `copy` returns at once and never raises for what goes wrong while copying: `poll` returns one CopyDone or
    CopyFailed per order, in the order given.
    """

    @property
    def num_in_flight(self) -> int:
        """Copies that are not reported yet."""
        ...

    def copy(self, order: CopyBlocks) -> None: ...

    def poll(self) -> list[Fact]: ...


class Prompter(Protocol):
    """Turns a conversation record into prompts. Pure; errors come back as PromptFailed."""

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed: ...
