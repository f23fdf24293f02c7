"""What was made and never heard. Only settled replies count: what a run's end cut off might have been
heard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.samples import increases

THINKER = "thinker"
TALKER = "talker"


def waste_audio_s(rows: Iterable[ResponseRow]) -> float | None:
    """Seconds of audio received and not heard. LiveServe §7.3 (generated but unheard). None: nothing came."""
    spoken = _spoken(rows)
    return (
        sum(row.received_s - row.heard_s for row in spoken) if any(row.received_s for row in spoken) else None
    )


def waste_ratio(rows: Iterable[ResponseRow]) -> float | None:
    """The same, as a share of all audio received."""
    spoken = _spoken(rows)
    received_s = sum(row.received_s for row in spoken)
    return sum(row.received_s - row.heard_s for row in spoken) / received_s if received_s else None


def unheard_share(row: ResponseRow) -> float:
    """Share of a spoken reply that was not heard, by its received audio. Without any audio: everything,
    unless it came to its end (a reply of one token is not spoken)."""
    if row.received_s:
        return 1 - row.heard_s / row.received_s
    return 0.0 if row.is_answer else 1.0


def waste_tokens(rows: Iterable[ResponseRow]) -> dict[str, float]:
    """Tokens by stage that nobody heard: each stage's tokens (usage) times the unheard share of the reply.

    The thinker's text is taken to be spoken at an even pace, so its share is the audio's; frames that a
    talker made and that were not sent any more are counted at the same share. LiveServe §7.3, Figure 16.
    Absent: a stage of which no usage speaks.
    """
    spoken = _spoken(rows)
    return {
        stage: sum(unheard_share(row) * count for row, count in counts)
        for stage, counts in _counts(spoken).items()
    }


def waste_token_ratio(rows: Iterable[ResponseRow]) -> dict[str, float]:
    """Wasted tokens by stage as a share of all its tokens for spoken replies: LiveServe's waste ratio."""
    spoken = _spoken(rows)
    wasted = waste_tokens(spoken)
    made = {stage: sum(count for _, count in counts) for stage, counts in _counts(spoken).items()}
    return {stage: wasted[stage] / made[stage] for stage in made if made[stage]}


def device_s_per_token(samples: Sequence[ServerSampled]) -> dict[str, float]:
    """Device seconds that a stage spent per token it emitted, from the first sample to the last. Replicas of
    a stage count together: `talker.1` is one of `talker`."""
    seconds = _by_stage(increases(samples, Metric.STEP_SECONDS))
    emitted = _by_stage(increases(samples, Metric.EMITTED))
    return {stage: seconds[stage] / emitted[stage] for stage in seconds if emitted.get(stage)}


def waste_device_s(wasted: Mapping[str, float], samples: Sequence[ServerSampled]) -> dict[str, float]:
    """Device seconds by stage that went into `wasted` tokens, at the run's mean cost of a token of that stage
    (its share of every prefill and of batching included)."""
    cost = device_s_per_token(samples)
    return {stage: count * cost[stage] for stage, count in wasted.items() if stage in cost}


def _by_stage(units: Mapping[str, float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for unit, value in units.items():
        stage = unit.partition(".")[0]
        sums[stage] = sums.get(stage, 0.0) + value
    return sums


def _spoken(rows: Iterable[ResponseRow]) -> list[ResponseRow]:
    return [row for row in rows if row.wants == "speech" and row.settled]


def _counts(rows: Iterable[ResponseRow]) -> dict[str, list[tuple[ResponseRow, int]]]:
    counts: dict[str, list[tuple[ResponseRow, int]]] = {}
    for row in rows:
        for stage, count in ((THINKER, row.output_text_tokens), (TALKER, row.output_audio_tokens)):
            if count is not None:
                counts.setdefault(stage, []).append((row, count))
    return counts
