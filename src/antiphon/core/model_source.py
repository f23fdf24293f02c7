"""What names a model: a directory, a GGUF, a hub id, or each part of a cascade in one text,
`transcriber=DIR,thinker=org/name,voice=DIR`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from antiphon.core.errors import ConfigError, no_such

WRITES_DOWN, WRITER, VOICE = "transcriber", "thinker", "voice"
PARTS = (WRITES_DOWN, WRITER, VOICE)

_BEGINS = re.compile(rf"(?:{'|'.join(PARTS)})=")
_BETWEEN = re.compile(r",\s*(?=\w+=)")


def parts_in(source: str) -> dict[str, str]:
    """The directory or hub id of each part that `source` names; {} for a directory or a hub id.

    Raises ConfigError for a part that no cascade has, is there twice, or is empty.
    """
    if not _BEGINS.match(source):
        return {}
    named: dict[str, str] = {}
    for piece in _BETWEEN.split(source):
        part, _, value = piece.partition("=")
        if part not in PARTS:
            raise ConfigError(f"{source}: {no_such('part of a cascade', part, PARTS)}")
        if part in named:
            raise ConfigError(f"{source}: {part} is there twice; name it once")
        if not value.strip():
            raise ConfigError(f"{source}: {part} is empty; name a directory or a hub id")
        named[part] = value.strip()
    return named


def check_parts(named: Mapping[str, str]) -> None:
    """Raises ConfigError unless every part is named."""
    lacking = [part for part in PARTS if part not in named]
    if lacking:
        raise ConfigError(
            f"a cascade without {' and '.join(lacking)}: name {', '.join(PARTS)}, "
            "each a directory or a hub id"
        )


def source_of(parts: Mapping[str, str]) -> str:
    """One text that names these parts, which `parts_in` reads."""
    return ",".join(f"{part}={parts[part]}" for part in PARTS if part in parts)


def name_of(source: str) -> str:
    """What a model is called: the last component of its directory, GGUF or hub id; of a cascade, the
    thinker's."""
    return PurePath(parts_in(source).get(WRITER, source)).name.removesuffix(".gguf")
