"""What of a client's media the model takes."""

from __future__ import annotations

from antiphon.core.errors import ProtocolError
from antiphon.core.model_info import ModelInfo


def check_taken(kind: str, info: ModelInfo, at: str) -> None:
    """Raise ProtocolError unless the model takes media of this kind, "audio" or "image". at: the part that
    brings it."""
    if kind not in info.inputs:
        takes = " and ".join(("text", *info.inputs))
        raise ProtocolError(f"The model {info.name} takes {takes}: leave {kind} out.", param=f"{at}.type")
