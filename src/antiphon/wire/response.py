"""A response as clients see it: what was asked for, and the objects that `response.*` events carry."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.plans import CLIENT_CODES, NO_SPEECH, ResponseEnded, Usage
from antiphon.wire.config import SessionConfig
from antiphon.wire.effects import Payload
from antiphon.wire.input_settings import format_payload

CANCEL_REASONS = ("turn_detected", "client_cancelled")
INCOMPLETE_REASONS = ("max_output_tokens", "content_filter")


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """One response that was asked for. `conversation_id` None: it stays out of the conversation."""

    id: str
    item_id: str
    config: SessionConfig
    conversation_id: str | None
    metadata: dict[str, str] | None = field(default=None)


def response_object(spec: ResponseSpec, output: list[Payload], ended: ResponseEnded | None = None) -> Payload:
    """The response, in progress or as it ended."""
    config = spec.config
    return {
        "object": "realtime.response",
        "id": spec.id,
        "status": ended.status if ended else "in_progress",
        "status_details": status_details(ended) if ended else None,
        "output": output,
        "conversation_id": spec.conversation_id,
        "output_modalities": config.output_modalities,
        "max_output_tokens": config.max_output_tokens_shown,
        "audio": {"output": {"format": format_payload(config.output_format), "voice": config.voice}},
        "usage": usage_object(ended.usage) if ended else None,
        "metadata": spec.metadata,
    }


def status_details(ended: ResponseEnded) -> Payload | None:
    """Why a response ended; null when it was complete. Reasons outside the protocol's list become null, but
    that nobody spoke is told as an error's code."""
    if ended.status == "completed":
        return None
    if ended.status == "failed":
        kind = "invalid_request_error" if ended.reason in CLIENT_CODES else "server_error"
        error = {"type": kind, "code": ended.reason, "message": ended.message}
        return {"type": "failed", "error": error}
    if ended.reason == NO_SPEECH:
        return {"type": ended.status, "error": {"type": "invalid_request_error", "code": NO_SPEECH}}
    known = CANCEL_REASONS if ended.status == "cancelled" else INCOMPLETE_REASONS
    return {"type": ended.status, "reason": ended.reason if ended.reason in known else None}


def usage_object(usage: Usage) -> Payload:
    """Token counts, told apart by kind."""
    tokens_in = usage.input_text_tokens + usage.input_audio_tokens + usage.input_image_tokens
    tokens_out = usage.output_text_tokens + usage.output_audio_tokens
    return {
        "total_tokens": tokens_in + tokens_out,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "input_token_details": {
            "text_tokens": usage.input_text_tokens,
            "audio_tokens": usage.input_audio_tokens,
            "image_tokens": usage.input_image_tokens,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_details": {
                "text_tokens": usage.cached_tokens - usage.cached_audio_tokens - usage.cached_image_tokens,
                "audio_tokens": usage.cached_audio_tokens,
                "image_tokens": usage.cached_image_tokens,
            },
        },
        "output_token_details": {
            "text_tokens": usage.output_text_tokens,
            "audio_tokens": usage.output_audio_tokens,
        },
    }
