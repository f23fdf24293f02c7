"""How a request wants its tokens drawn, laid over the checkpoint's own way."""

from __future__ import annotations

from dataclasses import dataclass, fields

import msgspec

from antiphon.core.ids import content_key
from antiphon.core.model_info import ModelInfo
from antiphon.core.sampling import MAX_SEED, Guide, Sampling


@dataclass(frozen=True, slots=True)
class Wishes:
    """None keeps the checkpoint's own value. All but the seed concern the text; the voice stays as it is."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: bool | None = None
    bias: tuple[tuple[int, float], ...] | None = None
    max_tokens: int | None = None
    """More than the checkpoint's own value raises that; `ResponseRequested.max_tokens` bounds the reply."""
    guide: Guide | None = None


OF_THE_TEXT = tuple(field.name for field in fields(Wishes) if field.name not in ("seed", "max_tokens"))
"""Fields of Sampling."""


def sampling_of(wishes: Wishes, info: ModelInfo, response: str, choice: int = 0) -> dict[str, Sampling]:
    """Sampling per stage where something was wished; empty leaves all to the engine.

    A seed holds for every stage, so that a reply can be had again, its sound included. Each further `choice`
    of a request has the next one.
    """
    text = {name: value for name in OF_THE_TEXT if (value := getattr(wishes, name)) is not None}
    seed = content_key(response.encode())
    if wishes.seed is not None:
        seed = (wishes.seed + choice + MAX_SEED) % (2 * MAX_SEED) - MAX_SEED
    chosen: dict[str, Sampling] = {}
    for index, (stage, own) in enumerate(info.sampling.items()):
        changes = text if index == 0 else {}
        if index == 0 and wishes.max_tokens is not None and wishes.max_tokens > own.max_tokens:
            changes = changes | {"max_tokens": wishes.max_tokens}
        if changes or wishes.seed is not None:
            chosen[stage] = msgspec.structs.replace(own, **changes, seed=seed)
    return chosen
