"""Guides: which tokens a text may go on with. Compiled apart from steps, before a request has its row; a
state for each row, rebuilt from its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax
from numpy.typing import NDArray

from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Guide

Bools = NDArray[np.bool_]
WHITE_SPACE = r"( |\n {0,32}|\n\t{0,8})?"
"""Between what a JSON text is made of: a space, or a new line and how far the next one is indented. Without a
bound a text may be white space for ever."""
LIMITS = LLParserLimits(verbose_errors=False)
"""How much work a grammar may be, to compile and at each token; past it the grammar is refused, or its text
fails. The library's own: a schema of 300 properties needs a third of what it may take for a token, 20 ms."""
TEXT_S, TOKEN_S = 0.5, 0.003
"""Of a core, which a text may take to find what can follow: once, and for each token. Steps wait for it: a
grammar that took the most at each token would stop the voices beside it. The schema takes 0.5 ms a token."""
EVERY_SPELLING = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, every way to spell it is allowed, and not the tokenizer's own alone: the
likeliest token of all that can follow is drawn."""
CUT_SHORT, NOTHING_FOLLOWS = "<non-verbose/>", "NoExtensionBias"
"""What the library writes behind an error, and of a grammar that never comes to an end."""
MARKERS = "<tool_call>", "</tool_call>"
"""Tokens that `Guide.calls` names, where the model has them."""
MOST_KEPT = 256
"""Compiled guides that are kept, for requests that wait for a row and for the next with the same one."""


class GuideError(ConfigError):
    """What is wrong with a guide, in words."""


def grammar_of(guide: Guide) -> str:
    """In Lark's notation. Raises GuideError for what cannot be written so."""
    match guide.kind:
        case "json":
            try:
                schema = msgspec.json.decode(guide.text, type=dict[str, Any])
            except (msgspec.MsgspecError, RecursionError) as error:
                raise GuideError(f"The schema is no JSON object: {error}") from None
            own = {"x-guidance": {"whitespace_pattern": WHITE_SPACE}}
            return _started(f"%json {msgspec.json.encode(own | schema).decode()}", guide.calls)
        case "regex":
            return _started(f"/{regex_to_lark(guide.text, '')}/", guide.calls)
        case "grammar":
            is_lark = is_lark_syntax(guide.text) or "::=" not in guide.text
            try:
                text = guide.text if is_lark else gbnf_to_lark(guide.text)
            except Exception as error:
                raise GuideError(f"The grammar cannot be read: {error}") from None
            return f"{text}\n{EVERY_SPELLING}"


def _started(text: str, calls: str) -> str:
    start = f"start: {text}" if not calls else f"start: text | calls\ntext: {text}\n{calls}"
    return f"{start}\n{EVERY_SPELLING}"


def _spelt(calls: str, tokenizer: LLTokenizer) -> str:
    """The rule with the markers as texts that are no tokens of the model."""
    for marker in MARKERS:
        ids = tokenizer.tokenize_str(marker)
        if len(ids) != 1 or not tokenizer.is_special_token(ids[0]):
            calls = calls.replace(marker, f'"{marker}"')
    return calls


def compiled(guide: Guide, tokenizer: LLTokenizer) -> LLMatcher:
    """Raises GuideError, which says what is wrong."""
    guide = msgspec.structs.replace(guide, calls=_spelt(guide.calls, tokenizer))
    grammar = LLMatcher.grammar_from_lark(grammar_of(guide))
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # some find out only here
    if matcher.is_error():
        raise _wrong(matcher)
    return matcher


def _wrong(matcher: LLMatcher) -> GuideError:
    """Why it cannot go on."""
    text = matcher.get_error().removesuffix(CUT_SHORT).strip()
    if text == NOTHING_FOLLOWS:
        return GuideError("No text matches it, however long.")
    _, is_schema, why = text.partition("failed to compile JSON schema: ")
    first, _, rest = why.partition("\n")
    if first.endswith(":"):  # a pattern's: what is wrong with it is the last line
        first = f"{first} {rest.rpartition('error: ')[2].partition(chr(10))[0]}"
    return GuideError((first if is_schema else text) or "It cannot be used.")


