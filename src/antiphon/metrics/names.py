"""Every metric's name: what a server counts (Metric) and what a run's log shows (Figure).

The unit is the last word of the name; a count carries none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Metric(StrEnum):
    """Names as they appear in logs, Prometheus, bench JSON and the console.

    Per-stage metrics are written `name{stage="…"}`, those of units `name{unit="…"}`, those of policies with
    three labels, those of copies `name{stage="…",copy="…"}`; `of`, `of_unit`, `of_policy` and `of_copy` make
    these forms.
    """

    SESSIONS = "antiphon_sessions"
    RESPONSES_OPEN = "antiphon_responses_open"
    REQUESTS_WAITING = "antiphon_requests_waiting"
    REQUESTS_RUNNING = "antiphon_requests_running"
    KV_BLOCKS = "antiphon_kv_blocks"
    KV_BLOCKS_FREE = "antiphon_kv_blocks_free"
    KV_BLOCKS_CACHED = "antiphon_kv_blocks_cached"
    KV_BLOCKS_IDLE = "antiphon_kv_blocks_idle"
    KV_BLOCKS_EVICTED = "antiphon_kv_blocks_evicted_total"
    KV_BLOCKS_HOST = "antiphon_kv_blocks_host"
    KV_BLOCKS_WRITTEN = "antiphon_kv_blocks_written_total"
    KV_BLOCKS_RELOADED = "antiphon_kv_blocks_reloaded_total"
    KV_BLOCKS_SWAPPED = "antiphon_kv_blocks_swapped_total"
    KV_BLOCKS_MOVED = "antiphon_kv_blocks_moved_total"
    KV_COPIES_FAILED = "antiphon_kv_blocks_copy_failed_total"
    SURPLUS_TOKENS = "antiphon_surplus_tokens_total"
    PREEMPTIONS = "antiphon_preemptions_total"
    STEPS = "antiphon_steps_total"
    STEPS_CUT = "antiphon_steps_cut_total"
    STEPS_UNTIMED = "antiphon_steps_times_unknown_total"
    STEP_SECONDS = "antiphon_step_seconds_total"
    EMITTED = "antiphon_emitted_tokens_total"
    RELOAD_SECONDS = "antiphon_reload_seconds_total"
    RESUME_SECONDS = "antiphon_resume_seconds_total"
    PREPARED_TOKENS = "antiphon_prepared_tokens_total"
    PREPARED_USED = "antiphon_prepared_used_tokens_total"
    PREPARED_WASTED = "antiphon_prepared_wasted_tokens_total"

    POLICY = "antiphon_policy_total"
    POLICY_INFO = "antiphon_policy_info"

    UNIT_UP = "antiphon_unit_up"
    UNIT_RESTARTS = "antiphon_unit_restarts_total"
    RECORD_STOPPED = "antiphon_record_stopped"

    def of(self, stage: str) -> str:
        return f'{self.value}{{stage="{stage}"}}'

    def of_copy(self, stage: str, purpose: str) -> str:
        return self.labelled({"stage": stage, "copy": purpose})

    def of_policy(self, unit: str, policy: str, event: str) -> str:
        return self.labelled({"unit": unit, "policy": policy, "event": event})

    def labelled(self, labels: dict[str, str]) -> str:
        """Values are as Prometheus has them in quotes: policies are people's, and may say anything."""
        return f"{self.value}{{{','.join(f'{name}={quoted(value)}' for name, value in labels.items())}}}"

    def of_unit(self, unit: str) -> str:
        return f'{self.value}{{unit="{unit}"}}'


LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
ESCAPED = str.maketrans(ESCAPES)


def quoted(value: str) -> str:
    return f'"{value.translate(ESCAPED)}"'


def parse_key(key: str) -> tuple[str, dict[str, str]]:
    """`name{a="x",b="y"}` -> name and labels."""
    name, _, labels = key.partition("{")
    plain = {escaped: letter for letter, escaped in ESCAPES.items()}
    found = LABEL.findall(labels)
    return name, {each: re.sub(r"\\.", lambda hit: plain.get(hit[0], hit[0]), value) for each, value in found}


