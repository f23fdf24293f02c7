"""What the commands share: where messages go, how they fail, how loading shows."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TaskID, TextColumn
from rich.text import Text

from antiphon.core.errors import ConfigError

console = Console(stderr=True, highlight=False)

PAGE_COLUMNS = 130
"""Width of a table that does not go to a terminal."""


class Amount(DownloadColumn):
    """Bytes while weights are read, numbers of what is rehearsed or compiled."""

    def render(self, task: Task) -> Text:
        if task.description.startswith(("rehearsing", "compiling")):
            total = "" if task.total is None else f"/{task.total:.0f}"
            return Text(f"{task.completed:.0f}{total}", style="progress.download")
        return super().render(task)


class LoadingBar:
    """Shows what is being loaded and how far it is; a line for each of it where nobody watches a terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), Amount())
        self._is_watched = console.is_terminal
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._is_watched)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """An empty `what` means that loading is over."""
        if not what:
            self._progress.stop()
            return
        self._progress.start()
        if what not in self._tasks:
            if not self._is_watched:
                console.print(f"{what} …")
            self._tasks[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)


def log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # the server itself says when it listens


@contextmanager
def terminated_as_interrupted() -> Generator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does, so that what is known by then can be told."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_out(out: Path) -> None:
    """Raises ConfigError unless the directory `--out` is there, or no file stands in its way."""
    first = next(path for path in (out, *out.absolute().parents) if path.exists() or path.is_symlink())
    if not first.is_dir():
        raise ConfigError(f"--out {out}: {first} is not a directory; give another --out (it is created)")


def given_options(context: typer.Context) -> frozenset[str]:
    """Names of options that were said, on the command line or in the environment."""
    return frozenset(
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    )


def split(values: str) -> tuple[str, ...]:
    return tuple(value.strip() for value in values.split(",") if value.strip())


def say(words: str) -> None:
    console.print(escape(words), soft_wrap=True)


def fail(error: Exception) -> NoReturn:
    console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    raise typer.Exit(1)


def warn_of_cut(record: Path) -> None:
    """Tell of a record whose writer was stopped in the middle of a decision. Raises OSError, ConfigError."""
    from antiphon.runtime.record import ends_early

    if ends_early(record):
        console.print(
            "[bold yellow]warning:[/] the record ends in the middle of a decision: its server was "
            "killed, or the disk was full"
        )
