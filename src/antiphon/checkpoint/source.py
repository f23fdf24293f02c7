"""Where a checkpoint comes from: a directory, a GGUF, or a hub id that is fetched into the hub's own cache.

Knows paths and the hub; must not know what the files hold.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.checkpoint.gguf_directory import SUFFIX, directory_of, gguf_in
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

FETCHED_PATTERNS = ["*.json", "*.txt", "*.jinja", "*.safetensors", "spk_dict.pt"]
"""No code is ever fetched; of pickles only Qwen2.5-Omni's voices, of which nothing but tensors is read."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

PATH_STARTS = ("/", "./", "../", "~")
"""No hub id begins so."""
CHECK = (
    "Check the path, or name a hub id (org/name); `antiphon checkpoint` makes a small one to try things with"
)


def check_source(source: str) -> None:
    """Fetches nothing. Raises CheckpointError for what is neither a directory with a config.json nor may be a
    hub id."""
    named = Path(source).expanduser()
    if named.is_dir() or named.is_file() or not _may_be_of_the_hub(source):
        path = find_directory(source) / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{path.parent} has no config.json: it is not a model checkpoint")


def find_directory(source: str, progress: Callable[[str], None] | None = None) -> Path:
    """The local directory of `source`. Raises CheckpointError where there is none."""
    path = Path(source).expanduser()
    if source and path.is_dir():
        alone = None if (path / "config.json").is_file() else gguf_in(path)
        return path if alone is None else directory_of(alone)
    if source and path.suffix == SUFFIX and path.is_file():
        return directory_of(path)
    if source and path.exists():
        raise CheckpointError(f"{source} is a file; name the directory that holds config.json, or a GGUF")
    if source.startswith(PATH_STARTS):
        raise CheckpointError(f"There is no directory {source!r}. {CHECK}")
    if _HUB_ID.fullmatch(source) is None:
        raise CheckpointError(f"{source!r} is neither a directory nor a hub id. {CHECK}")
    if not _may_be_of_the_hub(source):
        raise CheckpointError(
            f"There is no directory {source!r}; as there is one {path.parent.name!r}, the hub is not asked. "
            "Check the path; if you mean a hub id, run this in another directory"
        )
    return _fetch(source, progress)


def _may_be_of_the_hub(source: str) -> bool:
    """Has it the form of a hub id, and is no directory of such an organisation's name here?"""
    return _HUB_ID.fullmatch(source) is not None and not Path(source).parent.is_dir()


def _fetch(hub_id: str, progress: Callable[[str], None] | None) -> Path:
    # Imported here: a checkpoint on disk needs no hub.
    from huggingface_hub import snapshot_download

    if progress is not None:
        progress(f"fetching {hub_id} from the hub, where it is not in the cache yet")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=FETCHED_PATTERNS))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise CheckpointError(_not_fetched(hub_id, error)) from error


def _not_fetched(hub_id: str, error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    there = f"There is no directory {hub_id!r} here, and the hub"
    if status in (401, 403):
        return f"{there} refuses it ({status}): log in with `hf auth login` and accept the model's terms"
    if status == 404:
        return f"{there} has no such model: check the spelling of {hub_id!r}"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return (
        f"{there} is out of reach or offline ({type(error).__name__}: {reason}). Connect and try again, "
        "or copy the checkpoint to this machine and give its directory"
    )