DESCRIPTIONS: dict[str, str] = {
    Metric.SESSIONS: "Conversations the engine knows.",
    Metric.RESPONSES_OPEN: "Responses without their terminal event yet.",
    Metric.REQUESTS_WAITING: "Requests of a stage without a row.",
    Metric.REQUESTS_RUNNING: "Requests of a stage with a row.",
    Metric.KV_BLOCKS: "Blocks per KV group of a stage.",
    Metric.KV_BLOCKS_FREE: "Blocks that no session holds; those that are cache included.",
    Metric.KV_BLOCKS_CACHED: "Blocks that closed sessions left as cache, until their room is needed.",
    Metric.KV_BLOCKS_IDLE: "Blocks that hold the past of sessions without a running response.",
    Metric.KV_BLOCKS_EVICTED: "Blocks of resting sessions that left the device.",
    Metric.KV_BLOCKS_HOST: "Blocks per KV group that the host tier holds.",
    Metric.KV_BLOCKS_WRITTEN: "Blocks copied from the device to the host.",
    Metric.KV_BLOCKS_RELOADED: "Blocks copied back from the host for requests that joined.",
    Metric.KV_BLOCKS_SWAPPED: "Blocks preloaded from the host that left again before a request read them.",
    Metric.KV_BLOCKS_MOVED: "Blocks brought from units that read prompts to those that write the replies.",
    Metric.KV_COPIES_FAILED: "Blocks of copies that broke off, by what these were for: to the host (store), "
    "back from it for a request that waits (load) or for a turn that is coming (preload), or from the unit "
    "that read the prompt (move). What was to be brought is computed anew.",
    Metric.SURPLUS_TOKENS: "Tokens computed for requests that had already ended or lost their row.",
    Metric.PREEMPTIONS: "Times that a request lost its row to make room, and had to compute again.",
    Metric.STEPS: "Steps a stage has run.",
    Metric.STEPS_CUT: "Steps that read less of prompts than step_tokens allows, for the replies beside them.",
    Metric.STEPS_UNTIMED: "Steps that read prompts beside replies before a profile or enough reports told "
    "their time: their prompts grow from what was reported.",
    Metric.STEP_SECONDS: "Seconds a stage's executor spent in steps.",
    Metric.EMITTED: "Tokens (text, or codec frames) a stage has emitted, surplus included.",
    Metric.RELOAD_SECONDS: "Seconds that responses waited for KV copies before their first token.",
    Metric.RESUME_SECONDS: "Seconds that preempted responses waited for KV copies before they went on.",
    Metric.PREPARED_TOKENS: "Prompt tokens computed before a reply was asked for, on advisories of turns.",
    Metric.PREPARED_USED: "Of them, those that the turn's prompt found.",
    Metric.PREPARED_WASTED: "Of them, those that it did not find, or that no turn came for.",
    Metric.POLICY: "What policies counted and what was counted of them (raised, nonsense, slow, suspended, "
    "stalled, refused, wake_in_past; of observed ones whether their decisions agreed with the baseline's or "
    "differed, such as step_differed); the unit of decisions among several is all of them.",
    Metric.POLICY_INFO: "1 while a policy takes a decision of a unit, 0 while it is suspended or only "
    "observed.",
    Metric.UNIT_UP: "1 while a unit in a process of its own is there, else 0.",
    Metric.UNIT_RESTARTS: "Times that the process of a unit was started again.",
    Metric.RECORD_STOPPED: "1 once the record that `serve --record` writes could not be continued, else 0.",
}
"""What each figure means, as Prometheus and the docs show it."""


