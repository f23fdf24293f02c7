"""The schedulers of a graph's stages, by the part each plays in a turn."""

from __future__ import annotations

from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import StagePrompt
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.encode import EncodeScheduler

Scheduler = ArScheduler | CodecScheduler | EncodeScheduler


class Stages:
    """encode: the encoder, idle where a model reads text only; ar: decoders by name, the first is the entry
    (it writes the reply's text), the second, where there is one, speaks it; codec: vocoders by name."""

    def __init__(
        self, encode: EncodeScheduler, ar: dict[str, ArScheduler], codec: dict[str, CodecScheduler]
    ) -> None:
        self.encode = encode
        self.ar = ar
        self.codec = codec

    @property
    def entry(self) -> ArScheduler:
        return next(iter(self.ar.values()))

    @property
    def speaker(self) -> ArScheduler | None:
        return next(iter([*self.ar.values()][1:]), None)

    @property
    def vocoder_name(self) -> str:
        return next(iter(self.codec))

    @property
    def all(self) -> tuple[Scheduler, ...]:
        """In pipeline order."""
        return (self.encode, *self.ar.values(), *self.codec.values())

    def excess(self, prompts: dict[str, StagePrompt], share: float) -> str | None:
        """In words, what of the prompts does not fit into this share of the context; None if all does."""
        try:
            for stage, prompt in prompts.items():
                self.ar[stage].check(prompt, share)
        except LimitExceeded as error:
            return str(error)
        return None

    def abort(self, request: int) -> list[str]:
        """Take a request out of every stage; returns the AR stages in which it still was."""
        aborted = {name: scheduler.abort(request) for name, scheduler in self.ar.items()}
        for scheduler in self.codec.values():
            scheduler.abort(request)
        return [name for name, active in aborted.items() if active is not None]

    def forget(self, session: str) -> None:
        """Drop a session's idle KV in every stage."""
        for scheduler in self.ar.values():
            scheduler.forget(session)

    def check_integrity(self) -> None:
        for scheduler in self.all:
            scheduler.check_integrity()
