"""Every metric's name. The unit is the last word of the name; a count carries none."""

from __future__ import annotations

from enum import StrEnum


class Metric(StrEnum):
    """Names as they appear in logs, Prometheus, bench JSON and the console.

    Per-stage metrics are written `name{stage="…"}`; `of` makes that form.
    """

    SESSIONS = "antiphon_sessions"
    RESPONSES_OPEN = "antiphon_responses_open"
    REQUESTS_WAITING = "antiphon_requests_waiting"
    REQUESTS_RUNNING = "antiphon_requests_running"
    KV_BLOCKS = "antiphon_kv_blocks"
    KV_BLOCKS_FREE = "antiphon_kv_blocks_free"
    KV_BLOCKS_IDLE = "antiphon_kv_blocks_idle"
    SURPLUS_TOKENS = "antiphon_surplus_tokens_total"
    PREEMPTIONS = "antiphon_preemptions_total"
    STEPS = "antiphon_steps_total"
    STEP_SECONDS = "antiphon_step_seconds_total"
    EMITTED = "antiphon_emitted_tokens_total"

    def of(self, stage: str) -> str:
        return f'{self.value}{{stage="{stage}"}}'


DESCRIPTIONS: dict[str, str] = {
    Metric.SESSIONS: "Conversations the engine knows.",
    Metric.RESPONSES_OPEN: "Responses without their terminal event yet.",
    Metric.REQUESTS_WAITING: "Requests of a stage without a row.",
    Metric.REQUESTS_RUNNING: "Requests of a stage with a row.",
    Metric.KV_BLOCKS: "Blocks per KV group of a stage.",
    Metric.KV_BLOCKS_FREE: "Blocks that hold nothing.",
    Metric.KV_BLOCKS_IDLE: "Blocks that hold the past of sessions without a running response.",
    Metric.SURPLUS_TOKENS: "Tokens computed for requests that had already ended or lost their row.",
    Metric.PREEMPTIONS: "Times that a request lost its row to make room, and had to compute again.",
    Metric.STEPS: "Steps a stage has run.",
    Metric.STEP_SECONDS: "Seconds a stage's executor spent in steps.",
    Metric.EMITTED: "Tokens (text, or codec frames) a stage has emitted, surplus included.",
}
"""What each figure means, as Prometheus and the docs show it."""
