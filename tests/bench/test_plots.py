"""Plots: every kind writes a picture, its axes say their units, and bad input is told by file and line."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Page
from matplotlib.image import imread
from typer.testing import CliRunner

from antiphon.bench.plots import sources
from antiphon.bench.plots.cdf import draw_cdf
from antiphon.bench.plots.frontier import draw_frontier
from antiphon.bench.plots.gantt import busiest, draw_gantt
from antiphon.bench.plots.kv import draw_kv
from antiphon.bench.plots.perfetto import write_perfetto
from antiphon.bench.plots.timeline import draw_timeline
from antiphon.bench.trace import KvSample, ResponseSpan, StepBar, StepWork, Trace
from antiphon.cli import app
from antiphon.core.errors import ConfigError
from antiphon.metrics.names import Figure
from bench.logs import write_log


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """The figures that are saved."""
    saved: list[Page] = []
    save = Page.savefig

    def keep(page: Page, *arguments: Any, **options: Any) -> None:
        saved.append(page)
        save(page, *arguments, **options)

    monkeypatch.setattr(Page, "savefig", keep)
    return saved


def axis_labels(page: Page) -> str:
    axes = [label for axes in page.axes for label in (axes.get_xlabel(), axes.get_ylabel())]
    return " | ".join([*axes, page.get_supxlabel(), page.get_supylabel()])


def is_drawn(path: Path) -> bool:
    """A picture with something on it."""
    pixels = imread(path)
    return pixels.shape[0] > 300 and float(pixels[..., :3].std()) > 0.05


def step(number: int, stage: str, start_s: float, end_s: float, work: StepWork, **more: Any) -> StepBar:
    return StepBar(stage, number, start_s, end_s, work, "why", 1, 3, **more)


TRACE = Trace(
    ("thinker", "talker"),
    (
        step(0, "thinker", 0.0, 0.4, "prefill"),
        step(1, "talker", 0.4, 0.5, "decode"),
        step(2, "thinker", 2.0, 2.5, "decode", is_failed=True),
    ),
    (ResponseSpan("s", "r", 0.0, 0.6, "completed"),),
)
SAMPLES = [
    KvSample(0.0, "thinker", 1, 0, 9),
    KvSample(1.0, "thinker", 4, 4, 2),
    KvSample(1.5, "talker", 0, 0, 10),
]


def test_frontier(tmp_path: Path, pages: list[Page]) -> None:
    logs = [
        write_log(tmp_path / f"{label}-{concurrency}-{seed}.jsonl", label, seed, concurrency=concurrency)
        for label in ("a", "b")
        for concurrency in (2, 4)
        for seed in (0, 1)
    ]
    points = sources.points(logs)
    assert [(point.label, point.concurrency) for point in points[:3]] == [("a", 2), ("a", 2), ("a", 4)]
    draw_frontier(points, tmp_path / "x.png")
    assert is_drawn(tmp_path / "x.png")
    assert "TTFP (s)" in axis_labels(pages[0])
    assert "(1/s)" in axis_labels(pages[0])
    texts = {text.get_text() for text in pages[0].axes[0].texts}
    assert {"a", "b", "2", "4"} <= texts


def test_frontier_wants_points(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to plot"):
        draw_frontier([], tmp_path / "x.png")
    open_loop = write_log(tmp_path / "open.jsonl", concurrency=None)
    with pytest.raises(
        ConfigError, match=r"open\.jsonl is not a point of a frontier: it lacks a bound concurrency"
    ):
        sources.points([open_loop])


def test_cdf(tmp_path: Path, pages: list[Page]) -> None:
    logs = [write_log(tmp_path / f"{seed}.jsonl", "a", seed) for seed in (0, 1)]
    values = sources.spreads([*logs, write_log(tmp_path / "b.jsonl", "b")], "ttfp_s")
    assert {label: len(column) for label, column in values.items()} == {"a": 12, "b": 6}
    assert values["b"].min() == pytest.approx(0.2)
    draw_cdf(values, Figure.TTFP_S, tmp_path / "x.png")
    assert is_drawn(tmp_path / "x.png")
    assert "ttfp (s)" in axis_labels(pages[0])
    swept = sources.spreads([logs[0], write_log(tmp_path / "c.jsonl", "a", concurrency=8)], "ttfp_s")
    assert list(swept) == ["a, 2 at once", "a, 8 at once"]


def test_cdf_over_orders_of_magnitude(tmp_path: Path, pages: list[Page]) -> None:
    draw_cdf({"a": np.array([0.01, 1.0, 100.0, np.nan])}, Figure.JCT_S, tmp_path / "x.svg")
    assert pages[0].axes[0].get_xscale() == "log"
    with pytest.raises(ConfigError, match="no response has a value of tpot_s"):
        draw_cdf({"a": np.array([np.nan])}, Figure.TPOT_S, tmp_path / "x.png")
    with pytest.raises(ConfigError, match="no figure 'speed'"):
        sources.spreads([], "speed")


def test_timeline(tmp_path: Path, pages: list[Page]) -> None:
    rows = sources.replies([write_log(tmp_path / "a.jsonl")])
    draw_timeline(rows, tmp_path / "x.png")
    assert is_drawn(tmp_path / "x.png")
    assert "(s)" in axis_labels(pages[0])
    first = pages[0].axes[0]
    assert first.get_title(loc="left") == "p1, turn 2"
    assert "unheard" in first.get_title(loc="right")
    gaps = [line for line in first.get_lines() if line.get_linewidth() == 5 and len(line.get_xdata())]
    assert len(gaps) == 1
    assert np.diff(gaps[0].get_xdata()) == pytest.approx(1.2)
    assert gaps[0].get_ydata() == pytest.approx([3.0, 3.0])


def test_timeline_of_one_reply(tmp_path: Path, pages: list[Page]) -> None:
    log = write_log(tmp_path / "a.jsonl")
    (row,) = sources.replies([log], "p0-1")
    draw_timeline([row], tmp_path / "x.png", title="mine")
    assert pages[0].axes[0].get_title(loc="left") == "p0, turn 1"
    with pytest.raises(ConfigError, match="no response 'p9-1'"):
        sources.replies([log], "p9-1")
    with pytest.raises(ConfigError, match="no reply has audio"):
        draw_timeline([], tmp_path / "x.png")


def test_kv(tmp_path: Path, pages: list[Page]) -> None:
    draw_kv(SAMPLES, tmp_path / "x.png", title="mine")
    assert is_drawn(tmp_path / "x.png")
    assert "KV (blocks)" in axis_labels(pages[0])
    assert "time (s)" in axis_labels(pages[0])
    assert "peak 8 of 10" in pages[0].axes[0].get_title(loc="right")
    of_log = sources.residency(write_log(tmp_path / "a.jsonl"))
    assert of_log[3] == KvSample(12.0, "thinker", used=8, idle=4, free=28)
    with pytest.raises(ConfigError, match="no server samples"):
        draw_kv([], tmp_path / "x.png")


def test_gantt(tmp_path: Path, pages: list[Page]) -> None:
    draw_gantt(TRACE, tmp_path / "x.png", window=(0.0, 1.0))
    assert is_drawn(tmp_path / "x.png")
    axes = pages[0].axes[0]
    assert "(s)" in axis_labels(pages[0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["thinker  40 %", "talker  10 %"]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["prefill", "decode", "reply asked for"]
    with pytest.raises(ConfigError, match=r"no step between 5 s and 6 s; the record ends at 2\.5 s"):
        draw_gantt(TRACE, tmp_path / "x.png", window=(5.0, 6.0))


def test_the_busiest_second(tmp_path: Path) -> None:
    assert busiest(TRACE) == (0.0, 1.0)
    assert busiest(Trace(TRACE.stages, TRACE.steps[:2], ())) == (0.0, 0.5)
    draw_gantt(TRACE, tmp_path / "x.png")


def test_perfetto(tmp_path: Path) -> None:
    write_perfetto(TRACE, SAMPLES, tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert all({"ph", "pid", "name"} <= event.keys() for event in events)
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["ts"], span["dur"], span["tid"]) for span in spans[:2]] == [(0, 4e5, 1), (4e5, 1e5, 2)]
    assert spans[2]["name"] == "failed"
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {1: "thinker", 2: "talker"}
    counters = [event for event in events if event["name"] == "KV of thinker"]
    assert counters[1]["args"] == {"used": 4, "idle": 4}
    begin, end = (event for event in events if event.get("cat") == "response")
    assert (begin["ph"], end["ph"], begin["id"], end["ts"]) == ("b", "e", "r", 6e5)
    with pytest.raises(ConfigError, match="cannot write"):
        write_perfetto(TRACE, SAMPLES, tmp_path / "none" / "x.json")


def test_a_log_with_a_bad_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    (tmp_path / "torn.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:9])
    assert len(sources.read_run(tmp_path / "torn.jsonl").responses) == 6
    lines[4] = b'{"event": "Nonesuch", "t_s": 1}\n'
    log.write_bytes(b"".join(lines))
    with pytest.raises(ConfigError, match=r"a\.jsonl:5: not an event"):
        sources.read_run(log)
    log.write_bytes(b"".join(lines[1:3]))
    with pytest.raises(ConfigError, match="does not begin with RunStarted"):
        sources.read_run(log)
    for read in (sources.read_run, sources.residency):
        with pytest.raises(ConfigError, match="cannot read"):
            read(tmp_path / "none.jsonl")


def test_where_it_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must end in one of .*\.png"):
        draw_kv(SAMPLES, tmp_path / "x.txt")
    with pytest.raises(ConfigError, match="cannot write"):
        draw_kv(SAMPLES, tmp_path / "none" / "x.png")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install \"antiphon\[plot\]\""):
        draw_kv(SAMPLES, tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["frontier", "cdf", "timeline", "kv"])
def test_command(tmp_path: Path, kind: str) -> None:
    log, out = write_log(tmp_path / "a.jsonl"), tmp_path / "x.png"
    result = CliRunner().invoke(app, ["plot", kind, str(log), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert is_drawn(out)
    missing = CliRunner().invoke(app, ["plot", kind, str(tmp_path / "none"), "--out", str(out)])
    assert missing.exit_code == 1
    assert "cannot read" in missing.output


@pytest.mark.parametrize("kind", ["gantt", "perfetto"])
def test_command_on_what_is_no_record(tmp_path: Path, kind: str) -> None:
    log = write_log(tmp_path / "a.jsonl")
    for path, words in ((log, "not a record file"), (tmp_path / "none", "none")):
        result = CliRunner().invoke(app, ["plot", kind, str(path), "--out", str(tmp_path / "x.png")])
        assert result.exit_code == 1
        assert words in result.output.replace("\n", " ")
