"""A checkpoint's directory around one GGUF: the side files of its own directory, or those that its metadata
make, and a link to it. So whatever reads a checkpoint by its directory reads a GGUF.

Such directories are kept in the user's cache, XDG_CACHE_HOME/antiphon/gguf, by the file's place, size and
time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from antiphon.checkpoint import gguf_model
from antiphon.checkpoint.gguf import open_gguf
from antiphon.checkpoint.side_files import write_json
from antiphon.core.errors import CheckpointError

SUFFIX = ".gguf"
LINK = "model.gguf"
SIDE_FILES = ("*.json", "*.txt", "*.jinja")
KEPT = 16
"""Directories, those used last."""


def gguf_in(directory: Path) -> Path | None:
    """The one GGUF of a directory, None if there is none; raises CheckpointError if there are several."""
    found = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise CheckpointError(f"{directory} holds {len(found)} GGUF files ({names}): name the one to serve")
    return found[0] if found else None


def directory_of(file: Path) -> Path:
    """A directory with this GGUF and all that a checkpoint has beside its weights.

    Beside a config.json it is the file's own side files that count. Raises CheckpointError for a GGUF that is
    damaged, or holds a model that is not read.
    """
    cache, places = _cache(), (file.absolute().parent, file.resolve().parent)
    file = file.resolve()
    beside: list[Path] = []
    # a link's own directory comes first: the hub's cache has files elsewhere, and links to them side by side
    own = (place for place in places if place.parent != cache and (place / "config.json").is_file())
    if place := next(own, None):
        found = [path for pattern in SIDE_FILES for path in sorted(place.glob(pattern))]
        beside = [path for path in found if not path.name.endswith(".safetensors.index.json")]
    made = cache / _state(file, beside)
    if not made.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=cache))
        try:
            _fill(unfinished, file, beside)
            unfinished.rename(made)
        except OSError:
            if not made.is_dir():  # another process was first
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        _forget(cache)
    os.utime(made)
    return made


def _fill(directory: Path, file: Path, beside: list[Path]) -> None:
    (directory / LINK).symlink_to(file)
    for path in beside:
        (directory / path.name).symlink_to(path)
    if beside:
        return
    gguf = open_gguf(file)
    config = gguf_model.model_config(gguf)
    write_json(directory / "config.json", config)
    ids = {name: value for name, value in config.items() if name.endswith("_token_id")}
    write_json(directory / "generation_config.json", ids)
    gguf_model.write_tokenizer(gguf, directory)


def _state(file: Path, beside: list[Path]) -> str:
    """Of all that a directory is made from, what makes it included."""
    told = hashlib.sha256(Path(gguf_model.__file__).read_bytes())
    told.update(version("transformers").encode())
    for path in (file, *beside):
        found = path.stat()
        told.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return told.hexdigest()[:32]


def _cache() -> Path:
    """Ours alone; raises CheckpointError where it cannot be."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(user) / "antiphon" / "gguf"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = cache.lstat()
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(cache, os.W_OK)
    except OSError:
        is_ours = False
    if not is_ours:
        raise CheckpointError(
            f"{cache} must be a directory that you and nobody else may write: a GGUF's config and tokenizer "
            "are kept there. Set XDG_CACHE_HOME to another place"
        )
    return cache


def _forget(cache: Path) -> None:
    """All but the directories used last."""
    made = sorted(
        (path for path in cache.iterdir() if path.name[0] != "."), key=lambda path: path.stat().st_mtime
    )
    for old in made[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
