"""Traces that are tables (CSV): BurstGPT, Azure, and extracts with plain column names."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.workload.fitted import TOKENS_PER_WORD
from antiphon.workload.trace_rows import Row, TracePosition

BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EXTRACT = ("input_tokens", "output_tokens")
UTTERANCES = ("words", "sentence")
QUESTIONS = ("question_words", "question")
TRANSITIONS = ("meeting", "t_s", "offset_s", "next_segment_s")

Cells = dict[str, str]


def records(file: TextIO, path: Path) -> Iterator[tuple[TracePosition, Cells]]:
    """Each line's cells by column. Raises ConfigError for a line that has more or fewer than the header."""
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, list[str]())]
    for cells in reader:
        place = TracePosition(path, reader.line_num)
        if not cells:
            continue
        if len(cells) != len(header):
            raise place.wrong(f"{len(cells)} columns", f"{len(header)} ({', '.join(header)})")
        yield place, dict(zip(header, cells, strict=True))


def table_format(path: Path) -> str:
    """Which format the header belongs to: burstgpt, azure or extract. Raises ConfigError if none."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = {name.strip() for name in next(csv.reader(file), list[str]())}
    known = {"burstgpt": BURSTGPT, "azure": AZURE}
    for name, columns in known.items():
        if header >= set(columns):
            return name
    if any(header >= set(columns) for columns in (EXTRACT, UTTERANCES, QUESTIONS, TRANSITIONS)):
        return "extract"
    found = ", ".join(sorted(header)) or "nothing"
    raise TracePosition(path, 1).wrong(
        f"unknown columns: {found}",
        f"BurstGPT ({', '.join(BURSTGPT)}), Azure ({', '.join(AZURE)}), or {', '.join(EXTRACT)} with "
        "`t_s` or `t_ms`, `session` and `elapsed_s` where known",
    )


def table_rows(path: Path, format: str) -> Iterator[Row]:
    """Raises ConfigError with file and line for what can't be read as this format."""
    if format != (found := table_format(path)):
        raise ConfigError(f"{path}: the header is that of format {found!r}, not {format!r}")
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = records(file, path)
        yield from {"burstgpt": burstgpt, "azure": azure, "extract": extract}[found](lines)


def burstgpt(lines: Iterator[tuple[TracePosition, Cells]]) -> Iterator[Row]:
    """BurstGPT_1/2 (no sessions) and BurstGPT_3 (Session ID, Elapsed time); times are seconds. A reply of 0
    tokens is a request that failed: left out."""
    first_s: float | None = None
    for place, cells in lines:
        time_s = place.number("Timestamp", cells["Timestamp"])
        first_s = time_s if first_s is None else first_s
        elapsed = cells.get("Elapsed time", "")
        row = Row(
            arrival_s=time_s - first_s,
            session=cells.get("Session ID") or None,
            input_tokens=place.count("Request tokens", cells["Request tokens"]),
            output_tokens=place.count("Response tokens", cells["Response tokens"]),
            elapsed_s=place.number("Elapsed time", elapsed) if elapsed else None,
        )
        if row.output_tokens:
            yield row


def azure(lines: Iterator[tuple[TracePosition, Cells]]) -> Iterator[Row]:
    """AzureLLMInferenceTrace (2023 and 2024): times are dates of up to nanoseconds; no sessions."""
    first: np.datetime64 | None = None
    for place, cells in lines:
        written = cells["TIMESTAMP"]
        try:
            time = np.datetime64(written.removesuffix("+00:00").strip(), "ns")
        except ValueError:
            time = np.datetime64("NaT")
        if np.isnat(time):
            raise place.wrong(f"TIMESTAMP is {written!r}", "a time such as 2023-11-16 18:17:03.9799600")
        first = time if first is None else first
        yield Row(
            arrival_s=float((time - first) / np.timedelta64(1, "s")),
            input_tokens=place.count("ContextTokens", cells["ContextTokens"]),
            output_tokens=place.count("GeneratedTokens", cells["GeneratedTokens"]),
        )


def extract(lines: Iterator[tuple[TracePosition, Cells]]) -> Iterator[Row]:
    """Plain columns: requests, utterances, questions about videos, or transitions between speakers."""
    for place, cells in lines:
        if "input_tokens" in cells:
            yield requested(place, cells)
        elif "offset_s" in cells:
            yield answered(place, cells)
        else:
            yield said(place, cells)


def requested(place: TracePosition, cells: Cells) -> Row:
    elapsed = cells.get("elapsed_s", "")
    return Row(
        arrival_s=time_of(place, cells),
        session=cells.get("session") or None,
        input_tokens=place.count("input_tokens", cells["input_tokens"]),
        output_tokens=place.count("output_tokens", cells["output_tokens"]),
        elapsed_s=place.number("elapsed_s", elapsed) if elapsed else None,
    )


def answered(place: TracePosition, cells: Cells) -> Row:
    """The next speaker's turn, `offset_s` after the last one's end; an overlap is a gap of none."""
    return Row(
        session=cells["meeting"],
        arrival_s=place.number("t_s", cells["t_s"]),
        think_s=max(0.0, place.number("offset_s", cells["offset_s"], signed=True)),
        speech_s=place.number("next_segment_s", cells["next_segment_s"]),
    )


def said(place: TracePosition, cells: Cells) -> Row:
    words = "words" if "words" in cells else "question_words"
    return Row(
        arrival_s=time_of(place, cells),
        session=cells.get("video") or None,
        input_tokens=round(place.count(words, cells[words]) * TOKENS_PER_WORD),
        has_history=False,
        text=cells["sentence" if "sentence" in cells else "question"],
    )


def time_of(place: TracePosition, cells: Cells) -> float | None:
    for name, per_s in (("t_s", 1.0), ("t_ms", 1000.0)):
        if cells.get(name):
            return place.number(name, cells[name]) / per_s
    return None


def quantile_tables(path: Path) -> dict[str, dict[float, float]]:
    """Measure -> percentile -> value, from a CSV with those columns; below 0 (the next speaker's overlap,
    where gaps are measured) is 0. Raises ConfigError with file and line."""
    tables: dict[str, dict[float, float]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for place, cells in records(file, path):
            if not cells.keys() >= {"measure", "percentile", "value"}:
                raise place.wrong(f"columns {', '.join(cells)}", "measure, percentile and value among them")
            percentile = place.number("percentile", cells["percentile"])
            value = place.number("value", cells["value"], signed=True)
            tables.setdefault(cells["measure"], {})[percentile] = max(0.0, value)
    return tables
