"""All figures of a run under their names, and what a sweep of runs over loads says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.metrics import continuity, latency, streaming, throughput, waste
from antiphon.metrics.names import SUFFIXES, Figure, Metric
from antiphon.metrics.rows import ResponseRow, Run, SessionRow, of_tier
from antiphon.metrics.samples import (
    cache_hit_share,
    cached_share,
    increases,
    load_imbalance,
    reload_s,
    resume_s,
    utilisation,
)
from antiphon.metrics.slo import Slo, slo_attainment
from antiphon.metrics.tokens import Window

__all__ = ["Slo", "figures", "spread", "useful_rps"]

Found = Iterator[tuple[str, float | None]]
"""Keys and figures; None is dropped."""


def figures(run: Run, slo: Slo = Slo()) -> dict[str, float]:
    """Every figure that the log holds, by key (`names.Figure`). What cannot be told from it is absent."""
    part = _Parts(run, slo)
    themes = part.latency, part.continuity, part.throughput, part.waste, part.streaming, part.server
    found = (pair for theme in (*themes, part.counts) for pair in theme())
    return {str(key): float(value) for key, value in found if value is not None}


def useful_rps(points: Sequence[Mapping[str, float]], slo: Slo = Slo()) -> float | None:
    """The highest offered_rps of a sweep at which spoken replies hold slo.continuity and slo.ttfp_p90_s:
    requests per second. LiveServe §7.1 (the highest offered load that meets the continuity SLO), with our
    bound of the first audio. None: at none of the loads."""
    loads = [
        point[Figure.OFFERED_RPS]
        for point in points
        if slo.speaks_well(point) and Figure.OFFERED_RPS in point
    ]
    return max(loads, default=None)


def spread(figure: Figure, values: Sequence[float]) -> Found:
    """Mean and percentiles (numpy's, linear between neighbours) of a distribution; nothing of an empty
    one."""
    if values:
        yield figure.at("mean"), float(np.mean(values))
        for suffix in SUFFIXES[1:]:
            yield figure.at(suffix), float(np.percentile(values, int(suffix[1:])))


def _labelled(figure: Figure, values: Mapping[str, float]) -> Found:
    for label, value in values.items():
        yield figure.of(label), value


@dataclass(frozen=True, slots=True)
class _Parts:
    """One run, and its figures by theme."""

    run: Run
    slo: Slo

    @property
    def rows(self) -> tuple[ResponseRow, ...]:
        return of_tier(self.run.responses, "latency")

    @property
    def best_effort(self) -> tuple[ResponseRow, ...]:
        return of_tier(self.run.responses, "best_effort")

    def latency(self) -> Found:
        yield from spread(Figure.TTFP_S, latency.ttfp_s(self.rows))
        yield from spread(Figure.TURN_LATENCY_S, latency.turn_latency_s(self.rows))
        yield from spread(Figure.TTFT_S, latency.ttft_s(self.rows))
        yield from spread(Figure.TRANSCRIPT_TTFT_S, latency.transcript_ttft_s(self.rows))
        yield from spread(Figure.TPOT_S, latency.tpot_s(self.rows))
        yield from spread(Figure.JCT_S, latency.jct_s(self.rows))
        yield from spread(Figure.MAKESPAN_S, latency.makespan_s(self.run.sessions))
        yield from spread(Figure.NORMALISED_LATENCY_S, latency.normalised_latency_s(self.rows))
        yield from spread(Figure.RTF, latency.rtf(self.rows))
        yield from spread(Figure.AUDIO_RTF, latency.audio_rtf(self.rows))
        yield from self._best_effort_latency()

    def _best_effort_latency(self) -> Found:
        rows = self.best_effort
        yield from spread(Figure.BEST_EFFORT_TTFT_S, latency.ttft_s(rows))
        yield from spread(Figure.BEST_EFFORT_TPOT_S, latency.tpot_s(rows))
        yield from spread(Figure.BEST_EFFORT_JCT_S, latency.jct_s(rows))
        yield from spread(Figure.BEST_EFFORT_NORMALISED_LATENCY_S, latency.normalised_latency_s(rows))

    def continuity(self) -> Found:
        rows, gap_s = self.rows, self.slo.gap_s
        yield Figure.CONTINUITY, continuity.continuity(rows, gap_s)
        yield Figure.STALLS, continuity.stalls(rows, gap_s)
        yield Figure.STALL_S, continuity.stall_s(rows, gap_s)
        yield Figure.STALLS_PER_MINUTE, continuity.stalls_per_minute(rows, gap_s)
        yield Figure.FALSE_STOPS, continuity.false_stops(rows)
        yield Figure.PREMATURE_REPLIES, continuity.premature_replies(rows)
        yield Figure.SLO_ATTAINMENT, slo_attainment(self.run.sessions, rows, self.slo)

    def throughput(self) -> Found:
        window = throughput.steady_window(self.run.sessions, self.run.last_s)
        if window is not None:
            yield Figure.WINDOW_S, window[1] - window[0]
            yield from self._rates(window)

    def _rates(self, window: Window) -> Found:
        people = [session for session in self.run.sessions if session.tier == "latency"]
        jobs = self.best_effort
        offered_rps = throughput.offered_rps(people, window)
        yield Figure.OFFERED_RPS, offered_rps
        if offered_rps is not None:
            yield Figure.COMPLETED_RPS, throughput.completed_rps(self.rows, window)
        yield from _labelled(Figure.TOKENS_PER_S, throughput.tokens_per_s(self.run.responses, window))
        yield Figure.BEST_EFFORT_TOKENS_PER_S, throughput.decode_tokens_per_s(jobs, window)
        yield Figure.BEST_EFFORT_PREFILL_TOKENS_PER_S, throughput.prefill_tokens_per_s(jobs, window)

    def waste(self) -> Found:
        wasted = waste.waste_tokens(self.rows)
        yield Figure.WASTE_AUDIO_S, waste.waste_audio_s(self.rows)
        yield Figure.WASTE_RATIO, waste.waste_ratio(self.rows)
        yield from _labelled(Figure.WASTE_TOKENS, wasted)
        yield from _labelled(Figure.WASTE_TOKEN_RATIO, waste.waste_token_ratio(self.rows))
        yield from _labelled(Figure.WASTE_DEVICE_S, waste.waste_device_s(wasted, self.run.samples))

    def streaming(self) -> Found:
        read = streaming.readings(self.rows)
        yield Figure.QOS, streaming.qos(read)
        yield Figure.EFFECTIVE_TOKENS_PER_S, streaming.effective_tokens_per_s(read)
        yield Figure.STREAMED_TOKENS_PER_S, streaming.streamed_tokens_per_s(read)
        yield from spread(Figure.REBUFFER_S, [streaming.rebuffer_s(reading) for reading in read])

    def server(self) -> Found:
        samples = self.run.samples
        yield from spread(Figure.CACHED_SHARE, cached_share(self.run.responses))
        yield Figure.CACHE_HIT_SHARE, cache_hit_share(self.run.responses)
        yield Figure.RELOAD_S, reload_s(samples)
        yield Figure.RESUME_S, resume_s(samples)
        yield from spread(Figure.LOAD_IMBALANCE, load_imbalance(samples))
        yield from _labelled(Figure.UTILISATION, utilisation(samples))
        yield from _labelled(Figure.SURPLUS_TOKENS, increases(samples, Metric.SURPLUS_TOKENS))
        yield from _labelled(Figure.PREEMPTIONS, increases(samples, Metric.PREEMPTIONS))

    def counts(self) -> Found:
        sessions = self.run.sessions
        yield Figure.SPAN_S, self.run.span_s
        yield Figure.SESSIONS, len(sessions)
        yield from self._places()
        yield Figure.REFUSED_SESSIONS, sum(session.refused is not None for session in sessions)
        yield Figure.BROKEN_SESSIONS, _broken(sessions)
        yield Figure.TURNS, len(throughput.offered_times(sessions))
        yield Figure.COMPLETED_TURNS, len(throughput.completion_times(self.run.responses))
        yield Figure.UNANSWERED_TURNS, throughput.unanswered_turns(sessions, self.run.responses)
        yield from _labelled(Figure.RESPONSES, Counter(row.status or "open" for row in self.run.responses))
        yield Figure.ERRORS, len(self.run.errors)
        yield from self._client()

    def _places(self) -> Found:
        """Of a load with a bound on sessions. Those that wait at the end have waited so long at least."""
        waits_s = [session.waited_s for session in self.run.sessions if session.waited_s is not None]
        waits_s += self.run.queued_s
        if waits_s:
            yield from spread(Figure.PLACE_WAIT_S, waits_s)
            yield Figure.UNPLACED_SESSIONS, len(self.run.queued_s)

    def _client(self) -> Found:
        samples = self.run.client_samples
        if samples:
            yield Figure.CLIENT_LAG_S, max(sample.lag_s for sample in samples)
        if samples and samples[-1].t_s > samples[0].t_s:
            cpu_s = samples[-1].cpu_s - samples[0].cpu_s
            yield Figure.CLIENT_CORES, cpu_s / (samples[-1].t_s - samples[0].t_s)


def _broken(sessions: Sequence[SessionRow]) -> int:
    return sum(session.reason in ("lost", "failed") for session in sessions)
