"""Policies that are wrong, each in its way; and where each is named in a preset."""

from __future__ import annotations

import sys
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml

from antiphon.policy.base import Hold, StepChoice
from antiphon.policy.memory import Selection

SLOW_S = 0.06


class Raising:
    def decide_step(self, view, budget, now):
        raise RuntimeError("no idea")


class NotANumber:
    """NaN where integers, times and counts should be."""

    def decide_step(self, view, budget, now):
        return StepChoice(np.array([np.nan]), "nan")

    def decide_pace(self, view, now):
        return Hold(np.zeros(len(view.row), np.bool_), "nan", wake_at=float("nan"))

    def decide_evict(self, view, now):
        return Selection(view.oldest(), float("nan"), "nan")  # type: ignore[arg-type]

    decide_write = decide_fetch = decide_evict


class Twice:
    """The first candidate twice."""

    def decide_step(self, view, budget, now):
        return StepChoice(np.zeros(2, np.int64), "twice")


class NeverWaking:
    """Holds everything, and for ever."""

    def decide_pace(self, view, now):
        return Hold(np.ones(len(view.row), np.bool_), "not now")


class Slow:
    def decide_step(self, view, budget, now):
        time.sleep(SLOW_S)
        return StepChoice(view.ready.nonzero()[0], "at last")


class Nobody:
    """KV of an owner that has none."""

    def decide_evict(self, view, now):
        return Selection(["nobody"], view.num_blocks, "of nobody")

    decide_write = decide_fetch = decide_evict


class Endless:
    """One owner, again and again."""

    def decide_evict(self, view, now):
        def forever():
            while (one := next(view.oldest(), None)) is not None:
                yield one

        return Selection(forever(), view.num_blocks, "again")


class Thrower:
    """Its owners cannot be told."""

    def decide_evict(self, view, now):
        return Selection((str(1 / 0) for _ in range(1)), view.num_blocks, "oops")


class Stubborn:
    """Gives up no row, whatever runs short."""

    def decide_step(self, view, budget, now):
        return StepChoice(view.ready.nonzero()[0], "all that is ready")


class FromNobody:
    """Names everybody's KV, and brings nothing of it."""

    def decide_fetch(self, view, now):
        resting = view.kv.resting
        here = *resting.owners, *resting.away, *view.host.owners, *view.known.running
        owners = list(dict.fromkeys(here))
        return Selection(owners, view.num_blocks, "nothing of all", reach=dict.fromkeys(owners, 0))


class Scribbler:
    """Writes into what it is shown."""

    def decide_step(self, view, budget, now):
        view.ready[:] = False
        return StepChoice(np.zeros(0, np.int64), "nothing is ready any more")

    def decide_pace(self, view, now):
        view.row[:] = 0
        return Hold(None, "all in one row")

    def decide_device(self, heads, last, now):
        heads.clear()


class Sleeper:
    """Holds everybody until some far day."""

    def decide_pace(self, view, now):
        return Hold(np.ones(len(view.row), np.bool_), "later", now + 1e6)


class Fidget:
    """Runs nobody, and wishes to be asked at a time that has gone by."""

    def decide_step(self, view, budget, now):
        return StepChoice(np.zeros(0, np.int64), "later", wake_at=now - 1.0)


class Quitter:
    """Ends the process."""

    def decide_step(self, view, budget, now):
        raise SystemExit(3)

    def decide_evict(self, view, now):
        return Selection((sys.exit(3) for _ in range(1)), view.num_blocks, "bye")


class Restless:
    """Every request gives up its row at every decision."""

    def decide_step(self, view, budget, now):
        return StepChoice(view.ready.nonzero()[0], "again", preempt=np.arange(view.num_rows))


class RestlessKeeping:
    """The same, with its KV."""

    def decide_step(self, view, budget, now):
        rows = np.arange(view.num_rows)
        return StepChoice(view.ready.nonzero()[0], "again", preempt=rows, keeps=rows >= 0)


class Meddling:
    """Changes what it is shown, and its own answers once they are given."""

    def decide_step(self, view, budget, now):
        self.order = np.append(view.ready.nonzero()[0], 99)
        return StepChoice(self.order[:-1], "mine")

    def decide_device(self, heads, last, now):
        [head.urgency for head in heads]
        self.order[:] = 99
        heads.clear()

    def decide_replica(self, view, now):
        view.loads.clear()


BROKEN = {
    "FromNobody": ("fetch",),
    "Restless": ("step",),
    "RestlessKeeping": ("step",),
    "Meddling": ("step", "device", "replica"),
    "Raising": ("step",),
    "NotANumber": ("step", "pace", "evict", "write", "fetch"),
    "Twice": ("step",),
    "NeverWaking": ("pace",),
    "Slow": ("step",),
    "Nobody": ("evict", "write", "fetch"),
    "Endless": ("evict",),
    "Thrower": ("evict",),
    "Stubborn": ("step",),
    "Sleeper": ("pace",),
    "Fidget": ("step",),
    "Quitter": ("step", "evict"),
    "Scribbler": ("step", "pace", "device"),
}
"""The decisions that each takes, and takes wrongly."""

LATE = {"Sleeper": 25.0, "Fidget": 19.0}
"""Their replies are complete, and later; seconds in which one is. `Fidget` is asked every millisecond."""


def preset_with(folder: Path, policy: str, source: str = __file__, decisions: tuple[str, ...] = ()) -> str:
    """The baseline, but for what this policy decides; a broken one what it decides wrongly."""
    baseline = files("antiphon.assembly").joinpath("presets/baseline.yaml").read_text()
    own = dict.fromkeys(decisions or BROKEN[policy], f"{source}:{policy}")
    path = folder / f"{policy}.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(baseline) | own))
    return str(path)
