"""What the past of a session saves, and what it costs to bring it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.samples import increases


def cached_share(rows: Iterable[ResponseRow]) -> list[float]:
    """Per response, the share of its prompt's tokens that was in the KV cache already."""
    return [cached / prompt for cached, prompt in _prompts(rows)]


def cache_hit_share(rows: Iterable[ResponseRow]) -> float | None:
    """The same over the tokens of all prompts. None: no usage speaks of cached tokens."""
    prompts = _prompts(rows)
    return sum(cached for cached, _ in prompts) / sum(prompt for _, prompt in prompts) if prompts else None


def reload_s(samples: Sequence[ServerSampled]) -> float | None:
    """Reload on the path: seconds that responses waited for KV copies before their first token, all together.
    LiveServe §7.3, Figure 16 right. None: the server does not export it."""
    waited = increases(samples, Metric.RELOAD_SECONDS)
    return sum(waited.values()) if waited else None


def _prompts(rows: Iterable[ResponseRow]) -> list[tuple[int, int]]:
    return [
        (row.cached_tokens, row.input_tokens)
        for row in rows
        if row.cached_tokens is not None and row.input_tokens
    ]