class Figure(StrEnum):
    """Figures of a run, as tables, JSON, docs and the console call them.

    A key is the name alone, `name.p90` for a distribution (SUFFIXES), or `name{stage="talker"}` for a figure
    with a label; FIGURES says which, and what it means.
    """

    TTFP_S = "ttfp_s"
    TURN_LATENCY_S = "turn_latency_s"
    TTFT_S = "ttft_s"
    TRANSCRIPT_TTFT_S = "transcript_ttft_s"
    TPOT_S = "tpot_s"
    JCT_S = "jct_s"
    MAKESPAN_S = "makespan_s"
    NORMALISED_LATENCY_S = "normalised_latency_s"
    RTF = "rtf"
    AUDIO_RTF = "audio_rtf"
    BEST_EFFORT_TTFT_S = "best_effort_ttft_s"
    BEST_EFFORT_TPOT_S = "best_effort_tpot_s"
    BEST_EFFORT_JCT_S = "best_effort_jct_s"
    BEST_EFFORT_NORMALISED_LATENCY_S = "best_effort_normalised_latency_s"

    CONTINUITY = "continuity"
    STALLS = "stalls"
    STALL_S = "stall_s"
    STALLS_PER_MINUTE = "stalls_per_minute"
    FALSE_STOPS = "false_stops"
    PREMATURE_REPLIES = "premature_replies"

    WINDOW_S = "window_s"
    OFFERED_RPS = "offered_rps"
    COMPLETED_RPS = "completed_rps"
    USEFUL_RPS = "useful_rps"
    TOKENS_PER_S = "tokens_per_s"
    BEST_EFFORT_TOKENS_PER_S = "best_effort_tokens_per_s"
    BEST_EFFORT_PREFILL_TOKENS_PER_S = "best_effort_prefill_tokens_per_s"
    SLO_ATTAINMENT = "slo_attainment"

    WASTE_AUDIO_S = "waste_audio_s"
    WASTE_RATIO = "waste_ratio"
    WASTE_TOKENS = "waste_tokens"
    WASTE_TOKEN_RATIO = "waste_token_ratio"
    WASTE_DEVICE_S = "waste_device_s"
    SURPLUS_TOKENS = "surplus_tokens"
    PREEMPTIONS = "preemptions"

    QOS = "qos"
    EFFECTIVE_TOKENS_PER_S = "effective_tokens_per_s"
    STREAMED_TOKENS_PER_S = "streamed_tokens_per_s"
    REBUFFER_S = "rebuffer_s"

    CACHED_SHARE = "cached_share"
    CACHE_HIT_SHARE = "cache_hit_share"
    RELOAD_S = "reload_s"
    RESUME_S = "resume_s"
    LOAD_IMBALANCE = "load_imbalance"
    UTILISATION = "utilisation"

    SPAN_S = "span_s"
    SESSIONS = "sessions"
    PLACE_WAIT_S = "place_wait_s"
    UNPLACED_SESSIONS = "unplaced_sessions"
    REFUSED_SESSIONS = "refused_sessions"
    BROKEN_SESSIONS = "broken_sessions"
    TURNS = "turns"
    COMPLETED_TURNS = "completed_turns"
    UNANSWERED_TURNS = "unanswered_turns"
    RESPONSES = "responses"
    ERRORS = "errors"
    CLIENT_CORES = "client_cores"
    CLIENT_LAG_S = "client_lag_s"

    def at(self, suffix: str) -> str:
        """The key of one figure of a distribution: "mean" or a percentile."""
        return f"{self.value}.{suffix}"

    def of(self, value: str) -> str:
        """The key of a labelled figure, for one value of its label."""
        return f'{self.value}{{{FIGURES[self].label}="{value}"}}'


SUFFIXES = ("mean", "p50", "p90", "p95", "p99")
"""What is given of every distribution."""


@dataclass(frozen=True, slots=True)
class FigureInfo:
    """What a figure means.

    unit             s, tokens/s, share (0..1), count, ...; for people, the name carries it already
    better           which way is better; None: neither
    is_distribution  given as mean and percentiles
    label            name of its label
    """

    text: str
    unit: str
    better: Literal["lower", "higher"] | None = None
    is_distribution: bool = False
    label: str | None = None


def _spread(text: str, unit: str = "s", better: Literal["lower", "higher"] | None = "lower") -> FigureInfo:
    return FigureInfo(text, unit, better, is_distribution=True)


