"""What the talker is prompted with: the user's turns, and a header of nine positions. Free of torch.

The scheduler asks this before anything is computed: how long the talker's prompt is, which hidden states of
the thinker it needs, and which ids give its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.models.qwen3_omni.config import TokenIds
from antiphon.models.qwen_media.positions import MediumSpan

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """The talker's p positions: its part of the thinker's prompt, then the header.

    text_ids [p]   the id whose embedding each position shows; the last stands for the reply's first token
    media [m]      positions of the talker's prompt that show a hidden state of the thinker instead
    sources [m]    where those hidden states are, as positions of the thinker's prompt
    spans          images and videos the talker sees, for `mrope_positions(len(prompt), prompt.spans)`
    """

    text_ids: Ints
    media: Ints
    sources: Ints
    spans: tuple[MediumSpan, ...]

    def __len__(self) -> int:
        return len(self.text_ids)


def talker_prompt(
    prompt_ids: Sequence[int] | Ints, spans: Sequence[MediumSpan], tokens: TokenIds
) -> TalkerPrompt:
    """From the thinker's prompt, which ends with the header of the reply (<|im_start|> assistant newline).

    A turn reaches from one <|im_start|> to the next; the talker sees the user's. Its header shows the reply's
    header (3), four pads, the start of speech and the reply's first token.
    """
    ids = np.asarray(prompt_ids, np.int64)
    kept = user_positions(ids, tokens)
    media = np.flatnonzero(np.isin(ids[kept], tokens.media))
    place = {int(position): i for i, position in enumerate(kept)}
    seen = tuple(span.moved_to(place[span.start]) for span in spans if span.start in place)
    return TalkerPrompt(np.concatenate((ids[kept], talker_header(ids, tokens))), media, kept[media], seen)


def user_positions(ids: Ints, tokens: TokenIds) -> Ints:
    """Positions of the prompt that lie in a turn of the user, from its <|im_start|> up to the next."""
    starts = np.flatnonzero(ids == tokens.im_start)
    ends = np.append(starts[1:], len(ids))
    mine = [
        np.arange(a, b) for a, b in zip(starts, ends, strict=True) if b > a + 1 and ids[a + 1] == tokens.user
    ]
    return np.concatenate(mine) if mine else np.zeros(0, np.int64)


def talker_header(ids: Ints, tokens: TokenIds) -> Ints:
    """The nine ids after the user's turns: the reply's header (3), four pads, the start of speech, and a
    place for the reply's first token.
    """
    tail = np.array([tokens.tts_pad] * 4 + [tokens.tts_bos, tokens.tts_pad], np.int64)
    return np.concatenate((reply_header(ids, tokens), tail))


def reply_header(ids: Ints, tokens: TokenIds) -> Ints:
    """The three ids that open the reply: the last <|im_start|> assistant and what follows."""
    opens = np.flatnonzero((ids[:-1] == tokens.im_start) & (ids[1:] == tokens.assistant))
    if not len(opens) or opens[-1] + 3 > len(ids):
        raise ValueError("the prompt doesn't end with the header of an assistant's turn")
    return ids[opens[-1] : opens[-1] + 3]
