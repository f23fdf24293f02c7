"""A checkpoint of parts: a directory whose config.json names three others, each a checkpoint of its own.

Each part is a directory in that one, a directory elsewhere, or a hub id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.checkpoint.side_files import check_side_files, read_json, read_optional_json
from antiphon.checkpoint.source import find_directory
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MODEL_TYPE = "cascade"
"""What the config.json of such a directory says it is."""
WRITER = "thinker"
"""The part that writes the reply, and so has the chat template."""
WRITES_DOWN = "transcriber"
PARTS = (WRITES_DOWN, WRITER, "voice")


def parts_of(
    path: Path, config: Mapping[str, Any], progress: Callable[[str], None] | None = None
) -> dict[str, Path]:
    """The parts' directories by name; none where the checkpoint is whole. Raises CheckpointError."""
    if config.get("model_type") != MODEL_TYPE:
        return {}
    found: dict[str, Path] = {}
    for part in PARTS:
        named = config.get(part)
        if not isinstance(named, str) or not named:
            raise CheckpointError(f"{path / 'config.json'}: {part!r} must name a directory or a hub id")
        inside = path / named
        found[part] = inside if inside.is_dir() else find_directory(named, progress)
    return found


def whole_config(path: Path, config: Mapping[str, Any], parts: Mapping[str, Path]) -> dict[str, Any]:
    """config.json with what each part's says in the place of its name, and their generation_config.json under
    "generation". Raises CheckpointError."""
    made: dict[str, Any] = {**config, "generation": {}}
    for part, directory in parts.items():
        made[part] = read_json(directory / "config.json", f"the {part} is not a model checkpoint")
        generation = directory / "generation_config.json"
        made["generation"][part] = (
            read_json(generation, "nothing says how a transcript begins, and what is none")
            if part == WRITES_DOWN
            else read_optional_json(generation)
        )
    check_side_files(parts[WRITER], takes_media=False)
    return made
