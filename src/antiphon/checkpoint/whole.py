"""A directory that is there whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from antiphon.core.errors import CheckpointError, system_words

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def check_free(directory: Path) -> None:
    """Raise CheckpointError unless `directory` is an empty directory, or nothing yet."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(
            f"{directory} exists and is not an empty directory; name a new one or remove it"
        )


@contextmanager
def made_whole(directory: Path) -> Generator[Path, None, None]:
    """A directory beside `directory` to write into. It takes that place when the block ends well, and is
    removed otherwise.

    Raises CheckpointError as `check_free` does, and where nothing can be made.
    """
    check_free(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = type(directory)(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be made: {system_words(error)}; name another place"
        ) from None
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.replace(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def say_nothing(_message: str) -> None:
    """For callers that show no progress."""
