"""The JSON and tokenizer files beside the weights: are they there, and how they are read and written.

Knows their names, not what is in them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


TOKENIZER = "a tokenizer (tokenizer.json, or vocab.json with merges.txt)"


def read_json(file: Path, without_it: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises CheckpointError if it is missing (`without_it` says why that matters), not JSON, or not an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}: {without_it}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON ({error}). Fetch the file again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds a {type(content).__name__}, not an object. Fetch it again")
    return content


def read_optional_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if the file is not there. Raises CheckpointError if it is not valid."""
    return read_json(file, "") if file.exists() else {}


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """As released checkpoints have it: indented by two, and a line's end."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_side_files(path: Path, *, takes_media: bool) -> None:
    """Raise CheckpointError unless tokenizer, chat template and, for a model that takes media, preprocessing
    are there, in a released form.
    """
    template_inside = "chat_template" in read_optional_json(path / "tokenizer_config.json")
    check_present(
        path,
        {
            TOKENIZER: has_tokenizer(path),
            "tokenizer_config.json": has(path, "tokenizer_config.json"),
            "a chat template (chat_template.jinja, chat_template.json, or inside tokenizer_config.json)": (
                has(path, "chat_template.jinja") or has(path, "chat_template.json") or template_inside
            ),
            "preprocessor_config.json": not takes_media or has(path, "preprocessor_config.json"),
        },
    )


def check_present(path: Path, needed: Mapping[str, bool]) -> None:
    """Raise CheckpointError unless all that is needed is there: what it is, and whether it is."""
    lacking = [what for what, present in needed.items() if not present]
    if lacking:
        raise CheckpointError(
            f"{path} lacks {'; '.join(lacking)}. Copy the files from the checkpoint the weights came from"
        )


def has_tokenizer(path: Path) -> bool:
    return has(path, "tokenizer.json") or has(path, "vocab.json", "merges.txt")


def has(path: Path, *names: str) -> bool:
    """Are all these files there?"""
    return all((path / name).is_file() for name in names)
