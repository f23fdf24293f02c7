"""A checkpoint's tokenizer and chat template, taken apart: special tokens by name, and ordinary text that can
never become one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from antiphon.checkpoint.quiet import quiet
from antiphon.core.errors import CheckpointError, ProtocolError
from antiphon.models.messages import SLOT_PATTERN, Guard, Message, Template

CALL_TOKEN = "<tool_call>"
PYTHON_TAG = "<|python_tag|>"
"""What Llama 3 may write before a call."""
JSON_HEADS = ('{"name":"', '{"type":"function","name":"')
"""How a call in bare JSON begins, white space left out."""
_BLANK_NAME = re.compile("[ĠĊĉč▁\\s]+|<0x(?:0[9A-D]|20)>")
"""White space as tokenizers name it: bytes written as letters, a mark for a space, or single bytes."""

_MAX_CACHED_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Special:
    """A special token that the template wrote."""

    token_id: int


Piece = str | int | Special
"""The template's own ordinary text, the number of a slot, or a special token."""


class Vocabulary:
    """The checkpoint's tokenizer, taken apart: special tokens by name, and ordinary text that can never
    become one."""

    def __init__(self, tokenizer: Tokenizer, rows: int | None = None) -> None:
        """rows: of the embedding, if they are known. What the tokenizer has beyond them cannot be said to the
        model; rows beyond what the tokenizer has are padding, which a reply may name all the same."""
        content = json.loads(tokenizer.to_str())
        self._special = {token["content"]: token["id"] for token in content["added_tokens"]}
        # Tokens added beside the learned vocabulary are found by name, before any text is split into words.
        # Without the list there is nothing left by which typed text could name one.
        content.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
        self._ordinary = Tokenizer.from_str(json.dumps(content))
        self._whole = tokenizer
        known = max(
            tokenizer.get_vocab_size(with_added_tokens=True), *(i + 1 for i in self._special.values()), 0
        )
        self.rows = known if rows is None else rows
        """Every id of a conversation is below it, its replies' too."""
        self.size = min(known, self.rows)
        """Every id that a client may say is below it."""
        self._cached = lru_cache(maxsize=4096)(self._encode)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join([SLOT_PATTERN, *map(re.escape, longest_first)]))
        self.guard = Guard(self._special)
        self._check_safe()

    def special(self, name: str) -> int | None:
        """The id of a special token."""
        return self._special.get(name)

    def beginning(self, heads: tuple[str, ...]) -> tuple[int, ...]:
        """Tokens with which a text may begin that goes on as one of these, white space left out; and the tag
        of Python's."""
        named = self.special(PYTHON_TAG)
        found = [] if named is None else [named]
        for name, token_id in self._ordinary.get_vocab().items():
            if heads[0][0] in name and token_id < self.size:
                text = "".join(self._whole.decode([token_id]).split())
                if text and any(head.startswith(text) for head in heads):
                    found.append(token_id)
        return tuple(sorted(found))

    def blank(self) -> tuple[int, ...]:
        """Tokens that are nothing but white space."""
        found: list[int] = []
        for name, token_id in self._ordinary.get_vocab().items():
            if token_id < self.size and (_BLANK_NAME.fullmatch(name) or name.isspace()):
                text = self._whole.decode([token_id], skip_special_tokens=False)
                if text.isspace():
                    found.append(token_id)
        return tuple(sorted(found))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ordinary text, whatever it says."""
        return (self._cached if len(text) <= _MAX_CACHED_CHARS else self._encode)(text)

    def spell(self, text: str) -> tuple[int, ...]:
        """Ids of a text that may name special tokens, with those that the tokenizer puts around it."""
        try:
            return tuple(self._whole.encode(text, add_special_tokens=True).ids)
        except TypeError:
            raise _no_unicode() from None

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of these, special tokens left out."""
        return self._whole.decode(ids, skip_special_tokens=True)

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
            raise _no_unicode() from None

    def _check_safe(self) -> None:
        special = set(self._special.values())
        for name in self._special:
            if special.intersection(self._encode(name)):
                raise CheckpointError(f"tokenizer: the special token {name!r} could be typed by a client")


def _no_unicode() -> ProtocolError:
    return ProtocolError("the text is not valid Unicode: it has half of a surrogate pair")


def load_template(path: Path, tokenizer: Any, **variables: Any) -> Template:
    """The chat template of a checkpoint's directory; raises CheckpointError.

    variables: for the template beside messages and tools, unless a prompt says others. A template ignores
    those that it does not know.
    """
    source = find_template(path) or tokenizer.chat_template
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: no chat template (chat_template.jinja or chat_template.json)")

    def template(messages: list[Message], tools: list[dict[str, Any]] | None, more: dict[str, Any]) -> str:
        return tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=True,
            **(variables | more),
        )

    return template


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
    from transformers import AutoTokenizer, PreTrainedConfig

    try:
        with quiet():
            # The model's own configuration class imports torch's compiler: 140 MB, and some seconds. Only a
            # tokenizer whose files don't name its class needs it.
            config: Any = None
            named = read_optional(path / "tokenizer_config.json").keys() & {"tokenizer_class", "auto_map"}
            if named == {"tokenizer_class"}:
                config = PreTrainedConfig()
                config.name_or_path = str(path)
                config.model_type = read_optional(path / "config.json").get("model_type", "")
            tokenizer = AutoTokenizer.from_pretrained(path, config=config, local_files_only=True)
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
