"""Tables and plot of docs/evaluation/tokenflow.md, from what benchmarks/tokenflow.py kept.

python benchmarks/tokenflow_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evaluation_plots import filled, rows_of

from antiphon.bench.plots.style import colour, page

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "evaluation" / "tokenflow.md"
COLUMNS = {
    "effective tokens/s": ("effective_tokens_per_s", 0),
    "tokens/s": ("streamed_tokens_per_s", 0),
    "quality of service": ("qos", 0),
    "TTFT mean (s)": ("ttft_s.mean", 1),
    "P99": ("ttft_s.p99", 1),
    "waiting while reading, mean (s)": ("rebuffer_s.mean", 1),
    "P99 ": ("rebuffer_s.p99", 1),
    "preempted": ('preemptions{stage="thinker"}', 0),
    "device at work": ('utilisation{stage="thinker"}', 2),
}
ON_THE_ENGINE = {name: told for name, told in COLUMNS.items() if name != "device at work"} | {
    "preempted": ("preemptions", 0)
}
RATIOS = {
    "effective tokens/s": "effective_tokens_per_s",
    "tokens/s": "streamed_tokens_per_s",
    "TTFT mean": "ttft_s.mean",
    "TTFT P99": "ttft_s.p99",
}
TIMELINES = {
    "replies": ("replies", 0),
    "TTFT mean (s)": ("ttft_s", 1),
    "generated a second, from the first token on": ("generated_per_s", 1),
    "waits while reading, mean (s)": ("waits_s", 2),
}
BESIDE_AGENTS = COLUMNS | {"an agent's reply, mean (s)": ("agents_take_s", 1)}
DRAWN = ("effective_tokens_per_s", "streamed_tokens_per_s", "ttft_s.mean", "ttft_s.p99")
"""As in figures 16 and 17."""


def table(result: dict[str, Any], columns: dict[str, tuple[str, int]] = COLUMNS) -> list[str]:
    """Of a part: means by load and system."""
    rows = [
        [load if at == 0 else "", system, *(f"{one[name]:.{digits}f}" for name, digits in columns.values())]
        for load, found in result.items()
        if isinstance(found, dict)
        for at, (system, one) in enumerate(found.get("means", found).items())
    ]
    return rows_of(f"load | system | {' | '.join(columns)}", rows)


def beside_agents(result: dict[str, Any]) -> list[str]:
    return table(result, BESIDE_AGENTS)


def on_the_engine(result: dict[str, Any]) -> list[str]:
    rows = [
        [system, *(f"{one[name]:.{digits}f}" for name, digits in ON_THE_ENGINE.values())]
        for system, one in result["means"].items()
    ]
    return rows_of(f"system | {' | '.join(ON_THE_ENGINE)}", rows)


def ratio(told: list[float | None]) -> str:
    """With its interval, where there is more than one seed."""
    middle, low, high = told
    return f"{middle:.2f}" if low is None else f"{middle:.2f} ({low:.2f}-{high:.2f})"


def ratios(result: dict[str, Any]) -> list[str]:
    """Of a part: ours as a multiple of each baseline's, with the 95 % interval over the paired seeds."""
    rows: list[list[str]] = []
    for load, found in result.items():
        others = found.get("tokenflow against", {}) if isinstance(found, dict) else {}
        for at, (system, one) in enumerate(others.items()):
            rows.append([load if at == 0 else "", system, *(ratio(one[name]) for name in RATIOS.values())])
    return rows_of(f"load | tokenflow against | {' | '.join(RATIOS)}", rows)


def draw(result: dict[str, Any], path: Path) -> None:
    loads = {load: found["means"] for load, found in result.items() if isinstance(found, dict)}
    with page(path, 11.0, 2.8) as figure:
        for axes, name in zip(figure.subplots(1, len(DRAWN)), DRAWN, strict=True):
            for at, means in enumerate(loads.values()):
                for beside, one in enumerate(means.values()):
                    axes.bar(
                        at + 0.8 * beside / len(means), one[name], 0.7 / len(means), color=colour(beside)
                    )
            axes.set_xticks(
                [at + 0.33 for at in range(len(loads))], [load.partition(":")[0] for load in loads]
            )
            axes.set_title(name, fontsize=8)
        systems = next(iter(loads.values()))
        handles = [figure.axes[0].patches[at] for at in range(len(systems))]
        figure.legend(handles, systems, loc="outside lower center", ncols=len(systems), frameon=False)


def by_rate(result: dict[str, Any]) -> list[str]:
    """Figures 18 and 19: of each system's readers, by what they read a second."""
    rows = [
        [rate, system, *(f"{one[name]:.{digits}f}" for name, digits in TIMELINES.values())]
        for name in ("generation", "rates")
        for system, found in result[name]["systems"].items()
        for rate, one in found.items()
    ]
    return rows_of(f"read a second | system | {' | '.join(TIMELINES)}", rows)


def draw_timelines(result: dict[str, Any], path: Path) -> None:
    """When tokens are there, and who waits: figures 18 and 19, and like 14 and 15."""
    with page(path, 11.0, 5.4) as figure:
        (reserved, ours, rates), (waiting, running, last) = figure.subplots(2, 3)
        panels = {
            "room reserved, all read 15": (reserved, result["generation"]["systems"]["room reserved"]),
            "tokenflow, all read 15": (ours, result["generation"]["systems"]["tokenflow"]),
            "tokenflow, 15 and 20 are read": (rates, result["rates"]["systems"]["tokenflow"]),
        }
        for title, (axes, found) in panels.items():
            for at, (rate, one) in enumerate(found.items()):
                for line in one["lines"]:
                    axes.plot(*zip(*line, strict=True), color=colour(at), linewidth=0.5, alpha=0.5)
                axes.plot([0, 1000 / float(rate)], [0, 1000], color="black", linewidth=1.4)
            axes.set(
                title=title,
                xlabel="seconds since it was asked for",
                ylabel="tokens of a reply",
                ylim=(0, 1000),
            )
        for at, (system, one) in enumerate(result["crowd"]["systems"].items()):
            seconds, *counts = zip(*one["timeline"], strict=True)
            for axes, told in zip((waiting, running), counts, strict=True):
                axes.plot(seconds, told, color=colour(at), label=system)
        waiting.set(title="load (d): wait for the first token", xlabel="time (s)")
        running.set(title="have a row", xlabel="time (s)")
        running.legend(frameon=False)
        last.set_axis_off()


def write() -> None:
    """Every part that was run, into the page."""
    text = PAGE.read_text()
    for path in sorted(RESULTS.glob("tokenflow-*.json")):
        part, result = path.stem.removeprefix("tokenflow-"), json.loads(path.read_text())
        told = {"engine": on_the_engine, "agents": beside_agents, "timelines": by_rate}.get(part, table)
        tables = ((part, told), (f"ratios of {part}", ratios))
        for name, tell in tables:
            if f"<!-- {name} -->" in text:
                text = filled(text, name, "\n".join(tell(result)))
        if part == "calibrated":
            draw(result, PAGE.parent / "tokenflow-table1.png")
        if part == "timelines":
            draw_timelines(result, PAGE.parent / "tokenflow-timelines.png")
    PAGE.write_text(text)


if __name__ == "__main__":
    write()
