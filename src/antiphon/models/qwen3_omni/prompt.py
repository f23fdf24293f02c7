"""From a conversation record to the token ids of every stage, in the checkpoint's own chat template.

What a person typed is always ordinary text: only the template writes special tokens. A reply enters as the
exact ids it was made of. This room must not know the engine, the wire, or what media look like inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from antiphon.core.conversation import TextPart, TokensPart, media_of
from antiphon.core.errors import AntiphonError, CheckpointError, LimitExceeded, ProtocolError
from antiphon.core.facts import NO_INTS, Ints, PromptFailed, PromptReady, Span, StagePrompt
from antiphon.core.plans import RenderPrompt
from antiphon.models.qwen3_omni.config import TALKER_HEADER, Qwen3OmniConfig, TokenIds
from antiphon.models.qwen3_omni.media_spans import MediaSpans
from antiphon.models.qwen3_omni.messages import (
    SLOT_PATTERN,
    Guard,
    Message,
    Template,
    check_items,
    to_messages,
    to_tools,
    tool_name,
)
from antiphon.models.qwen3_omni.talker_prompt import talker_header, user_positions

CALL_TOKEN = "<tool_call>"

_MAX_CACHED_CHARS = 2048
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CONTENT_BIT = np.uint64(1 << 61)
_REQUEST_SEED = 1 << 63


class Prompter:
    """Renders prompts. Pure: no state but a bounded cache of tokenised text."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: Template,
        tokens: TokenIds,
        media: MediaSpans,
        max_prompt_tokens: int,
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._tokens = tokens
        self._media = media
        self._max_prompt_tokens = max_prompt_tokens

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        """Every AR stage's prompt. Whatever a client may have got wrong comes back as PromptFailed."""
        try:
            forced = self._forced(order)
            thinker = self._thinker(order, forced)
        except LimitExceeded as error:
            return PromptFailed(order.request, str(error), "context_length_exceeded")
        except AntiphonError as error:
            return PromptFailed(order.request, str(error))
        prompts = {"thinker": thinker}
        if order.speech:
            prompts["talker"] = talker_prompt(thinker, self._tokens, order.request)
        return PromptReady(order.request, prompts, forced)

    def _forced(self, order: RenderPrompt) -> tuple[int, ...]:
        """How a reply that has to call a tool begins; nothing is drawn of it. Raises ProtocolError."""
        if not order.tools or order.tool_choice in ("auto", "none"):
            return ()
        call = self._vocabulary.special(CALL_TOKEN)
        if call is None:
            raise ProtocolError(f"this model cannot be made to call a tool: it has no token {CALL_TOKEN}")
        if order.tool_choice == "required":
            return (call, *self._vocabulary.encode("\n"))
        name = json.dumps(order.tool_choice, ensure_ascii=False)
        return (call, *self._vocabulary.encode(f'\n{{"name": {name}, "arguments":'))

    def _thinker(self, order: RenderPrompt, forced: tuple[int, ...]) -> StagePrompt:
        items = order.items
        check_items(items)
        messages, parts = to_messages(items, self._vocabulary.guard)
        spans = [self._media.measure(part) for part in media_of(items)]
        known = sum(span.length for span in spans)
        known += sum(len(part.token_ids) for part in parts if isinstance(part, TokensPart))
        self._check_length(known)
        line = Line(self._vocabulary, self._tokens, parts, spans, self._media)
        for piece in self._vocabulary.pieces(self._run_template(messages, order.tools)):
            line.add(piece)
        line.finish()
        line.ids += forced
        self._check_length(len(line.ids))
        ids = np.array(line.ids, np.int64)
        return StagePrompt(ids, thinker_keys(ids, line.spans), tuple(line.spans), len(ids), NO_INTS)

    def _run_template(self, messages: list[Message], tools: tuple[str, ...]) -> str:
        known = to_tools(tools, self._vocabulary.guard)
        try:
            rendered = self._template(messages, known)
            if any(tool_name(tool) not in rendered for tool in known or ()):
                raise ProtocolError("the model's chat template has no place for tools")
            return rendered
        except jinja2.TemplateError as error:
            raise ProtocolError(f"the model's chat template refuses this conversation: {error}") from None

    def _check_length(self, num_tokens: int) -> None:
        allowed = self._max_prompt_tokens
        if num_tokens > allowed:
            raise LimitExceeded("max_prompt_tokens", allowed, num_tokens, "Shorten or remove earlier items")


