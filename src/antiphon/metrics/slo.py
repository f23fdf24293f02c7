"""What a run is asked to hold: bounds, who met them, and where it fell short, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from antiphon.metrics.continuity import GAP_S, is_smooth
from antiphon.metrics.latency import tpot_s, ttft_s
from antiphon.metrics.names import Figure
from antiphon.metrics.rows import ResponseRow, SessionRow, first_answers


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objectives.

    ttfp_p90_s  most P90 of ttfp_s (of turn_latency_s, where the server ends the turns itself)
    continuity  least share of replies that play without a stall; gap_s: the shortest silence that is one
    ttft_s      most P90 of ttft_s; tpot_s: most P90 of tpot_s

    continuity and gap_s are LiveServe's (§7.1, Figure 11), ttft_s and tpot_s OmniServe's for a 34B model
    (§5.1.2); no paper states a bound of the first audio, and 1 s is ours.
    """

    ttfp_p90_s: float = 1.0
    continuity: float = 0.95
    gap_s: float = GAP_S
    ttft_s: float = 2.0
    tpot_s: float = 0.2

    def misses(self, figures: Mapping[str, float]) -> list[str]:
        """What a run's figures miss, a sentence each; empty: all held. A figure that the run does not have is
        no miss, but responses that failed and turns without an answer are."""
        first = first_audio_p90(figures)
        bounds = [
            (first[0] if first else "", self.ttfp_p90_s),
            (Figure.TTFT_S.at("p90"), self.ttft_s),
            (Figure.TPOT_S.at("p90"), self.tpot_s),
        ]
        missed = [
            f"{key} is {figures[key]:.3g} s, over the bound of {bound:g} s"
            for key, bound in bounds
            if figures.get(key, 0.0) > bound
        ]
        continuity = figures.get(Figure.CONTINUITY)
        if continuity is not None and continuity < self.continuity:
            missed.append(f"continuity is {continuity:.1%}, under the bound of {self.continuity:.1%}")
        if not first and Figure.TTFT_S.at("p90") not in figures:
            missed.append("no turn was answered")
        return missed + lost_turns(figures)

    def speaks_well(self, figures: Mapping[str, float]) -> bool:
        """Whether a run has spoken replies and they hold both bounds of speech."""
        first = first_audio_p90(figures)
        return (
            first is not None
            and first[1] <= self.ttfp_p90_s
            and figures.get(Figure.CONTINUITY, 0.0) >= self.continuity
        )


def lost_turns(figures: Mapping[str, float]) -> list[str]:
    """What was asked and not served, a sentence each. A turn whose reply was stopped by what was no barge-in
    has a figure of its own (false_stops), and is none of these; nor is what the run's end cut off."""
    failed = figures.get(Figure.RESPONSES.of("failed"), 0.0)
    unanswered = figures.get(Figure.UNANSWERED_TURNS, 0.0) - figures.get(Figure.FALSE_STOPS, 0.0)
    lost = [f"responses that failed: {failed:.0f}"] if failed > 0 else []
    return lost + ([f"turns that were not answered: {unanswered:.0f}"] if unanswered > 0 else [])


def first_audio_p90(figures: Mapping[str, float]) -> tuple[str, float] | None:
    """P90 of ttfp_s, or of turn_latency_s where no turn was committed by the client: its key and its
    seconds."""
    for figure in (Figure.TTFP_S, Figure.TURN_LATENCY_S):
        key = figure.at("p90")
        if key in figures:
            return key, figures[key]
    return None


def is_attained(row: ResponseRow, slo: Slo) -> bool:
    """Whether the first answer to a turn came in time and went on in time.

    Spoken: first audio within slo.ttfp_p90_s (of the commit, or of the voice's end where the server ends
    turns) and no stall up to its end or its barge-in. Text: ttft_s and tpot_s within their bounds.
    """
    if not row.is_answer and not row.barged_in:
        return False
    if row.wants == "text":
        return all(s <= slo.ttft_s for s in ttft_s([row])) and all(s <= slo.tpot_s for s in tpot_s([row]))
    asked_s = row.turn_ended_s if row.manual else row.speech_end_s
    if row.first_audio_s is None or asked_s is None or row.first_audio_s - asked_s > slo.ttfp_p90_s:
        return False
    return all(gap < slo.gap_s for gap in row.gaps) if row.barged_in else is_smooth(row, slo.gap_s)


def slo_attainment(sessions: Iterable[SessionRow], rows: Iterable[ResponseRow], slo: Slo) -> float | None:
    """Share of the latency tier's turns whose first answer `is_attained`. OmniServe §5.1.2 for text; for
    speech by LiveServe's two measures. A turn that was never answered misses; left out are turns whose answer
    was still on its way when the run ended or stopped the session. None: no turn was asked."""
    answers = {(row.session, row.turn): row for row in first_answers(rows)}
    met: list[bool] = []
    for session in sessions:
        if session.tier != "latency":
            continue
        for turn in session.turns:
            answer = answers.get((session.session, turn.turn))
            is_over = answer is not None and (answer.status is not None or answer.barged_in)
            if turn.ended_s is not None and (is_over or session.reason in ("done", "lost", "failed")):
                met.append(answer is not None and is_attained(answer, slo))
    return sum(met) / len(met) if met else None
