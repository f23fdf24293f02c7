"""Recordings of people, cut to what a cascade hears at once."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import numpy as np
import yaml

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = run_path(str(BENCHMARKS / "human_recordings.py"))
pieces = SCRIPT["pieces"]
RATE_HZ = 1000


def test_a_recording_is_cut_where_it_is_quiet() -> None:
    """At every pause that is in reach, the last half of a piece, and nothing is lost."""
    loud = np.where(np.arange(25 * RATE_HZ) % 2, 9000, -9000).astype(np.int16)
    for pause_s in (8.0, 17.0):
        loud[round(pause_s * RATE_HZ) : round((pause_s + 0.5) * RATE_HZ)] //= 100
    found = pieces(loud, RATE_HZ, 10.0)
    assert np.array_equal(np.concatenate(found), loud)
    cuts = np.cumsum([len(piece) for piece in found])[:-1] / RATE_HZ
    assert len(cuts) == 2
    assert 8.0 <= cuts[0] <= 8.5
    assert 17.0 <= cuts[1] <= 17.5


def test_a_short_recording_is_whole() -> None:
    sound = np.ones(5 * RATE_HZ, np.int16)
    assert [len(piece) for piece in pieces(sound, RATE_HZ, 5.0)] == [len(sound)]


def test_what_is_said_is_written_down() -> None:
    said = yaml.safe_load((BENCHMARKS / "human_recordings.yaml").read_text())
    assert all(set(one) == {"file", "said"} and one["said"] for one in said)
