"""Every metric's name. The unit is the last word of the name; a count carries none."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """Names as they appear in logs, Prometheus, bench JSON and the console.

    Per-stage metrics are written `name{stage="…"}`; `of` makes that form.
    """

    SESSIONS = "antiphon_sessions"
    """Conversations the engine knows."""
    RESPONSES_OPEN = "antiphon_responses_open"
    """Responses without their terminal event yet."""
    REQUESTS_WAITING = "antiphon_requests_waiting"
    """Requests of a stage without a row."""
    REQUESTS_RUNNING = "antiphon_requests_running"
    """Requests of a stage with a row."""
    KV_BLOCKS = "antiphon_kv_blocks"
    """Blocks per KV group of a stage."""
    KV_BLOCKS_FREE = "antiphon_kv_blocks_free"
    """Blocks that hold nothing."""
    KV_BLOCKS_IDLE = "antiphon_kv_blocks_idle"
    """Blocks that hold the past of sessions without a running response."""
    SURPLUS_TOKENS = "antiphon_surplus_tokens_total"
    """Tokens computed for requests that had already ended."""
    STEPS = "antiphon_steps_total"
    """Steps a stage has run."""
    STEP_SECONDS = "antiphon_step_seconds_total"
    """Seconds a stage's executor spent in steps."""
    EMITTED = "antiphon_emitted_tokens_total"
    """Tokens (text, or codec frames) a stage has emitted, surplus included."""

    def of(self, stage: str) -> str:
        return f'{self.value}{{stage="{stage}"}}'
