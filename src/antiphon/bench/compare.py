"""Targets side by side: the same scripts to each, interleaved, seed by seed.

    seed 0: A B    seed 1: B A    seed 2: A B    ...

The order turns round with every seed, so that a machine that warms up or fills up in the meantime favours
nobody. Each target gets a run that is not counted before its first one that is. Every run leaves its log in
the output directory; what is complete there is not run again on `resume`. A run that breaks off is dropped
from the ratios, with what went wrong, and so is that seed of whoever it is compared with; no more is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from antiphon.bench.comparison import Comparison, Dropped, Side, against
from antiphon.bench.servers import Ready, Target
from antiphon.bench.statistics import FEWEST_SEEDS
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.metrics.log import Event, RunEnded

PLAN_FILE = "plan.json"
COMPLETE = ("finished", "duration")
TAIL_BYTES = 65536

Say = Callable[[str], None]
Figures = dict[str, float]


class Runner(Protocol):
    """Plays one seed's scripts to one server (`target.url` is set) and writes its log; raises AntiphonError
    or OSError if it cannot. Returns the figures, read from that log alone."""

    async def __call__(self, target: Target, seed: int, log: Path) -> Figures: ...


class Reachable(Protocol):
    """Has targets answer, one at a time."""

    def ready(self, target: Target) -> AbstractAsyncContextManager[Ready]:
        """The target, answering. Raises AntiphonError or OSError if it can't."""
        ...

    def why_ended(self, target: Target) -> str | None:
        """Its last words, if it is gone; None otherwise."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """What is compared. `options`: all else that makes two runs alike (duration, pace, serve options);
    `matters`: the smallest difference that does, a share of the figure."""

    targets: tuple[Target, ...]
    seeds: tuple[int, ...]
    workload: str
    options: dict[str, Any] = {}
    matters: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.matters < 1:
            raise ConfigError(f"matters is {self.matters}; it is a share, from 0 to below 1 (0.02: 2 %)")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds {list(self.seeds)}: one or more are needed, each once")

    @property
    def warnings(self) -> tuple[str, ...]:
        if len(self.seeds) >= FEWEST_SEEDS:
            return ()
        return (f"{len(self.seeds)} seeds are too few to judge by: use {FEWEST_SEEDS} or more",)

    @property
    def warm_up_seed(self) -> int:
        """A seed of its own: what the warm-up said must not be in any cache that is measured."""
        return max(self.seeds) + 1

    def order(self, index: int) -> tuple[Target, ...]:
        """Whose turn it is at the seed with this index."""
        return in_turn(self.targets, index)


def in_turn(targets: tuple[Target, ...], index: int) -> tuple[Target, ...]:
    """The order of the targets at the seed with this index: it turns round with every seed."""
    return targets if index % 2 == 0 else targets[::-1]


async def compare(
    plan: Plan,
    servers: Reachable,
    runner: Runner,
    directory: Path,
    *,
    figures: Callable[[Path], Figures],
    is_resumed: bool = False,
    say: Say = lambda _: None,
) -> Comparison:
    """Run what is missing and compare. `figures` reads those of a log that is complete already.

    Raises ConfigError if `directory` holds another comparison, or one that is not to be resumed;
    AntiphonError if no seed could be measured on both of any two targets.
    """
    prepare(plan, directory, is_resumed)
    work = Work(servers, runner, figures, plan, directory, say)
    for index, seed in enumerate(plan.seeds):
        for target in plan.order(index):
            await work.measure(target, seed)
    sides = tuple(
        Side(one, work.runs.get(one.name, {}), work.overruled.get(one.name, {})) for one in plan.targets
    )
    contrasts = tuple(against(sides[0], other, plan.matters) for other in sides[1:])
    if not any(entry.pairs for entry in contrasts):
        raise AntiphonError(f"nothing to compare: {'; '.join(entry.message for entry in work.dropped)}")
    return Comparison(sides, contrasts, tuple(work.dropped), plan.warnings)


@dataclass(slots=True)
class Work:
    """The runs of a comparison, as they are done: figures by target and seed, and what was dropped."""

    servers: Reachable
    runner: Runner
    figures: Callable[[Path], Figures]
    plan: Plan
    directory: Path
    say: Say
    runs: dict[str, dict[int, Figures]] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    overruled: dict[str, dict[int, dict[str, int]]] = field(
        default_factory=dict[str, dict[int, dict[str, int]]]
    )

    async def measure(self, target: Target, seed: int) -> None:
        """Play it, unless its log is complete already. Raises ConfigError."""
        log = log_of(self.directory, target, seed)
        if why_incomplete(log) is None:
            self._count(target, seed, log, self.figures(log))
            self.say(f"{target.name}, seed {seed}: measured before")
            return
        message = await self._try(target, seed, log)
        if message is not None:
            self.dropped.append(Dropped(target.name, seed, message))
            self.say(f"{target.name}, seed {seed}: dropped, and its pair with it: {message}")

    async def _try(self, target: Target, seed: int, log: Path) -> str | None:
        """Measure; what went wrong, or None. ConfigErrors pass: the next run would meet them again."""
        try:
            async with self.servers.ready(target) as ready:
                reached = msgspec.structs.replace(target, url=ready.url)
                if ready.is_fresh:
                    await self._warm_up(reached)
                self.say(f"{target.name}, seed {seed}: running")
                message = await self._run(reached, seed, log)
                died = None if message is None else self.servers.why_ended(target)
        except ConfigError:
            raise
        except (AntiphonError, OSError) as error:
            return _words(error)
        return message if died is None else f"{message}; its server ended {died}"

    async def _run(self, target: Target, seed: int, log: Path) -> str | None:
        try:
            found = await self.runner(target, seed, log)
        except ConfigError:
            raise
        except (AntiphonError, OSError) as error:
            return _words(error)
        message = why_incomplete(log)
        if message is None:
            self._count(target, seed, log, found)
        return message

    def _count(self, target: Target, seed: int, log: Path, found: Figures) -> None:
        self.runs.setdefault(target.name, {})[seed] = found
        ended = _last(log)
        if isinstance(ended, RunEnded) and ended.overruled:
            self.overruled.setdefault(target.name, {})[seed] = ended.overruled

    async def _warm_up(self, target: Target) -> None:
        self.say(f"{target.name}: warming up, not counted")
        log = self.directory / "warm-up" / f"{target.name}.jsonl"
        log.parent.mkdir(exist_ok=True)
        await self.runner(target, self.plan.warm_up_seed, log)


def log_of(directory: Path, target: Target, seed: int) -> Path:
    """Where the log of a run lies."""
    return directory / "runs" / f"{target.name}-seed{seed}.jsonl"


def why_incomplete(log: Path) -> str | None:
    """What a log lacks to be counted; None if its run went to its end."""
    if not log.is_file():
        return "it left no log"
    last = _last(log)
    if not isinstance(last, RunEnded):
        return f"its log breaks off ({log})"
    if last.reason not in COMPLETE:
        return f"the run ended early: {last.reason}{f' ({last.message})' if last.message else ''}"
    return None


def _last(log: Path) -> Event | None:
    """The last line, if it is whole."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=Event) if lines else None
    except msgspec.MsgspecError:
        return None


def prepare(plan: Plan, directory: Path, is_resumed: bool) -> None:
    """The directory, with its plan. Seeds may differ from those of the comparison that is resumed. Raises
    ConfigError if it holds another one, or one that is not to be resumed."""
    path, runs = directory / PLAN_FILE, directory / "runs"
    if any(runs.glob("*.jsonl")):
        if not is_resumed:
            raise ConfigError(
                f"{directory} holds a comparison: go on with it by --resume, or choose another --out"
            )
        _check_same(plan, path)
    runs.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")


def _check_same(plan: Plan, path: Path) -> None:
    try:
        before = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(f"{path} is not the plan of a comparison ({error})") from None
    for name in ("targets", "workload", "options"):
        was, now = (msgspec.to_builtins(getattr(entry, name)) for entry in (before, plan))
        if was != now:
            if name == "options":
                was, now = _unlike(was, now), _unlike(now, was)
            raise ConfigError(f"cannot resume: {name} was {was} in {path}, now it is {now}")


def _unlike(options: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The options whose values are not the others'."""
    return {name: value for name, value in options.items() if name not in others or others[name] != value}


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