@dataclass(frozen=True, slots=True)
class Special:
    """A special token that the template wrote."""

    token_id: int


Piece = str | int | Special
"""The template's own ordinary text, the number of a slot, or a special token."""


class Vocabulary:
    """The checkpoint's tokenizer, taken apart: special tokens by name, and ordinary text that can never
    become one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = json.loads(tokenizer.to_str())
        self._special = {token["content"]: token["id"] for token in content["added_tokens"]}
        # Tokens added beside the learned vocabulary are found by name, before any text is split into words.
        # Without the list there is nothing left by which typed text could name one.
        content.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self._ordinary = Tokenizer.from_str(json.dumps(content))
        self._cached = lru_cache(maxsize=4096)(self._encode)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join([SLOT_PATTERN, *map(re.escape, longest_first)]))
        self.guard = Guard(self._special)
        self._check_safe()

    def special(self, name: str) -> int | None:
        """The id of a special token."""
        return self._special.get(name)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ordinary text, whatever it says."""
        return (self._cached if len(text) <= _MAX_CACHED_CHARS else self._encode)(text)

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """What the template wrote, in order."""
        end = 0
        for match in self._pattern.finditer(rendered):
            if match.start() > end:
                yield Guard.mended(rendered[end : match.start()])
            yield int(match[1]) if match[1] else Special(self._special[match[0]])
            end = match.end()
        if end < len(rendered):
            yield Guard.mended(rendered[end:])

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._ordinary.encode(text, add_special_tokens=False).ids)
        except TypeError:  # of a str, only this: it is no Unicode text
            raise ProtocolError("the text is not valid Unicode: it has half of a surrogate pair") from None

    def _check_safe(self) -> None:
        special = set(self._special.values())
        for name in self._special:
            if special.intersection(self._encode(name)):
                raise CheckpointError(f"tokenizer: the special token {name!r} could be typed by a client")


@dataclass(slots=True)
class Line:
    """The thinker's ids while they are put together from left to right.

    Ordinary text is held back until something ends it, because the reference tokenises all text between two
    special tokens at once: the newline after the role and the newlines a user begins with are one token.
    """

    vocabulary: Vocabulary
    tokens: TokenIds
    parts: Sequence[TextPart | TokensPart]
    unplaced: Sequence[Span]
    media: MediaSpans
    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    num_parts: int = 0
    text: list[str] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        if isinstance(piece, str):
            self.text.append(piece)
        elif isinstance(piece, int):
            self._add_part(piece)
        else:
            self._flush()
            self._add_special(piece.token_id)

    def finish(self) -> None:
        """Nothing may be left out."""
        self._flush()
        if self.num_parts < len(self.parts) or len(self.spans) < len(self.unplaced):
            raise _misplaced()

    def _add_part(self, index: int) -> None:
        if index != self.num_parts:
            raise _misplaced()
        self.num_parts += 1
        part = self.parts[index]
        if isinstance(part, TextPart):
            self.text.append(part.text)
        else:
            self._flush()
            self.ids += part.token_ids

    def _add_special(self, token_id: int) -> None:
        if token_id not in self.tokens.media:
            self.ids.append(token_id)
            return
        if len(self.spans) == len(self.unplaced):
            raise _misplaced()
        span = self.unplaced[len(self.spans)]
        if token_id != self.media.placeholder(span):
            raise _misplaced()
        ids, first = self.media.expanded(span)
        self.spans.append(msgspec.structs.replace(span, start=len(self.ids) + first))
        self.ids += ids

    def _flush(self) -> None:
        if self.text:
            self.ids += self.vocabulary.encode("".join(self.text))
            self.text.clear()


def _misplaced() -> ProtocolError:
    return ProtocolError(
        "the model's chat template has no place for every part of this conversation, in order"
    )


