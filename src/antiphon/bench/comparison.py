"""What a comparison found: figures per seed, ratios with intervals, and utilisation beside every ratio."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from antiphon.bench.servers import Target
from antiphon.bench.statistics import Contrast, contrast

UTILISATION = re.compile(r'utilisation\{stage="([^"]+)"\}')


class Dropped(msgspec.Struct, frozen=True):
    """A run that is in no ratio, and why."""

    target: str
    seed: int
    message: str


class Side(msgspec.Struct, frozen=True):
    """A target and its figures, by seed.

    overruled  of simulated runs: how many of a policy's decisions the baseline took, by seed and decision
    """

    target: Target
    runs: dict[int, dict[str, float]]
    overruled: dict[int, dict[str, int]] = {}

    def column(self, figure: str) -> dict[int, float]:
        """The figure at each seed that has it."""
        return {seed: found[figure] for seed, found in self.runs.items() if figure in found}

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of all figures of any run, in the order in which they came."""
        return tuple(dict.fromkeys(name for found in self.runs.values() for name in found))

    @property
    def utilisation(self) -> dict[str, float]:
        """Per stage, mean over the seeds; empty for a server that doesn't export it."""
        stages = {found[1]: name for name in self.figures if (found := UTILISATION.fullmatch(name))}
        return {stage: float(np.mean(list(self.column(name).values()))) for stage, name in stages.items()}


class Row(msgspec.Struct, frozen=True):
    """A figure of B against A, with the mean utilisation of every stage of either, by side and stage."""

    contrast: Contrast
    utilisation: dict[str, dict[str, float]]


class Against(msgspec.Struct, frozen=True):
    """B against A. `pairs`: how many seeds both have."""

    a: str
    b: str
    pairs: int
    rows: tuple[Row, ...]


class Comparison(msgspec.Struct, frozen=True):
    """All that `antiphon compare` says."""

    sides: tuple[Side, ...]
    against: tuple[Against, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[str, ...]


def against(a: Side, b: Side, matters: float = 0.0) -> Against:
    """Every figure that either side has. matters: the smallest difference that does, a share."""
    utilisation = {side.target.name: side.utilisation for side in (a, b)}
    names = dict.fromkeys((*a.figures, *b.figures))
    found = (contrast(name, a.column(name), b.column(name), matters) for name in names)
    rows = tuple(Row(one, utilisation) for one in found)
    return Against(a.target.name, b.target.name, len(a.runs.keys() & b.runs.keys()), rows)


def as_json(comparison: Comparison, about: dict[str, Any]) -> bytes:
    """The result with `about`, where it comes from. A value that is no number is null."""
    content = {**about, **msgspec.to_builtins(comparison, str_keys=True)}
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"
