"""Where a figure comes from: command, commit, machine, version."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def command() -> str:
    """The command line, without the program's directories; `python -m antiphon.cli` is `antiphon`."""
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
    """Processor, cores, system, and what decides how fast code runs on them."""
    cores = f"{os.cpu_count()} cores"
    software = [f"{name} {found}" for name in ("torch", "numba") if (found := package_version(name))]
    python = f"python {platform.python_version()}"
    return ", ".join((processor(), cores, platform.system(), python, *software))


def processor() -> str:
    """Its model where the system tells, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.machine()


def package_version(name: str = "antiphon") -> str:
    """Empty where it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def parser(about: str | None, work: str) -> argparse.ArgumentParser:
    """The beginning of a script in benchmarks/ that keeps its parts in a folder `--work`, which it makes, and
    its result in a file `--out`."""

    def folder(path: str) -> Path:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Path(path)

    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--work", type=folder, default=work, help="of what is done")
    made.add_argument("--out", type=Path, required=True)
    return made


def keep(result: dict[str, Any], out: Path | None) -> None:
    """The end of a script in benchmarks/: print its result with where it comes from, and keep it in `out`.
    What the result says of that itself stands."""
    about = {"command": f"python benchmarks/{command()}", "commit": commit(), "machine": machine()}
    text = json.dumps(result | {key: value for key, value in about.items() if key not in result}, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


def once(path: Path, part: Callable[[], Any]) -> Any:
    """What a part of a script in benchmarks/ gives, kept as JSON in a file: a part whose file is there is not
    run again."""
    if not path.exists():
        path.write_text(json.dumps(part()))
        sys.stderr.write(f"{path.stem}\n")
    return json.loads(path.read_text())


def _git(directory: Path, *words: str) -> str:
    out = subprocess.run(
        ("git", *words), cwd=directory, check=True, text=True, capture_output=True, timeout=10
    ).stdout
    return out.strip()
