"""From a conversation record to the token ids of every stage, in the checkpoint's own chat template.

What a person typed is always ordinary text: only the template writes special tokens. A reply enters as the
exact ids it was made of. This room must not know the engine, the wire, or what media look like inside.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jinja2
import msgspec
import numpy as np

from antiphon.core.conversation import Media, TextPart, TokensPart, media_of, num_chars
from antiphon.core.errors import AntiphonError, LimitExceeded, ProtocolError
from antiphon.core.facts import NO_INTS, Ints, PromptFailed, PromptReady, Span, StagePrompt
from antiphon.core.plans import RenderPrompt
from antiphon.models.messages import Message, Template, check_items, kind_of, to_messages, to_tools, tool_name
from antiphon.models.vocabulary import CALL_TOKEN, JSON_HEADS, Piece, Vocabulary

logger = logging.getLogger("antiphon.models")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CONTENT_BIT = np.uint64(1 << 61)
_REQUEST_SEED = 1 << 63


class MediaPlaces(Protocol):
    """How media stand in a family's prompts. `ids` are the placeholders that a template writes."""

    ids: tuple[int, ...]

    def measure(self, part: Media) -> Span:
        """The part's span, not placed yet. Raises ProtocolError for a medium that cannot be used."""
        ...

    def placeholder(self, span: Span) -> int:
        """The one id that the template writes for such a medium."""
        ...

    def expanded(self, span: Span) -> tuple[list[int], int]:
        """The ids in the place of that one, and which of them is the span's first."""
        ...


MOST_CHARS_A_TOKEN = 16
"""Of a whole prompt, on average. Ordinary text has about four."""


PROBE = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
            },
        },
    }
)
"""A tool, by which a template is asked whether it shows any."""


PROBE_CALL: Message = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "sea"}}}
_JSON_CALL = re.compile(r'\{\s*"name"\s*:\s*"look_up"\s*,\s*"parameters"\s*:\s*\{\s*"word"')
"""How a template writes that call where it is bare JSON."""


class NoMedia:
    """Of a model that reads text only."""

    ids: tuple[int, ...] = ()

    def measure(self, part: Media) -> Span:
        raise ProtocolError(f"this model reads text only: it takes no {kind_of(part)}")

    def placeholder(self, span: Span) -> int:
        raise AssertionError("no medium was measured")

    def expanded(self, span: Span) -> tuple[list[int], int]:
        raise AssertionError("no medium was measured")


Speak = Callable[[StagePrompt, int], StagePrompt]
"""From the thinker's prompt and the number of the request to the talker's prompt."""


