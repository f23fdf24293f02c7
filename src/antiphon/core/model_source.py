"""What names a model: a directory, a GGUF, a hub id, or each part of a cascade in one text,
`transcriber=DIR,thinker=org/name,voice=DIR`, with its settings, `silent_tail=false`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from antiphon.core.errors import ConfigError, no_such

WRITES_DOWN, WRITER, VOICE = "transcriber", "thinker", "voice"
PARTS = (WRITES_DOWN, WRITER, VOICE)
SETTINGS = ("silent_tail", "no_speech_threshold")
"""Of a cascade as a whole, in the JSON of its config.json."""

_KEYS = (*PARTS, *SETTINGS)
_BEGINS = re.compile(rf"(?:{'|'.join(_KEYS)})=")
_BETWEEN = re.compile(r",\s*(?=\w+=)")


def parts_in(source: str) -> dict[str, str]:
    """The directory or hub id of each part that `source` names, and its settings as they are written; {} for
    a directory or a hub id.

    Raises ConfigError for a part or setting that no cascade has, is there twice, or is empty.
    """
    if not _BEGINS.match(source):
        return {}
    named: dict[str, str] = {}
    for piece in _BETWEEN.split(source):
        part, _, value = piece.partition("=")
        if part not in _KEYS:
            raise ConfigError(f"{source}: {no_such('part of a cascade', part, _KEYS)}")
        if part in named:
            raise ConfigError(f"{source}: {part} is there twice; name it once")
        if not value.strip():
            needed = "name a directory or a hub id" if part in PARTS else "give a value, or leave it out"
            raise ConfigError(f"{source}: {part} is empty; {needed}")
        named[part] = value.strip()
    return named


def settings_in(named: Mapping[str, str]) -> dict[str, Any]:
    """The settings among what a source names, as config.json has them; 1 for a threshold of null, which a
    deployment has no word for. Raises ConfigError."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        if name in named:
            try:
                found[name] = json.loads(named[name])
            except ValueError:
                raise ConfigError(
                    f"{name} is {named[name]!r}; it must be JSON, as true, false, 0.6 or null"
                ) from None
    if found.get("no_speech_threshold", 1) is None:
        found["no_speech_threshold"] = 1
    return found


def check_parts(named: Mapping[str, str]) -> None:
    """Raises ConfigError unless every part is named."""
    lacking = [part for part in PARTS if part not in named]
    if lacking:
        raise ConfigError(
            f"a cascade without {' and '.join(lacking)}: name {', '.join(PARTS)}, "
            "each a directory or a hub id"
        )


def source_of(parts: Mapping[str, str]) -> str:
    """One text that names these parts and settings, which `parts_in` reads."""
    return ",".join(f"{key}={parts[key]}" for key in _KEYS if key in parts)


def name_of(source: str) -> str:
    """What a model is called: the last component of its directory, GGUF or hub id; of a cascade, the
    thinker's."""
    return PurePath(parts_in(source).get(WRITER, source)).name.removesuffix(".gguf")
