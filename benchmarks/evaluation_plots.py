"""The evaluation's figures, and the tables of docs/evaluation.md between its markers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.bench.plots.style import COLOURS, GREY, colour, marker, note, page

STAGES = {"thinker": "thinker", "talker": "talker", "code2wav": "vocoder", "playback": "playback"}
SYSTEMS = {
    "fcfs": "FCFS",
    "fcfs+lru": "FCFS + LRU offload",
    "fcfs+lru-slow": "FCFS + LRU offload, 8 GB/s",
    "roomy": "FCFS, KV never short",
}
EVICTED, RELOADED = "antiphon_kv_blocks_evicted_total", "antiphon_kv_blocks_reloaded_total"
Runs = dict[str, Any]


def draw(simulated: Runs, measured: Runs, docs: Path) -> None:
    """All figures to docs/evaluation, all tables into docs/evaluation.md."""
    folder = docs / "evaluation"
    folder.mkdir(exist_ok=True)
    frontier(measured, folder / "ahead.png")
    completion(simulated["completion"], measured["fcfs-0"]["alone"], folder / "completion.png")
    memory_load(simulated, folder / "eviction.png")
    reload(simulated, folder / "reload.png")
    page_file = docs / "evaluation.md"
    text = page_file.read_text()
    for name, lines in {
        "simulated": simulated_table(simulated),
        "load": load_table(simulated),
        "waste": waste_table(simulated),
        "measured": measured_table(measured),
        "completion": completion_table(simulated["completion"], measured["fcfs-0"]["alone"]),
    }.items():
        text = filled(text, name, "\n".join(lines))
    page_file.write_text(text)


def filled(text: str, name: str, table: str) -> str:
    """What stands between `<!-- name -->` and `<!-- /name -->` is the table."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"docs/evaluation.md has no place for the table {name!r}"
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


# -- figures ---------------------------------------------------------------------------------------------


def frontier(measured: Runs, path: Path) -> None:
    """Figure 3: generation ahead of playback, from real replies."""
    shown = measured["fcfs-0.5"]["frontiers"]
    with page(path, 2.9 * len(shown) + 0.6, 2.9) as figure:
        panels = figure.subplots(1, len(shown), squeeze=False).ravel()
        for axes, one in zip(panels, shown, strict=True):
            axes.fill_between(
                one["at_s"], one["played_s"], one["generated_s"], color=COLOURS[5], alpha=0.35, linewidth=0
            )
            axes.plot(one["at_s"], one["generated_s"], color=COLOURS[0], label="generated")
            axes.plot(one["at_s"], one["played_s"], color=COLOURS[2], label="played")
            axes.axvline(one["barge_in_s"], color=COLOURS[1], linestyle="--", label="barge-in")
            axes.set_xlabel("time since the turn's end (s)")
            note(axes, f"{one['unheard_s']:.1f} s generated and never heard")
        panels[0].set_ylabel("audio of the reply (s)")
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=8,
        )


def completion(simulated: list[Any], measured: list[Any], path: Path) -> None:
    """Figure 4: the typical reply of each."""
    with page(path, 7.4, 3.0) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, replies, title in (
            (panels[0], simulated, "simulated: Qwen3-Omni-30B-A3B, H200"),
            (panels[1], measured, "measured: demo, one CPU core"),
        ):
            one = middle(replies)
            for index, (stage, label) in enumerate(STAGES.items()):
                axes.step(
                    one["at_s"], 100 * np.array(one[stage]), where="post", color=colour(index), label=label
                )
            axes.set_xscale("log")
            axes.set_xlim(0.01, one["at_s"][-1])
            axes.set_xlabel("time since the turn's end (s)")
            note(axes, f"{title}, a reply of {one['audio_s']:.0f} s")
        panels[0].set_ylabel("of the reply (%)")
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=4,
            frameon=False,
            fontsize=8,
        )


def middle(replies: list[Any]) -> Any:
    """The reply of median length."""
    return sorted(replies, key=lambda reply: reply["audio_s"])[len(replies) // 2]


def memory_load(simulated: Runs, path: Path) -> None:
    """Figure 5 (a): evicted blocks and tail latency against load."""
    with page(path, 7.4, 3.1) as figure:
        left, right = figure.subplots(1, 2)
        for index, (system, label) in enumerate(SYSTEMS.items()):
            counts, runs = sweep(simulated, system)
            look = {"color": colour(index), "marker": marker(index), "markersize": 4, "label": label}
            left.plot(counts, [run[EVICTED] / 1000 for run in runs], **look)
            right.plot(counts, [1000 * run["ttfp_s.p99"] for run in runs], **look)
        left.set_ylabel("evicted KV blocks (thousands)")
        right.set_ylabel("P99 TTFP (ms)")
        for axes in (left, right):
            axes.set_xlabel("conversations at a replica")
            axes.set_ylim(0, None)
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )


def sweep(simulated: Runs, system: str) -> tuple[list[int], list[Any]]:
    names = [name for name in simulated if name.rpartition("-")[0] == f"load-{system}"]
    counts = sorted(int(name.rpartition("-")[2]) for name in names)
    return counts, [simulated[f"load-{system}-{count}"] for count in counts]