class Prompter:
    """Renders prompts. Pure: no state but a bounded cache of tokenised text."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: Template,
        media: MediaPlaces,
        max_prompt_tokens: int,
        speak: Speak | None = None,
        *,
        reads_aloud: bool = True,
        has_voice: bool = False,
    ) -> None:
        """`reads_aloud`: who speaks needs nothing of a text but its tokens, so it may be given.
        `has_voice`: a voice without a prompt speaks (one with `speak` does anyway)."""
        self._has_voice = has_voice or speak is not None
        self._vocabulary = vocabulary
        self._template = template
        self._media = media
        self._max_prompt_tokens = max_prompt_tokens
        self._speak = speak
        self._reads_aloud = reads_aloud

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template shows the tools of a request. True where it cannot be asked, since it
        fails without tools too: each request will say what is wrong then."""
        asked: list[Message] = [{"role": "user", "content": "Look it up."}]
        try:
            self._run_template(asked, (PROBE,))
        except Exception:  # of the template's own code
            return not self._shows(asked)
        return True

    def _shows(self, messages: list[Message]) -> bool:
        """Can the template write these, without tools? The log is told why not."""
        try:
            self._run_template(messages, ())
        except Exception as error:  # of the template's own code
            logger.warning("the chat template cannot be asked whether it shows tools: %s", error)
            return False
        return True

    @cached_property
    def json_call_ids(self) -> tuple[int, ...]:
        """Tokens with which a reply begins that is a call; none unless the chat template writes calls as bare
        JSON with "parameters". Other replies may begin with them too: the first token alone, such as "{",
        does not tell."""
        asked: list[Message] = [
            {"role": "user", "content": "Look it up."},
            {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]},
        ]
        try:
            rendered = self._run_template(asked, (PROBE,))
        except Exception:  # of the template's own code
            return ()
        return self._vocabulary.beginning(JSON_HEADS) if _JSON_CALL.search(rendered) else ()

    @cached_property
    def blank_ids(self) -> tuple[int, ...]:
        """White space, which may stand before such a call; none where no call is bare."""
        return self._vocabulary.blank() if self.json_call_ids else ()

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        """Every AR stage's prompt. Whatever a client may have got wrong comes back as PromptFailed."""
        try:
            forced = self._forced(order)
            thinker = self._thinker(order, forced)
            reply = None if order.say is None else self._said(order.say, thinker, order.speech)
        except LimitExceeded as error:
            return PromptFailed(order.request, str(error), "context_length_exceeded", error.over)
        except AntiphonError as error:
            return PromptFailed(order.request, str(error))
        prompts = {"thinker": thinker}
        if order.speech and self._speak is not None:
            prompts["talker"] = self._speak(thinker, order.request)
        return PromptReady(order.request, prompts, forced, reply)

    def _said(self, text: str, thinker: StagePrompt, speech: bool) -> Ints:
        """Tokens of a reply that is given. Its talker sees no thinker, so the prompt has text only."""
        if self._has_voice and not self._reads_aloud:
            raise ProtocolError("this model speaks only what it writes itself: it cannot read a text aloud")
        if not speech or not self._has_voice:
            raise ProtocolError("this model has no voice that could read a text aloud")
        if thinker.spans:
            raise ProtocolError("a text is read aloud without media in its prompt")
        ids = np.array(self._vocabulary.encode(text), np.int64)
        if not len(ids):
            raise ProtocolError("there is no text to read aloud")
        self._check_length(len(ids))
        return ids

    def _forced(self, order: RenderPrompt) -> tuple[int, ...]:
        """How a reply that has to call a tool begins; nothing is drawn of it. Raises ProtocolError."""
        if not order.tools or order.tool_choice in ("auto", "none"):
            return ()
        name = json.dumps(order.tool_choice, ensure_ascii=False)
        if self.json_call_ids:
            named = f'{{"name": {name}, "parameters":'
            return self._vocabulary.encode('{"name": "' if order.tool_choice == "required" else named)
        call = self._vocabulary.special(CALL_TOKEN)
        if call is None:
            raise ProtocolError(f"this model cannot be made to call a tool: it has no token {CALL_TOKEN}")
        if order.tool_choice == "required":
            return (call, *self._vocabulary.encode("\n"))
        return (call, *self._vocabulary.encode(f'\n{{"name": {name}, "arguments":'))

    def _thinker(self, order: RenderPrompt, forced: tuple[int, ...]) -> StagePrompt:
        if order.raw is not None:
            return self._raw(order.raw)
        items = order.items
        check_items(items)
        self._check_chars(sum(num_chars(item) for item in items))
        messages, parts = to_messages(items, self._vocabulary.guard)
        spans = [self._media.measure(part) for part in media_of(items)]
        known = sum(span.length for span in spans)
        known += sum(len(part.token_ids) for part in parts if isinstance(part, TokensPart))
        self._check_length(known)
        line = Line(self._vocabulary, parts, spans, self._media)
        for piece in self._vocabulary.pieces(self._run_template(messages, order.tools, order.template)):
            line.add(piece)
        line.finish()
        line.ids += forced
        self._check_length(len(line.ids))
        ids = _known(line.ids, self._vocabulary.rows)
        return StagePrompt(ids, prompt_keys(ids, line.spans), tuple(line.spans), len(ids), NO_INTS)

    def _raw(self, raw: str | tuple[int, ...]) -> StagePrompt:
        """A prompt as it stands. Whoever writes one writes special tokens too, where they name them."""
        if isinstance(raw, str):
            self._check_chars(len(raw))
        known = raw if isinstance(raw, tuple) else self._vocabulary.spell(raw)
        if not known:
            raise ProtocolError("the prompt is empty: send a text, or token ids, of one token or more")
        self._check_length(len(known))
        ids = _known(known, self._vocabulary.size)
        return StagePrompt(ids, ids.copy(), (), len(ids), NO_INTS)

    def _run_template(self, messages: list[Message], tools: tuple[str, ...], variables: str = "") -> str:
        known = to_tools(tools, self._vocabulary.guard)
        told = self._vocabulary.guard.broken(json.loads(variables)) if variables else {}
        try:
            rendered = self._template(messages, known, told)
            if any(tool_name(tool) not in rendered for tool in known or ()):
                raise ProtocolError("the model's chat template has no place for tools: leave tools out")
            return rendered
        except jinja2.TemplateError as error:
            raise ProtocolError(f"the model's chat template refuses this conversation: {error}") from None
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            if not variables:
                raise
            raise ProtocolError(f"the model's chat template cannot use its variables: {error}") from None

    def _check_chars(self, num_chars: int) -> None:
        """Text that is far too long is not even made tokens of: that takes time from everybody."""
        allowed = MOST_CHARS_A_TOKEN * self._max_prompt_tokens
        if num_chars > allowed:
            raise LimitExceeded("max_prompt_chars", allowed, num_chars, "Shorten or remove earlier items")

    def _check_length(self, num_tokens: int) -> None:
        allowed = self._max_prompt_tokens
        if num_tokens > allowed:
            raise LimitExceeded("max_prompt_tokens", allowed, num_tokens, "Shorten or remove earlier items")


def _known(token_ids: Sequence[int], size: int) -> Ints:
    """The ids, [n]; raises ProtocolError unless all are below `size`. An id without a row of the embedding
    would fail all requests of its step."""
    ids = np.array(token_ids, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise ProtocolError(f"the prompt has token ids that this model has not: they are 0 to {size - 1}")
    return ids


@dataclass(slots=True)
class Line:
    """The thinker's ids while they are put together from left to right.

    Ordinary text is held back until something ends it, because the reference tokenises all text between two
    special tokens at once: the newline after the role and the newlines a user begins with are one token.
    """

    vocabulary: Vocabulary
    parts: Sequence[TextPart | TokensPart]
    unplaced: Sequence[Span]
    media: MediaPlaces
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
        if token_id not in self.media.ids:
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


def prompt_keys(ids: Ints, spans: Sequence[Span]) -> Ints:
    """Token ids, and for media what they show: equal placeholders of different media must differ."""
    keys = ids.copy()
    for span in spans:
        keys[span.start : span.start + span.length] = mixed(span.key, np.arange(span.length))
    return keys


def keys_of_request(request: int, num: int) -> Ints:
    """Of positions whose content depends on the voice and on the reply: no other request matches them."""
    return mixed(_REQUEST_SEED + request, np.arange(num))


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
