"""What happens to a conversation that outgrows the model: `session.truncation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from antiphon.core.errors import ProtocolError
from antiphon.wire.client_events import Strict
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.parsing import converted

AT = "session.truncation"
AUTO_RETENTION = 0.8
"""Room for a reply, and for some turns before the oldest messages go again."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """`retention`: the share of the context that is kept when it overflows; None: the response fails."""

    kind: Literal["auto", "disabled", "retention_ratio"] = "auto"
    retention: float | None = AUTO_RETENTION

    def payload(self) -> Payload | str:
        if self.kind != "retention_ratio":
            return self.kind
        return {"type": self.kind, "retention_ratio": self.retention}


class RatioIn(Strict, frozen=True, kw_only=True):
    """An object that asks for a ratio. `token_limits` is known, and refused."""

    type: str
    retention_ratio: float
    token_limits: Any = None


AUTO = Truncation()


def read_truncation(value: Any) -> Truncation:
    """What a client asks for; null is the default. Raises ProtocolError naming the field."""
    if value is None or value == "auto":
        return AUTO
    if value == "disabled":
        return Truncation("disabled", None)
    if not isinstance(value, dict) or value.get("type") != "retention_ratio":  # pyright: ignore
        raise ProtocolError(
            f"truncation is 'auto', 'disabled' or of type retention_ratio; got {shown(value)}.",  # pyright: ignore
            param=AT,
        )
    asked = converted(value, RatioIn, AT)  # pyright: ignore[reportUnknownArgumentType]
    if not 0.0 < asked.retention_ratio <= 1.0:
        raise ProtocolError(
            f"retention_ratio is above 0 and at most 1; got {shown(asked.retention_ratio)}.",
            param=f"{AT}.retention_ratio",
        )
    if asked.token_limits is not None:
        raise ProtocolError(
            "token_limits is not supported by this version: the limit is the model's context.",
            param=f"{AT}.token_limits",
        )
    return Truncation("retention_ratio", asked.retention_ratio)