def reload(simulated: Runs, path: Path) -> None:
    """Figure 5 (b): reloading on the way to the first audio, against the size of the KV."""
    points = sorted(
        (run for name, run in simulated.items() if name.startswith("reload-")), key=lambda run: run["tokens"]
    )
    tokens = [run["tokens"] / 1000 for run in points]
    with page(path, 7.4, 3.1) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(
            tokens,
            [1000 * run["reloaded_reload_s"] for run in points],
            color=COLOURS[1],
            marker="s",
            markersize=4,
        )
        left.set_ylabel("reload from the host (ms)")
        for index, (name, label) in enumerate(
            {
                "resident": "past still on the device",
                "reloaded": "reloaded at the turn's start",
                "recomputed": "computed again (no host tier)",
            }.items()
        ):
            look = {"color": colour(index), "marker": marker(index), "markersize": 4, "label": label}
            right.plot(tokens, [1000 * run[f"{name}_ttfp_s"] for run in points], **look)
        right.set_ylabel("TTFP of the next turn (ms)")
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            axes.set_xlabel("past of the conversation (thousand tokens)")
            axes.set_ylim(0, None)
            axes.tick_params(colors=GREY)


# -- tables ----------------------------------------------------------------------------------------------


def rows_of(head: str, rows: list[list[str]]) -> list[str]:
    columns = head.split(" | ")
    return [f"| {head} |", "|" + "---|" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]


def share(run: Any, name: str) -> str:
    return f"{100 * run[name]:.0f} %" if name in run else "–"


def wasted(run: Any, stage: str) -> str:
    """Over the stage's replicas, which say it alike."""
    key = f'waste_token_ratio{{stage="{stage}"}}'
    return share(run, key)


def simulated_table(simulated: Runs) -> list[str]:
    rows: list[list[str]] = []
    for name, run in simulated.items():
        kind, _, rest = name.partition("-")
        if kind == "table":
            workload, arrivals, barge_in, system = re.fullmatch(r"(.+)-(\w+)-([\d.]+)-(.+)", rest).groups()  # type: ignore[union-attr]
            rows.append(
                [
                    *(workload, arrivals, barge_in, SYSTEMS[system]),
                    *(f"{1000 * run[f'ttfp_s.{p}']:.0f}" for p in ("p50", "p90", "p99")),
                    f"{run['completed_rps']:.2f}",
                    f"{run['rtf.p90']:.3f}",
                    share(run, "continuity"),
                    share(run, "waste_ratio"),
                    share(run, "cache_hit_share"),
                    f"{run[EVICTED]:.0f} / {run[RELOADED]:.0f}",
                ]
            )
    head = (
        "workload | arrivals | barge-in | system | TTFP P50 (ms) | P90 | P99 | completed (1/s) | RTF P90 | "
        "continuity | unheard audio | cache hits | blocks evicted / reloaded"
    )
    return rows_of(head, rows)


def load_table(simulated: Runs) -> list[str]:
    rows: list[list[str]] = []
    for system, label in SYSTEMS.items():
        for count, run in zip(*sweep(simulated, system), strict=True):
            rows.append(
                [
                    *(
                        label,
                        str(count),
                        f"{run[EVICTED]:.0f}",
                        f"{run[RELOADED]:.0f}",
                        share(run, "cache_hit_share"),
                    ),
                    *(f"{1000 * run[f'ttfp_s.{p}']:.0f}" for p in ("p50", "p90", "p99")),
                    f"{1000 * run.get('reload_s', 0.0) / run['turns']:.1f}",
                ]
            )
    head = (
        "system | conversations | evicted blocks | reloaded | cache hits | TTFP P50 (ms) | P90 | P99 | "
        "reload a turn (ms)"
    )
    return rows_of(head, rows)


def waste_table(simulated: Runs) -> list[str]:
    names = sorted(name for name in simulated if name.startswith("lead-"))
    rows = [
        [name.removeprefix("lead-"), share(run, "waste_ratio"), wasted(run, "thinker"), wasted(run, "talker")]
        for name in names
        for run in [simulated[name]]
    ]
    return rows_of("barge-in probability | audio never heard | thinker tokens | talker frames", rows)


def measured_table(measured: Runs) -> list[str]:
    rows: list[list[str]] = []
    for name, run in measured.items():
        system, _, barge_in = name.rpartition("-")
        rows.append(
            [
                *(SYSTEMS[system], barge_in, f"{run['turns']:.0f}"),
                *(f"{1000 * run[f'ttfp_s.{p}']:.0f}" for p in ("p50", "p90")),
                f"{run['completed_rps']:.2f}",
                *(share(run, key) for key in ("continuity", "waste_ratio", "cache_hit_share")),
                f"{run[EVICTED]:.0f} / {run[RELOADED]:.0f}",
            ]
        )
    head = (
        "system | barge-in | turns | TTFP P50 (ms) | P90 | completed (1/s) | continuity | unheard audio | "
        "cache hits | blocks evicted / reloaded"
    )
    return rows_of(head, rows)


def completion_table(simulated: list[Any], measured: list[Any]) -> list[str]:
    rows: list[list[str]] = []
    for label, replies in (("simulated", simulated), ("measured", measured)):
        one = middle(replies)
        done = [f"{one[f'{stage}_done_s']:.2f}" for stage in ("thinker", "talker", "code2wav")]
        rows.append([label, str(len(replies)), f"{one['audio_s']:.1f}", *done, f"{one['at_s'][-1]:.1f}"])
    head = (
        "where | replies | median one (s of audio) | thinker done (s) | talker | vocoder | heard to the end"
    )
    return rows_of(head, rows)
