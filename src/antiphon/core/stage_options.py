"""What an operator chooses for one stage, or one edge, where it differs from the choice for all."""

from __future__ import annotations

import msgspec

from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling


class SamplingDefaults(msgspec.Struct, frozen=True):
    """How a stage draws where a request says nothing; None leaves the checkpoint's own value. The `Sampling`
    over which they are laid checks them."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def over(self, sampling: Sampling) -> Sampling:
        """Raises ConfigError for a value that can't be."""
        return msgspec.structs.replace(sampling, **_chosen(self))


class StageOptions(msgspec.Struct, frozen=True):
    """Sizes of each unit of a stage; None is what EngineOptions says for all stages."""

    max_rows: int | None = None
    step_rows: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    step_tokens: int | None = None
    sampling: SamplingDefaults = SamplingDefaults()

    @property
    def sizes(self) -> dict[str, int]:
        """Those that were chosen, by the names they have in EngineOptions."""
        return {name: value for name, value in _chosen(self).items() if name != "sampling"}


class EdgeOptions(msgspec.Struct, frozen=True):
    """How many units a stage wants together from the one before it, and how many that may be ahead; None is
    what the graph says.

    Raises ConfigError for less than one.
    """

    source: str
    target: str
    first_chunk: int | None = None
    chunk: int | None = None
    credit: int | None = None

    def __post_init__(self) -> None:
        for name in ("first_chunk", "chunk", "credit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(
                    f"edge {self.source} -> {self.target}: {name} is {value}; it must be 1 or more"
                )

    @property
    def chosen(self) -> dict[str, int]:
        """Those that were chosen, by the names they have in an Edge."""
        return {name: value for name, value in _chosen(self).items() if name not in ("source", "target")}


def _chosen(options: msgspec.Struct) -> dict[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
