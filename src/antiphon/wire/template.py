"""Variables for the chat template (`chat_template_kwargs`), as vLLM's clients send them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.errors import ProtocolError
from antiphon.wire.errors import shown
from antiphon.wire.limits import check

PARAM = "chat_template_kwargs"
MAX_VARIABLES = 16
MAX_CHARS = 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RESERVED = frozenset(
    {
        *("conversation", "conversations", "messages", "tools", "documents", "chat_template"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs"),
        *("sanitize_control_tokens", "padding", "truncation", "max_length", "kwargs", "self"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "generation_indices"),
        *("raise_exception", "strftime_now"),
    }
)
"""What the request itself says, and what a template is given with it; and so is every name that ends so:"""
RESERVED_ENDS = ("_token", "_tokens")


def read_template(asked: Mapping[str, Any] | None) -> str:
    """As JSON text, "" for none. Raises ProtocolError and LimitExceeded."""
    if not asked:
        return ""
    check("max_template_variables", MAX_VARIABLES, len(asked), f"{PARAM} has too many")
    for name in asked:
        if not _NAME.fullmatch(name):
            raise ProtocolError(
                f"{shown(name)} cannot name a variable: use letters, digits and '_'.", param=PARAM
            )
        if name in RESERVED or name.endswith(RESERVED_ENDS):
            raise ProtocolError(
                f"{name} is the server's own variable of the chat template: leave it out.",
                code="unsupported_parameter",
                param=f"{PARAM}.{name}",
            )
    written = msgspec.json.encode(asked).decode()
    check("max_template_chars", MAX_CHARS, len(written), f"{PARAM} is too long")
    return written