FIGURES: dict[Figure, FigureInfo] = {
    Figure.TTFP_S: _spread("From the last byte of a committed turn to the first audio."),
    Figure.TURN_LATENCY_S: _spread(
        "From the end of the voice itself to the first audio, end-pointing included."
    ),
    Figure.TTFT_S: _spread("From the end of the turn to the first text of a text reply."),
    Figure.TRANSCRIPT_TTFT_S: _spread("From the end of the turn to the first text of a spoken reply."),
    Figure.TPOT_S: _spread("Seconds per token after the first of a text reply."),
    Figure.JCT_S: _spread("From the end of the turn to the end of the response.", better=None),
    Figure.MAKESPAN_S: _spread("From a job's arrival to the end of its last call."),
    Figure.NORMALISED_LATENCY_S: _spread("Completion time of a text reply per token of it."),
    Figure.RTF: _spread("From the end of the turn to the last audio, per second of audio.", "s/s", None),
    Figure.AUDIO_RTF: _spread(
        "From the first audio to the last, per second of audio after the first.", "s/s", None
    ),
    Figure.BEST_EFFORT_TTFT_S: _spread("The first text of a best-effort reply, from the end of the turn."),
    Figure.BEST_EFFORT_TPOT_S: _spread("Seconds per token after the first of a best-effort reply."),
    Figure.BEST_EFFORT_JCT_S: _spread("From the end of a best-effort turn to the end of the response."),
    Figure.BEST_EFFORT_NORMALISED_LATENCY_S: _spread(
        "Completion time of a best-effort reply per token of it."
    ),
    Figure.CONTINUITY: FigureInfo("Spoken replies that played without a stall.", "share", "higher"),
    Figure.STALLS: FigureInfo(
        "Silences of the stall length or longer inside spoken replies.", "count", "lower"
    ),
    Figure.STALL_S: FigureInfo("Seconds of such silence.", "s", "lower"),
    Figure.STALLS_PER_MINUTE: FigureInfo("Stalls per minute of audio heard.", "1/min", "lower"),
    Figure.FALSE_STOPS: FigureInfo("Replies stopped by what was no barge-in.", "count", "lower"),
    Figure.PREMATURE_REPLIES: FigureInfo(
        "Replies that sounded before the voice had ended.", "count", "lower"
    ),
    Figure.WINDOW_S: FigureInfo("Length of the steady window that rates are counted over.", "s"),
    Figure.OFFERED_RPS: FigureInfo("Turns of the latency tier asked per second.", "1/s"),
    Figure.COMPLETED_RPS: FigureInfo("Turns of the latency tier completed per second.", "1/s", "higher"),
    Figure.USEFUL_RPS: FigureInfo("Highest offered load at which speech holds its bounds.", "1/s", "higher"),
    Figure.TOKENS_PER_S: FigureInfo("Tokens made per second.", "tokens/s", "higher", label="stage"),
    Figure.BEST_EFFORT_TOKENS_PER_S: FigureInfo(
        "Best-effort tokens written per second.", "tokens/s", "higher"
    ),
    Figure.BEST_EFFORT_PREFILL_TOKENS_PER_S: FigureInfo(
        "Best-effort prompt tokens computed per second.", "tokens/s", "higher"
    ),
    Figure.SLO_ATTAINMENT: FigureInfo("Turns of the latency tier that met their bounds.", "share", "higher"),
    Figure.WASTE_AUDIO_S: FigureInfo("Audio received and never heard.", "s", "lower"),
    Figure.WASTE_RATIO: FigureInfo("The same, of all audio received.", "share", "lower"),
    Figure.WASTE_TOKENS: FigureInfo(
        "Tokens of spoken replies never heard.", "tokens", "lower", label="stage"
    ),
    Figure.WASTE_TOKEN_RATIO: FigureInfo("The same, of all their tokens.", "share", "lower", label="stage"),
    Figure.WASTE_DEVICE_S: FigureInfo("Device seconds that went into them.", "s", "lower", label="stage"),
    Figure.SURPLUS_TOKENS: FigureInfo(
        "Tokens computed for requests that had ended or lost their row.", "tokens", "lower", label="stage"
    ),
    Figure.PREEMPTIONS: FigureInfo("Times that a request lost its row.", "count", "lower", label="stage"),
    Figure.QOS: FigureInfo("TokenFlow's quality of service of text that is read.", "tokens/s", "higher"),
    Figure.EFFECTIVE_TOKENS_PER_S: FigureInfo("Read tokens per second, by their use.", "tokens/s", "higher"),
    Figure.STREAMED_TOKENS_PER_S: FigureInfo(
        "Read tokens per second, all counted whole.", "tokens/s", "higher"
    ),
    Figure.REBUFFER_S: _spread("Seconds that a reader waited for tokens after the first."),
    Figure.CACHED_SHARE: _spread("Share of a prompt's tokens that was cached.", "share", "higher"),
    Figure.CACHE_HIT_SHARE: FigureInfo("Share of all prompts' tokens that was cached.", "share", "higher"),
    Figure.RELOAD_S: FigureInfo("Seconds that responses waited for KV copies, together.", "s", "lower"),
    Figure.RESUME_S: FigureInfo("Seconds that preempted ones waited for theirs, together.", "s", "lower"),
    Figure.LOAD_IMBALANCE: _spread("Highest over median load of the nodes.", "ratio"),
    Figure.UTILISATION: FigureInfo("Device seconds in steps per wall second.", "s/s", None, label="stage"),
    Figure.SPAN_S: FigureInfo("From the first event of the log to the last.", "s"),
    Figure.SESSIONS: FigureInfo("People and jobs that came to the server.", "count"),
    Figure.PLACE_WAIT_S: _spread("Seconds that sessions waited for a place, where the load bounds them."),
    Figure.UNPLACED_SESSIONS: FigureInfo("Sessions that still waited for a place at the end.", "count"),
    Figure.REFUSED_SESSIONS: FigureInfo("Of them, those that the server refused.", "count", "lower"),
    Figure.BROKEN_SESSIONS: FigureInfo("Of them, those that ended lost or failed.", "count", "lower"),
    Figure.TURNS: FigureInfo("Turns asked, jobs' calls included.", "count"),
    Figure.COMPLETED_TURNS: FigureInfo("Of them, those completed.", "count", "higher"),
    Figure.UNANSWERED_TURNS: FigureInfo(
        "Of them, those never completed though their session is over.", "count", "lower"
    ),
    Figure.RESPONSES: FigureInfo(
        "Responses by status; open: without an end in the log.", "count", label="status"
    ),
    Figure.ERRORS: FigureInfo(
        "Errors that clients saw; a cancel that came too late is none.", "count", "lower"
    ),
    Figure.CLIENT_CORES: FigureInfo("CPU seconds of the load generator per second.", "s/s", "lower"),
    Figure.CLIENT_LAG_S: FigureInfo("How late the load generator's event loop ran at worst.", "s", "lower"),
}
"""What each figure means."""

_KEY = re.compile(r'(?P<name>[a-z_]+)(?:\.(?P<suffix>\w+)|\{(?P<label>\w+)="(?P<value>[^"]*)"\})?')


def parse_figure(key: str) -> tuple[Figure, str | None]:
    """The figure of a key, and its suffix or label value. Raises ValueError for what is no key of a
    figure."""
    match = _KEY.fullmatch(key)
    if match is None or match["name"] not in set(Figure):
        raise ValueError(f"{key!r} names no figure; metrics.names.Figure lists them")
    figure = Figure(match["name"])
    info = FIGURES[figure]
    expected = (match["suffix"] in SUFFIXES) if info.is_distribution else match["suffix"] is None
    if not expected or match["label"] != info.label:
        raise ValueError(f"{key!r}: {figure} takes {_form(info)}")
    return figure, match["suffix"] or match["value"]


def _form(info: FigureInfo) -> str:
    if info.is_distribution:
        return "a suffix of " + ", ".join(SUFFIXES)
    return f'the label {{{info.label}="…"}}' if info.label else "neither suffix nor label"
