"""Prompts of a Qwen3-Omni checkpoint: the thinker's with its media, and what the talker is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from antiphon.core.errors import CheckpointError
from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.models.prompt import Prompter, keys_of_request, mixed
from antiphon.models.qwen3_omni.config import TALKER_HEADER, Qwen3OmniConfig, TokenIds
from antiphon.models.qwen3_omni.talker_prompt import talker_header, user_positions
from antiphon.models.qwen_media.media_spans import MediaSpans
from antiphon.models.vocabulary import Vocabulary, load_template, load_tokenizer


def load_prompter(path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
    """From a checkpoint's directory and its parsed config.json; raises CheckpointError."""
    known = Qwen3OmniConfig.from_dict(config)
    tokens = known.tokens
    tokenizer = load_tokenizer(path)
    template = load_template(path, tokenizer)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, known.thinker_vocab)
    check_roles(vocabulary, tokens)
    media = MediaSpans(path, tokens, known.positions_per_second)
    speak = partial(talker_prompt, tokens=tokens)
    return Prompter(vocabulary, template, media, max_prompt_tokens, speak)


def talker_prompt(thinker: StagePrompt, request: int, tokens: TokenIds) -> StagePrompt:
    """The user's turns, and nine positions that the reply's beginning fills in."""
    kept = user_positions(thinker.token_ids, tokens)
    ids = np.concatenate([thinker.token_ids[kept], talker_header(thinker.token_ids, tokens)])
    starts = np.searchsorted(kept, [span.start for span in thinker.spans]).tolist()
    spans = tuple(
        msgspec.structs.replace(span, start=start) for span, start in zip(thinker.spans, starts, strict=True)
    )
    gather = [np.arange(span.start, span.start + span.length) for span in thinker.spans]
    keys = np.concatenate([talker_keys(thinker)[kept], keys_of_request(request, TALKER_HEADER)])
    return StagePrompt(ids, keys, spans, len(kept), np.concatenate([NO_INTS, *gather]))


def talker_keys(thinker: StagePrompt) -> Ints:
    """Keys of the thinker's positions as the talker sees them.

    At media it sees the thinker's hidden state, which depends on all that came before, also on the turns that
    the talker is not shown. So the key does too.
    """
    keys = thinker.keys.copy()
    context, hashed = blake2b(digest_size=8), 0
    for span in thinker.spans:
        end = span.start + span.length
        context.update(thinker.keys[hashed : span.start].tobytes())
        hashed = span.start
        seed = int.from_bytes(context.digest(), "little")
        keys[span.start : end] = mixed(seed, thinker.keys[span.start : end])
    return keys


def check_roles(vocabulary: Vocabulary, tokens: TokenIds) -> None:
    """The talker finds the turns by the one token after <|im_start|>, and skips a header of three."""
    for role, token_id in (("system", tokens.system), ("user", tokens.user), ("assistant", tokens.assistant)):
        header = vocabulary.encode(role + "\n")
        if len(header) != 2 or header[0] != token_id:
            raise CheckpointError(
                f"tokenizer: {role!r} is not the one token {token_id} that config.json names"
            )
