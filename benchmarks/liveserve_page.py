"""Tables and figures of docs/evaluation/liveserve.md, from the kept results.

python benchmarks/liveserve_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evaluation_plots import filled, rows_of

from antiphon.bench.plots.style import GREY, colour, page
from antiphon.metrics.names import Metric

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "evaluation" / "liveserve.md"
THINKER, TALKER = 'waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'
BEST, SHIPPED = "the best baseline", "fcfs as shipped"


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def pair(
    found: dict[str, Any], name: str, scale: float = 1.0, digits: int = 0, before: str = "baseline"
) -> str:
    """Baseline, as its column is called, → LiveServe."""
    return " → ".join(f"{scale * found[name][one]:.{digits}f}" for one in (before, "liveserve"))


def interval(one: dict[str, Any] | list[float], name: str = "ratio") -> str:
    low, high = (one[name] if isinstance(one, dict) else one)[1:]
    middle = (one[name] if isinstance(one, dict) else one)[0]
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def ratio(found: dict[str, Any], name: str) -> str:
    """With its interval; "-" where a seed has none."""
    return interval(found[name]) if "ratio" in found[name] else "-"


def verdict(found: dict[str, Any]) -> list[str]:
    """Of LiveServe against one baseline, a cell each."""
    return [
        pair(found, "ttfp_s.p50", 1000),
        ratio(found, "ttfp_s.p50"),
        pair(found, "ttfp_s.p90", 1000),
        ratio(found, "ttfp_s.p90"),
        pair(found, "smooth", 100),
        pair(found, "completes", 100),
        interval(found["completed_rps"]),
        pair(found, TALKER, 100, 1),
        pair(found, THINKER, 100, 1),
    ]


VERDICT = (
    "TTFP P50 (ms) | P50, ratio (95 %) | P90 (ms) | P90, ratio (95 %) | without a gap (%) | "
    "completed in time (%) | completed a second, ratio (95 %) | talker unheard (%) | thinker unheard (%)"
)


def loads(result: dict[str, Any]) -> list[str]:
    rows = [
        [load, name, *verdict(found)]
        for load, systems in result["loads"].items()
        for name, found in systems.items()
    ]
    return rows_of(f"load | against | {VERDICT}", rows)


def holds(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            f"{1000 * one['ttfp_s.p90']:.0f}",
            *(f"{100 * one[figure]:.1f}" for figure in ("smooth", TALKER, THINKER)),
        ]
        for name, one in result["held"].items()
    ]
    return rows_of(
        "held from | TTFP P90 (ms) | without a gap (%) | talker unheard (%) | thinker unheard (%)", rows
    )


def clairvoyant(result: dict[str, Any]) -> list[str]:
    """The wait for a row by what newcomers are let in by, in a model of the talker."""
    told = [("the simulator", "fcfs, 9 rows", result["simulated"])]
    for steps, systems in result.items():
        if steps.startswith("steps"):
            about = f"{steps.removeprefix('steps ')} ({systems['makes']:.1f} s of sound in 1 s)"
            told += [(about, name, one) for name, one in systems.items() if name != "makes"]
    rows = [
        [
            about,
            name,
            f"{one['p50_s']:.2f}",
            f"{one['p90_s']:.1f}",
            ", ".join(f"{value:.1f}" for value in one["p90_s of each seed"]),
            f"{100 * one['smooth']:.0f}",
        ]
        for about, name, one in told
    ]
    return rows_of("steps | system | P50 (s) | P90 (s) | P90 of each seed (s) | without a gap (%)", rows)


def ablation(result: dict[str, Any]) -> list[str]:
    found = next(value for name, value in result.items() if name.startswith("ablation"))
    return rows_of(f"mechanisms | {VERDICT}", [[name, *verdict(one)] for name, one in found.items()])


def share(one: list[float]) -> str:
    """With its interval, as percentages."""
    middle, low, high = (100 * value for value in one)
    return f"{middle:.0f} ({low:.0f}-{high:.0f}) %"


def waited(before: dict[str, Any], after: dict[str, Any]) -> str:
    """For reloads, in all stages and turns, also those that wait under LiveServe alone."""
    was_s = before.get(Metric.RELOAD_SECONDS)
    if not was_s:
        return "-"
    is_s = after[Metric.RELOAD_SECONDS]
    return f"{was_s:.2f} → {is_s:.2f}, {100 * (1 - is_s / was_s):.0f} % less"


def memory(result: dict[str, Any]) -> list[str]:
    rows: list[list[str]] = []
    for name, found in result.items():
        if not isinstance(found, dict) or "fcfs" not in found:
            continue
        turns = found.get("reloaded turns")
        before, after = found["fcfs"], found["liveserve"]
        rows.append(
            [
                name,
                *(
                    f"{1000 * before[key]:.0f} → {1000 * after[key]:.0f}"
                    for key in ("transcript_ttft_s.p50", "transcript_ttft_s.p90")
                ),
                "-" if turns is None else f"{turns['turns']:.0f}",
                "-" if turns is None else f"{1000 * turns['base_ttft_s']:.0f} → {1000 * turns['ttft_s']:.0f}",
                "-" if turns is None else interval(turns["ttft_ratio"]),
                "-" if turns is None else share(turns["reload_off_the_path"]),
                waited(before, after),
            ]
        )
    head = (
        "memory and link | text TTFT P50 (ms) | P90 (ms) | reloaded turns a run | their TTFT (ms) | "
        "ratio (95 %) | reload off the path (95 %) | all waits for reloads (s a run)"
    )
    return rows_of(head, rows)


def memory_parts(result: dict[str, Any]) -> list[str]:
    found = next(value for name, value in result.items() if name.startswith("ablation"))
    rows = [
        [
            name,
            f"{1000 * one['ttft_s']:.0f}",
            interval(one["ttft_ratio"]),
            f"{100 * one['reload_off_the_path'][0]:.0f} %",
            f"{1000 * one['ttft_p90_s']:.0f}",
        ]
        for name, one in found.items()
    ]
    head = "decisions | TTFT of reloaded turns (ms) | ratio (95 %) | off the path | P90 of all turns (ms)"
    return rows_of(head, rows)


def engine(result: dict[str, Any]) -> list[str]:
    return rows_of(f"load | {VERDICT}", [[load, *verdict(found)] for load, found in result["loads"].items()])


def both(systems: dict[str, Any], name: str, scale: float = 1.0, digits: int = 0) -> str:
    """fcfs → liveserve."""
    return " → ".join(f"{scale * systems[one][name]:.{digits}f}" for one in ("fcfs", "liveserve"))


def paper(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            regime if at == 0 else "",
            system,
            f"{1000 * one['ttfp_s.p50']:.0f}",
            f"{1000 * one['ttfp_s.p90']:.0f}",
            interval(one["ttfp_s.p90 ratio"]) if "ttfp_s.p90 ratio" in one else "",
            f"{1000 * one['later.p50']:.0f}",
            f"{1000 * one['later.p90']:.0f}",
            interval(one["later.p90 ratio"]) if "later.p90 ratio" in one else "",
            f"{100 * one['continuity']:.0f} %",
            f"{one['completed_rps']:.2f}",
            f"{one['rtf.p90']:.2f}",
            f"{100 * one[TALKER]:.1f} %",
            f"{100 * one[THINKER]:.1f} %",
        ]
        for regime, systems in result.items()
        if isinstance(systems, dict)
        for at, (system, one) in enumerate(systems.items())
    ]
    head = (
        "regime | system | TTFP P50 (ms) | P90 (ms) | P90, ratio (95 %) | later P50 (ms) | "
        "P90 (ms) | P90, ratio (95 %) | continuity | completed (1/s) | "
        "RTF P90 | talker unheard | thinker unheard"
    )
    return rows_of(head, rows)


def reached(calibrated: dict[str, Any], frontier: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Figure 10: by workload and number of places, the fewest first."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name, systems in (calibrated | frontier).items():
        if not isinstance(systems, dict) or "/s" in name or ("p_bi" in name and not name.endswith("p_bi 0")):
            continue
        workload = next((one for one in ("interactive", "mixed-video") if one in name), "sharegpt")
        found.setdefault(workload, {})[int(name.split("c = ")[1].split(",")[0])] = systems
    return {
        workload: dict(sorted(points.items())) for workload, points in sorted(found.items(), reverse=True)
    }


def beside(systems: dict[str, Any]) -> list[str]:
    """Of LiveServe against fcfs, a cell each. Who comes later is told where places are not refilled."""
    ours = systems["liveserve"]
    has_later = "later.p90 ratio" in ours
    return [
        both(systems, "ttfp_s.p90", 1000),
        interval(ours["ttfp_s.p90 ratio"]),
        both(systems, "later.p90", 1000) if has_later else "-",
        interval(ours["later.p90 ratio"]) if has_later else "-",
        both(systems, "continuity", 100),
        both(systems, "completed_rps", 1, 2),
        both(systems, TALKER, 100, 1),
        both(systems, THINKER, 100, 1),
    ]


BESIDE = (
    "P90 TTFP (ms) | ratio (95 %) | later P90 (ms) | ratio (95 %) | without a gap (%) | completed (1/s) | "
    "talker unheard (%) | thinker unheard (%)"
)


def reach(found: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    rows = [
        [workload if at == 0 else "", f"{places}", *beside(systems)]
        for workload, points in found.items()
        for at, (places, systems) in enumerate(points.items())
    ]
    return rows_of(f"workload | c | {BESIDE}", rows)


def cuts(frontier: dict[str, Any]) -> list[str]:
    """Figure 13."""
    start = "calibrated, c = 8, p_bi "
    rows = [[name.removeprefix(start), *beside(one)] for name, one in frontier.items() if start in name]
    return rows_of(f"p_bi | {BESIDE}", rows)


def draw_reach(found: dict[str, dict[int, dict[str, Any]]], path: Path) -> None:
    """P90 of the first audio by the replies completed in a second, a point for each number of places."""
    with page(path, 7.2, 2.9) as figure:
        for axes, (workload, points) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
            for system, shade in (("fcfs", GREY), ("liveserve", colour(1))):
                shown = [one[system] for one in points.values()]
                axes.plot(
                    [one["completed_rps"] for one in shown],
                    [one["ttfp_s.p90"] for one in shown],
                    "o-",
                    color=shade,
                    label=system,
                )
            axes.set_title(workload)
            axes.set_xlabel("completed a second")
        figure.axes[0].set_ylabel("P90 TTFP (s)")
        figure.axes[0].legend(frameon=False)


def regimes(measured: dict[str, Any], calibrated: dict[str, Any], models: dict[str, Any]) -> list[str]:
    """One load of each kind of times, the highest that is kept with barge-ins."""
    load, own = [one for one in measured["loads"].items() if one[0].endswith("p_bi 0.5")][-1]
    scale, paper = "calibrated, c = 16, p_bi 0.5", calibrated["calibrated, c = 16, p_bi 0.5"]
    model, datasheet = list(models["loads"].items())[-1]
    best = own[BEST]
    rows = [
        [
            f"this engine on two cores, {load}",
            pair(best, "ttfp_s.p90", 1000),
            interval(best["ttfp_s.p90"]),
            pair(best, "smooth", 100),
            pair(best, TALKER, 100, 1),
        ],
        [
            f"datasheet of an H200, {model}",
            pair(datasheet, "ttfp_s.p90", 1000, before="fcfs"),
            interval(datasheet["ttfp_s.p90"]),
            pair(datasheet, "continuity", 100, before="fcfs"),
            pair(datasheet, TALKER, 100, 1, before="fcfs"),
        ],
        [
            scale,
            both(paper, "ttfp_s.p90", 1000),
            interval(paper["liveserve"]["ttfp_s.p90 ratio"]),
            both(paper, "continuity", 100),
            both(paper, TALKER, 100, 1),
        ],
    ]
    head = "times, and load | P90 TTFP (ms) | ratio (95 %) | without a gap (%) | talker unheard (%)"
    return rows_of(head, rows)


def draw(result: dict[str, Any], path: Path) -> None:
    """The first sound and replies without a gap, by load, of each system."""
    shown = {load: systems for load, systems in result["loads"].items() if load.endswith("p_bi 0.5")}
    labels = [load.split(" of ")[0] for load in shown]
    with page(path, 9.6, 2.9) as figure:
        half, tenth, smooth = figure.subplots(1, 3)
        shares = (half, "ttfp_s.p50", 1.0), (tenth, "ttfp_s.p90", 1.0), (smooth, "smooth", 100.0)
        for axes, key, scale in shares:
            lines = {
                "fcfs as shipped": ([one[SHIPPED][key]["baseline"] for one in shown.values()], GREY),
                "fcfs at its best": ([one[BEST][key]["baseline"] for one in shown.values()], colour(0)),
                "liveserve": ([one[BEST][key]["liveserve"] for one in shown.values()], colour(1)),
            }
            for name, (values, shade) in lines.items():
                axes.plot(labels, [scale * value for value in values], "o-", color=shade, label=name)
            axes.set_xlabel("share of fcfs' highest load")
        half.set_ylabel("P50 TTFP (s)")
        tenth.set_yscale("log")
        tenth.set_ylabel("P90 TTFP (s)")
        smooth.set_ylabel("replies without a gap (%)")
        smooth.legend(frameon=False)


def residency(result: dict[str, Any]) -> list[str]:
    """Figures 8 and 17, right."""
    rows: list[list[str]] = []
    for system, one in result["residency"].items():
        cells: list[str] = []
        for name, scale, digits in (("in_use", 100, 1), ("long_s", 1, 1), ("answered", 1, 1)):
            ratio = f", {interval(one[f'{name} ratio'])}" if f"{name} ratio" in one else ""
            cells.append(f"{scale * one[name]:.{digits}f}{ratio}")
        rows.append([system, *cells])
    return rows_of("system | KV held (%) | long prompts take (s) | answered", rows)


def continuity(result: dict[str, Any]) -> list[str]:
    """Figure 18: over all windows."""
    rows: list[list[str]] = []
    for barge_in, systems in result["continuity"].items():
        for system, windows in systems.items():
            num_judged = sum(number for _, number, _ in windows)
            smooth = sum(number * share for _, number, share in windows) / num_judged
            rows.append([barge_in, system, f"{num_judged}", f"{100 * smooth:.0f}"])
    return rows_of("barge-in | system | replies | without a gap (%)", rows)


def draw_timelines(result: dict[str, Any], path: Path) -> None:
    """KV that requests hold, and replies without a gap, over time: Figures 8 and 17, left, and 18."""
    with page(path, 7.2, 2.9) as figure:
        held, smooth = figure.subplots(1, 2)
        for shade, (system, one) in zip(
            (GREY, colour(1), colour(0)), result["residency"].items(), strict=True
        ):
            seconds, shares = zip(*one["timeline"], strict=True)
            held.plot(seconds, [100 * share for share in shares], color=shade, label=system)
        held.set_ylabel("thinker's KV held by requests (%)")
        held.legend(frameon=False)
        for shade, (system, windows) in zip(
            (GREY, colour(2), colour(0)), result["continuity"]["p_bi 0.5"].items(), strict=True
        ):
            begins, _, shares = zip(*windows, strict=True)
            smooth.plot(begins, [100 * share for share in shares], "o-", color=shade, label=system)
        smooth.set_ylabel("replies without a gap (%)")
        smooth.legend(frameon=False)
        for axes in (held, smooth):
            axes.set_xlabel("time (s)")


def distribution(result: dict[str, Any]) -> list[str]:
    """Figure 11, left, and Figure 15, right."""
    rows = [
        [
            system,
            *(f"{one[share]:.2f}" for share in ("p50", "p90", "p95")),
            *(f"{result['reply'][system][f'{stage}_done_s']:.1f}" for stage in ("thinker", "talker")),
            f"{result['reply'][system]['audio_s']:.1f}",
        ]
        for system, one in result["distribution"].items()
    ]
    head = (
        "system | TTFP P50 (s) | P90 (s) | P95 (s) | a reply alone: its text is made after (s) | "
        "its sound (s) | it is heard for (s)"
    )
    return rows_of(head, rows)


def pacing(points: dict[str, Any]) -> list[str]:
    """Figure 15, left: of all loads with half of the replies cut."""
    rows = [
        [
            name.split("c = ")[1].split(",")[0],
            both(systems, "ttfp_s.p90", 1000),
            interval(systems["liveserve"]["ttfp_s.p90 ratio"]),
            both(systems, "later.p90", 1000),
            interval(systems["liveserve"]["later.p90 ratio"]),
            both(systems, "rtf.p90", 1, 2),
        ]
        for name, systems in points.items()
        if name.endswith("p_bi 0.5")
    ]
    head = "c | P90 TTFP (ms) | ratio (95 %) | later P90 (ms) | ratio (95 %) | RTF P90"
    return rows_of(head, rows)


def systems_of(cases: dict[str, Any], num_dropped: int) -> list[str]:
    """A row for each system of each case, whose name begins with so many parts that all have."""
    rows: list[list[str]] = []
    for name, systems in cases.items():
        for at, (system, one) in enumerate(systems.items()):
            cells = ["" if at else ", ".join(name.split(", ")[num_dropped:]), system]
            cells += [f"{1000 * one[figure]:.0f}" for figure in ("ttfp_s.p50", "ttfp_s.p90")]
            cells += [interval(one["ttfp_s.p90 ratio"]) if at else "", f"{100 * one['continuity']:.0f}"]
            cells += [f"{one['effective_rps']:.3f}", interval(one["effective_rps ratio"]) if at else ""]
            cells += [f"{one['jct_s.p90']:.1f}", f"{one.get('reload_s', 0.0):.2f}"]
            rows.append([*cells, *(f"{100 * one[figure]:.0f}" for figure in ("cache_hit_share", TALKER))])
    head = (
        "load | system | TTFP P50 (ms) | P90 (ms) | ratio (95 %) | without a gap (%) | effective RPS | "
        "ratio (95 %) | E2E P90 (s) | reloads (s a run) | cache hits (%) | talker unheard (%)"
    )
    return rows_of(head, rows)


def breakdown(result: dict[str, Any]) -> list[str]:
    """Figure 16, right: of turns that wait for KV under the baseline."""
    rows: list[list[str]] = []
    for name, found in result.items():
        if not isinstance(found, dict) or "reloaded turns" not in found:
            continue
        turns = found["reloaded turns"]
        for system, which in (("fcfs", "base_"), ("liveserve", "")):
            text_s, reload_s = turns[f"{which}ttft_s"], turns[f"{which}reload_s"]
            cells = [f"{1000 * s:.1f}" for s in (reload_s, text_s - reload_s, text_s)]
            rows.append([name if which else "", system, *cells])
    return rows_of("memory and link | system | KV from the host (ms) | all else (ms) | first text (ms)", rows)


def figure_tables(result: dict[str, Any]) -> dict[str, list[str]]:
    return {
        "distribution": distribution(result),
        "interactive": systems_of(result["ablation"], 3),
        "short": systems_of(result["short"], 4),
        "ming": reach(reached(result["ming"], {})),
    }


def draw_figures(result: dict[str, Any], path: Path) -> None:
    """Figure 11, left: shares of turns by their first audio; Figure 15, right: one reply over time."""
    with page(path, 7.2, 2.9) as figure:
        first, made = figure.subplots(1, 2)
        for shade, (system, one) in zip((GREY, colour(1)), result["distribution"].items(), strict=True):
            shares = [100 * (at + 1) / one["turns"] for at in range(one["turns"])]
            first.step(one["ttfp_s"], shares, where="post", color=shade, label=system)
        for shade, (system, one) in zip((GREY, colour(1)), result["reply"].items(), strict=True):
            made.plot(one["at_s"], [100 * share for share in one["code2wav"]], color=shade, label=system)
        heard = result["reply"]["fcfs"]
        made.plot(heard["at_s"], [100 * share for share in heard["playback"]], color=colour(2), label="heard")
        first.set_xlabel("first audio (s), c = 8")
        first.set_ylabel("turns (%)")
        made.set_xlabel("time since the turn's end (s)")
        made.set_ylabel("sound of a reply of 66 s (%)")
        for axes in (first, made):
            axes.legend(frameon=False)


def main() -> None:
    measured, timelines = read("liveserve"), read("liveserve-timelines")
    calibrated, frontier = read("liveserve-paper"), read("liveserve-frontier")
    figures = read("liveserve-figures")
    found = reached(calibrated, frontier)
    draw(measured, PAGE.parent / "liveserve-loads.png")
    draw_reach(found, PAGE.parent / "liveserve-reach.png")
    draw_timelines(timelines, PAGE.parent / "liveserve-timelines.png")
    draw_figures(figures, PAGE.parent / "liveserve-figures.png")
    text = PAGE.read_text()
    for name, lines in {
        "regimes": regimes(measured, calibrated, read("liveserve-models")),
        "loads": loads(measured),
        "held": holds(measured),
        "clairvoyant": clairvoyant(read("liveserve-clairvoyant")),
        "ablation": ablation(measured),
        "memory": memory(read("liveserve-memory")),
        "memory-parts": memory_parts(read("liveserve-memory")),
        "paper": paper(calibrated),
        "thread": paper(read("liveserve-thread")),
        "reach": reach(found),
        "cuts": cuts(frontier),
        "engine": engine(read("liveserve-engine")),
        "engine-memory": memory(read("liveserve-engine-memory")),
        "residency": residency(timelines),
        "continuity": continuity(timelines),
        "pacing": pacing(frontier | calibrated),
        "breakdown": breakdown(read("liveserve-memory")),
        **figure_tables(figures),
    }.items():
        text = filled(text, name, "\n".join(lines))
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
