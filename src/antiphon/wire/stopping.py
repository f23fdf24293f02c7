"""Stop strings in a text as it is written. Pure: text in, the text that is certain out."""

from __future__ import annotations


class StopStrings:
    """One reply's. The reply ends before the string that is whole first; of several that end there, before
    the longest. However the text is cut into pushes, the same text comes out: what may be the beginning of a
    stop string is held back.
    """

    def __init__(self, stops: tuple[str, ...], after: int = 0) -> None:
        """after: so many tokens come before any string is looked for."""
        self.is_found = False
        self._stops = stops
        self._after = after
        self._held = ""

    def push(self, text: str, num_tokens: int) -> str:
        """More text; `num_tokens` have come, those of this text included."""
        if self.is_found or num_tokens <= self._after:
            return "" if self.is_found else text
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_found = True
            return self._held[: min(found)[1]]
        sure = len(self._held) - max(self._begun(stop) for stop in self._stops)
        text, self._held = self._held[:sure], self._held[sure:]
        return text

    def flush(self) -> str:
        """What is left when no text follows."""
        text, self._held = self._held, ""
        return "" if self.is_found else text

    def _begun(self, stop: str) -> int:
        """How much of this string the text may end with the beginning of."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)
