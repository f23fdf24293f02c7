"""Which files of a checkpoint are not as they were made: PROVENANCE.json beside them has the hash of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.checkpoint.packages import sha256_of
from antiphon.checkpoint.side_files import read_json
from antiphon.core.errors import CheckpointError, system_words

if TYPE_CHECKING:
    from pathlib import Path

PROVENANCE = "PROVENANCE.json"


def changed_files(directory: Path) -> list[str]:
    """What of a checkpoint and of the parts in it is missing or has changed since it was made, a sentence
    each; none where no PROVENANCE.json says how it was. Reads every byte. Raises CheckpointError."""
    found: list[str] = []
    for record in sorted((*directory.glob(PROVENANCE), *directory.glob(f"*/{PROVENANCE}"))):
        hashes = read_json(record, "").get("files")
        if not isinstance(hashes, dict):
            raise CheckpointError(f"{record} names no files with their hashes")
        for name, expected in sorted(hashes.items()):
            file = record.parent / name
            try:
                if sha256_of(file) != expected:
                    found.append(f"{file} has changed since it was made")
            except FileNotFoundError:
                found.append(f"{file} is missing")
            except OSError as error:
                found.append(f"{file} cannot be read: {system_words(error)}")
    return found