def talker_prompt(thinker: StagePrompt, tokens: TokenIds, request: int) -> StagePrompt:
    """The user's turns, and nine positions that the reply's beginning fills in."""
    kept = user_positions(thinker.token_ids, tokens)
    ids = np.concatenate([thinker.token_ids[kept], talker_header(thinker.token_ids, tokens)])
    starts = np.searchsorted(kept, [span.start for span in thinker.spans]).tolist()
    spans = tuple(
        msgspec.structs.replace(span, start=start) for span, start in zip(thinker.spans, starts, strict=True)
    )
    gather = [np.arange(span.start, span.start + span.length) for span in thinker.spans]
    # What stands there depends on the voice and on the reply, so no other request may match these.
    header_keys = mixed(_REQUEST_SEED + request, np.arange(TALKER_HEADER))
    keys = np.concatenate([talker_keys(thinker)[kept], header_keys])
    return StagePrompt(ids, keys, spans, len(kept), np.concatenate([NO_INTS, *gather]))


def thinker_keys(ids: Ints, spans: Sequence[Span]) -> Ints:
    """Token ids, and for media what they show: equal placeholders of different media must differ."""
    keys = ids.copy()
    for span in spans:
        keys[span.start : span.start + span.length] = mixed(span.key, np.arange(span.length))
    return keys


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


def mixed(seed: int, values: Ints) -> Ints:
    """62-bit keys from a seed and one value each. The top bit is set, so that no key is a token id.

    The mixing is the finaliser of splitmix64.
    """
    x = (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN + _scrambled(np.array([seed], np.uint64))
    return (_scrambled(x) >> np.uint64(2) | _CONTENT_BIT).astype(np.int64)


def _scrambled(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def load_prompter(path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
    """From a checkpoint's directory and its parsed config.json; raises CheckpointError."""
    known = Qwen3OmniConfig.from_dict(config)
    tokens = known.tokens
    tokenizer = load_tokenizer(path)
    source = find_template(path) or tokenizer.chat_template
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: no chat template (chat_template.jinja or chat_template.json)")

    def template(messages: list[Message], tools: list[dict[str, Any]] | None) -> str:
        return tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
        )

    vocabulary = Vocabulary(tokenizer.backend_tokenizer)
    check_roles(vocabulary, tokens)
    media = MediaSpans(path, tokens, known.positions_per_second)
    return Prompter(vocabulary, template, tokens, media, max_prompt_tokens)


def call_ids(path: Path) -> tuple[int, ...]:
    """The token with which a reply's tool call begins; none where the tokenizer's files name none."""
    config, tokenizer = (read_optional(path / name) for name in ("tokenizer_config.json", "tokenizer.json"))
    known = [(int(number), token) for number, token in config.get("added_tokens_decoder", {}).items()]
    known += [(token["id"], token) for token in tokenizer.get("added_tokens", [])]
    return tuple({number for number, token in known if token["content"] == CALL_TOKEN})


def read_optional(file: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def load_tokenizer(path: Path) -> Any:
    """The tokenizer as the reference loads it; raises CheckpointError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exceptions
        raise CheckpointError(f"{path}: no usable tokenizer: {error}") from error
    # Without its files the reference makes an empty tokenizer and says nothing.
    if tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False) < 256:
        raise CheckpointError(f"{path}: no usable tokenizer: tokenizer.json or vocab.json is missing")
    return tokenizer


def find_template(path: Path) -> str | None:
    """The template that the reference processor would use; it comes before the tokenizer's own."""
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    if (path / "chat_template.json").is_file():
        return json.loads((path / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    return None


def check_roles(vocabulary: Vocabulary, tokens: TokenIds) -> None:
    """The talker finds the turns by the one token after <|im_start|>, and skips a header of three."""
    for role, token_id in (("system", tokens.system), ("user", tokens.user), ("assistant", tokens.assistant)):
        header = vocabulary.encode(role + "\n")
        if len(header) != 2 or header[0] != token_id:
            raise CheckpointError(
                f"tokenizer: {role!r} is not the one token {token_id} that config.json names"
            )
