"""Numbers of things, in words."""

from __future__ import annotations


def counted(num: int, one: str, several: str = "") -> str:
    """`1 session`, `2 sessions`. `several` is its plural, where that is not the word with an s."""
    return f"{num} {one if num == 1 else several or one + 's'}"
