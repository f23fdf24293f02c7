"""The log of a run as a file: written while it happens, read back for every figure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from antiphon.core.errors import ConfigError, system_words
from antiphon.metrics.log import Event

logger = logging.getLogger("antiphon.bench")


class LogUnwritable(ConfigError):
    """The run's log cannot be written, or no more of it: the run ends."""


class LogWriter:
    """Appends events to a new file and holds the run's clock: `now_s` is zero when the writer is made.

    `watch` sees every event as it is written. Nothing is on disk for certain before `flush` or the exit. All
    three raise LogUnwritable if the disk is full.
    """

    def __init__(
        self, path: Path, *, watch: Callable[[Event], None] | None = None, force: bool = False
    ) -> None:
        self.path = path
        self.start_s = time.monotonic()
        self._watch = watch
        self._encoder = msgspec.json.Encoder()
        try:
            self._file = path.open("wb" if force else "xb")
        except FileExistsError as error:
            raise ConfigError(f"{path} exists; name another log, or overwrite it with --force") from error
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            raise self._failed(failure) from failure

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self.start_s

    def write(self, event: Event) -> None:
        try:
            self._file.write(self._encoder.encode(event) + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        if self._watch is not None:
            self._watch(event)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> LogUnwritable:
        return LogUnwritable(f"cannot write the log {self.path}: {system_words(error)}")


def read(path: Path) -> Iterator[Event]:
    """The events of a log, in order. A last line that was cut short is dropped with a warning.

    Raises ConfigError for a file that is not a log, with the line where it ceases to be one.
    """
    decoder = msgspec.json.Decoder(Event)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    event = decoder.decode(line)
                except msgspec.MsgspecError as error:
                    if not line.endswith(b"\n"):
                        logger.warning("%s:%d: the last line is cut short; it is left out", path, number)
                        return
                    raise ConfigError(f"{path}:{number}: not an event of a run: {error}") from error
                yield event
    except OSError as error:
        raise ConfigError(f"cannot read the log {path}: {system_words(error)}") from error
