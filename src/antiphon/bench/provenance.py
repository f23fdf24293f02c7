"""Where a figure comes from: command, commit, machine, version."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def command() -> str:
    """As it was typed, without directories of the program; `python -m antiphon.cli` is `antiphon`."""
    name = Path(sys.argv[0]).name
    return " ".join(("antiphon" if name == "__main__.py" else name, *sys.argv[1:]))


def commit() -> str:
    """Of this source tree, `+` for changes that are not committed; empty outside of a repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> str:
    cores = f"{os.cpu_count()} cores"
    return f"{platform.machine()}, {cores}, {platform.system()}, python {platform.python_version()}"


def package_version() -> str:
    try:
        return version("antiphon")
    except PackageNotFoundError:
        return ""


def _git(directory: Path, *words: str) -> str:
    out = subprocess.run(
        ("git", *words), cwd=directory, check=True, text=True, capture_output=True, timeout=10
    ).stdout
    return out.strip()