def tokenizer_of(checkpoint: Path, vocab: int, stop_ids: Sequence[int]) -> LLTokenizer:
    """Of a checkpoint's directory; `vocab` ids at least. Raises GuideError where there is none."""
    file = checkpoint / "tokenizer.json"
    ends = [one for one in stop_ids if one < vocab]
    try:
        own = LLTokenizer(str(file), eos_token=ends or None)
        if own.vocab_size >= vocab:
            return own
        return LLTokenizer(str(file), n_vocab=vocab, eos_token=ends or None)
    except ValueError as error:
        raise GuideError(f"This model's tokens cannot be guided: {error}") from None


class Guides:
    """Of one stage's decoders in one process. Implements `core.ports.GuideCompiler`: compiles in a thread of
    its own, while steps go on."""

    def __init__(self, checkpoint: Path, vocab: int, stop_ids: Sequence[int]) -> None:
        """Reads the tokenizer at once: no other thread runs meanwhile, 0.4 s for 49,152 tokens."""
        self._vocab = vocab
        self._stop_ids = np.array([one for one in stop_ids if one < vocab], np.int64)
        self._pool = ThreadPoolExecutor(1, "antiphon-guides")
        self._compiled = lru_cache(MOST_KEPT)(self._compile)
        self._tokenizer: LLTokenizer | GuideError
        try:
            self._tokenizer = tokenizer_of(checkpoint, vocab, stop_ids)
        except GuideError as error:
            self._tokenizer = error

    def prepare(self, guide: Guide) -> Callable[[], bool]:
        return self._compiled(guide).done

    def begin(self, guide: Guide, drawn: Iterable[int]) -> GuideState:
        """Of a text of which these tokens are drawn."""
        return GuideState(self._compiled(guide), drawn, self._vocab, self._stop_ids)

    def _compile(self, guide: Guide) -> Future[LLMatcher]:
        return self._pool.submit(self._made, guide)

    def _made(self, guide: Guide) -> LLMatcher:
        """In the thread."""
        if isinstance(self._tokenizer, GuideError):
            raise self._tokenizer
        return compiled(guide, self._tokenizer)


class GuideState:
    """How far a text has come in its guide. `error` says why it cannot go on, "" while it can."""

    def __init__(
        self, compiling: Future[LLMatcher], drawn: Iterable[int], vocab: int, stop_ids: NDArray[np.int64]
    ) -> None:
        self.error = ""
        self._compiling = compiling
        self._untold = list(drawn)
        self._matcher: LLMatcher | None = None
        self._vocab = vocab
        self._stop_ids = stop_ids
        self._is_over = False
        self._left_s = TEXT_S

    def take(self, token: int) -> None:
        """It was drawn."""
        self._untold.append(token)

    def allowed(self) -> Bools | None:
        """bool [vocab], the tokens that may be next; None where the text cannot go on, and `error` says why.
        Waits for a guide that is not compiled (any more): `GuideCompiler.prepare` comes first."""
        try:
            matcher = self._told()
            return self._mask(matcher)
        except GuideError as error:
            self.error = str(error)
            return None

    def _told(self) -> LLMatcher:
        if self._matcher is None:
            self._matcher = self._compiling.result().deep_copy()
        for token in self._untold:
            # a text that ignores the end goes on with nothing else
            self._is_over = self._is_over or token in self._stop_ids
            if not self._is_over and not self._matcher.consume_token(token):
                raise _wrong(self._matcher)
        self._untold.clear()
        return self._matcher

    def _mask(self, matcher: LLMatcher) -> Bools:
        if self._is_over or (matcher.is_stopped() and not matcher.is_error()):
            mask = np.zeros(self._vocab, np.bool_)
            mask[self._stop_ids] = True
        else:
            began_at = time.thread_time()
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            self._left_s += TOKEN_S - (time.thread_time() - began_at)
            if self._left_s < 0:
                raise GuideError("what can follow takes too long to find. Send a simpler one")
            mask = np.unpackbits(bits, count=self._vocab, bitorder="little").astype(np.bool_)
            if matcher.is_error():
                raise _wrong(matcher)
            mask[self._stop_ids] = matcher.is_accepting()
        if not mask.any():
            raise GuideError("no token of the model can follow")
        return mask
