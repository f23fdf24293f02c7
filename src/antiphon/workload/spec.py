"""What a workload is, as people write it in YAML: when people arrive, and by what laws they behave."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from antiphon.workload.agents import Agents, Jobs
from antiphon.workload.arrivals import Arrivals, Replay
from antiphon.workload.dialogue import Dialogue
from antiphon.workload.laws import Count, Positive, Spec

TracePart = Literal["turns", "think", "lengths"]


Until = Literal["heard", "received"]


class Open(Spec):
    """Sessions come whether or not the server keeps up, until `sessions` have come or time is over.

    max_concurrency  sessions at once, jobs included; the next arrivals wait for a place, in order
                     (LiveServe's c-bound). None: no bound
    until            what frees such a place, as in a closed load
    """

    arrivals: Arrivals
    max_concurrency: Count | None = None
    until: Until = "heard"
    sessions: Count | None = None
    duration_s: Positive | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.sessions is None and self.duration_s is None and not isinstance(self.arrivals, Replay):
            raise ValueError("has no end; say `sessions`, `duration_s` or both")
        if self.until != "heard" and self.max_concurrency is None:
            raise ValueError("`until` says what frees a place; say `max_concurrency`, how many there are")
        return self


class Closed(Spec):
    """`concurrency` sessions at a time: when one ends the next begins. Without `sessions` the supply has no
    end, and whoever plays it stops after `duration_s`.

    until  what frees a place: the session's end, which is when its last reply has been heard, or that this
           reply has been received. Load generators of LLM servers count requests, so they do the latter;
           the person listens on beside the next
    """

    concurrency: Count
    until: Until = "heard"
    sessions: Count | None = None
    duration_s: Positive | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.sessions is None and self.duration_s is None:
            raise ValueError("has no end; say `sessions`, `duration_s` or both")
        if self.sessions is not None and self.sessions < self.concurrency:
            raise ValueError(
                f"{self.sessions} sessions can't keep {self.concurrency} going at once; "
                f"say {self.concurrency} `sessions` or more (--sessions {self.concurrency})"
            )
        return self


class Load(Spec):
    """Either open or closed."""

    open: Open | None = None
    closed: Closed | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        if (self.open is None) == (self.closed is None):
            raise ValueError("needs exactly one of `open` and `closed`")
        return self

    @property
    def sessions(self) -> int | None:
        """How many sessions at most; None where only time ends it."""
        return self.open.sessions if self.open else self.closed.sessions if self.closed else None

    @property
    def duration_s(self) -> float | None:
        """How long sessions come; None where only their number ends it."""
        return self.open.duration_s if self.open else self.closed.duration_s if self.closed else None

    @property
    def concurrency(self) -> int | None:
        """Sessions at a time of a closed load."""
        return self.closed.concurrency if self.closed else None

    @property
    def frees_early(self) -> bool:
        """A place is free while its last reply is still played."""
        return any(load is not None and load.until == "received" for load in (self.open, self.closed))

    @property
    def max_concurrency(self) -> int | None:
        """Most sessions at a time of an open load; None: however many come."""
        return self.open.max_concurrency if self.open else None


class Trace(Spec):
    """A trace file whose sessions replace some laws of the people.

    file     relative to the workload's own file; $NAME and ~ are expanded
    format   of the file; by default found by its header
    speed    2 halves the times between turns (arrivals have a speed of their own, in `replay`)
    use      what is taken from it, where it has it: turns (how many), think (time between them), lengths (of
             turns and replies)
    max_think_s  longer absences become this
    sessions only the first so many
    """

    file: str
    format: Literal["burstgpt", "azure", "mooncake", "sharegpt", "extract"] | None = None
    speed: Positive = 1.0
    use: tuple[TracePart, ...] = ("turns", "think", "lengths")
    max_think_s: Positive | None = None
    sessions: Count | None = None


class Workload(Spec):
    """A workload. Groups of people, jobs and agents share the load's arrivals by their `share`."""

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    load: Load
    turn_detection: Literal["manual", "server_vad"] = "manual"
    people: dict[str, Dialogue] = Field(default_factory=dict[str, Dialogue])
    jobs: dict[str, Jobs] = Field(default_factory=dict[str, Jobs])
    agents: dict[str, Agents] = Field(default_factory=dict[str, Agents])
    trace: Trace | None = None

    @property
    def groups(self) -> dict[str, Dialogue | Jobs | Agents]:
        return {**self.people, **self.jobs, **self.agents}

    @property
    def sharing(self) -> dict[str, Dialogue | Jobs | Agents]:
        """Groups without arrivals of their own."""
        return {
            name: group
            for name, group in self.groups.items()
            if isinstance(group, Dialogue) or group.arrivals is None
        }

    @model_validator(mode="after")
    def check(self) -> Self:
        names = [*self.people, *self.jobs, *self.agents]
        if len(set(names)) < len(names):
            raise ValueError(f"groups must have different names, not {names}")
        if not sum(group.share for group in self.sharing.values()):
            raise ValueError("nobody comes: it needs people, jobs or agents with a share above 0")
        self._check_arrivals()
        return self

    def _check_arrivals(self) -> None:
        own = {
            name: group.arrivals
            for name, group in [*self.jobs.items(), *self.agents.items()]
            if group.arrivals
        }
        if own and self.load.open is None:
            raise ValueError(f"{', '.join(own)}: arrivals of their own need an open load")
        if own and self.load.duration_s is None:
            raise ValueError(f"{', '.join(own)}: arrivals of their own need the load's `duration_s`")
        laws = [*own.values(), *([self.load.open.arrivals] if self.load.open else [])]
        if self.trace is None and any(isinstance(law, Replay) and law.replay.times_s is None for law in laws):
            raise ValueError("arrivals are to be replayed, but there are neither `times_s` nor a `trace`")
