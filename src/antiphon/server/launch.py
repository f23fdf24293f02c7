"""One server over one engine process: start both, serve, drain, stop both."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.model_info import ModelInfo
from antiphon.runtime.launch import EngineProcess
from antiphon.runtime.messages import Start
from antiphon.server.app import attach_engine, create_app
from antiphon.server.runner import DrainingServer, Tls, server_for
from antiphon.server.serving import Serving
from antiphon.server.settings import ServerSettings

logger = logging.getLogger("antiphon.server")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where to listen; certificate and key come together or not at all."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    def tls(self) -> Tls | None:
        """Raises ConfigError if only one of the two is given or a file is missing."""
        if self.certificate is None and self.key is None:
            return None
        if self.certificate is None or self.key is None:
            raise ConfigError("TLS needs both --tls-certificate and --tls-key")
        for path in (self.certificate, self.key):
            if not path.is_file():
                raise ConfigError(f"{path}: no such file (TLS certificate or key)")
        return Tls(str(self.certificate), str(self.key))


async def run(start: Start, settings: ServerSettings, where: ServeOptions, progress: Progress) -> None:
    """Serve until a signal. The port answers (as not ready) while the model loads.

    Raises AntiphonError if the engine cannot start, or dies again and again, or the port cannot be had, and
    ConfigError for certificates and keys that cannot be used.
    """
    app = create_app(settings=settings)
    serving_state: Serving = app.state.serving

    def show(what: str, done: int, total: int) -> None:
        serving_state.loading = f"{what}, {100 * done // total} %" if total else what
        progress(what, done, total)

    server = server_for(app, where.host, where.port, where.tls())
    _read_keys(server, where)
    engine = EngineProcess(app.state.serving.forsake)
    serving = asyncio.create_task(_listen(server, where))
    loading = asyncio.create_task(engine.start(start, show))
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading
            progress("", 0, 0)
            attach_engine(app, engine)
            logger.info("%s", abilities(engine.info))
            logger.info("%s is ready: open %s", engine.info.name, _address(server, where))
        gone = asyncio.create_task(engine.gone.wait())
        await asyncio.wait({serving, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if engine.gone.is_set():
            raise AntiphonError("the engine died again and again; its log says why")
        await serving
    finally:
        loading.cancel()
        server.should_exit = True
        await asyncio.gather(serving, loading, return_exceptions=True)
        await engine.stop()


def abilities(info: ModelInfo) -> str:
    """What the model takes and gives, for whoever starts a server."""
    takes = ["text"]
    if "audio" in info.inputs:
        takes.append("speech")
    if "image" in info.inputs:
        takes += ["pictures", "silent video (input_video)"]
    *first, last = takes
    listed = f"{', '.join(first)} and {last}" if first else last
    lacks = [what for what, has in (("hear", "audio" in info.inputs), ("speak", info.voices)) if not has]
    gives = "text and speech" if info.voices else "text"
    without = f"; it does not {' or '.join(lacks)}" if lacks else ""
    return f"{info.name} takes {listed}, and replies in {gives}{without}"


def _read_keys(server: DrainingServer, where: ServeOptions) -> None:
    """uvicorn reads certificate and key here, and not once more when it listens. Raises ConfigError."""
    try:
        server.config.load()
    except OSError as error:  # of which those of TLS are
        why = "one of them is no PEM file, or the key has a passphrase that was not given"
        if "KEY_VALUES_MISMATCH" in str(error):
            why = "the key is another certificate's"
        raise ConfigError(
            f"TLS cannot use {where.certificate} (--tls-certificate) with {where.key} (--tls-key): {why}"
        ) from None


async def _listen(server: DrainingServer, where: ServeOptions) -> None:
    """When uvicorn cannot bind it logs the system's error and raises SystemExit; people are told in words."""
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addFilter(_is_no_system_error)
    try:
        await server.serve()
    except SystemExit:
        raise AntiphonError(
            f"cannot listen on {where.host}:{where.port}: {_why_not(where.host, where.port)}"
        ) from None
    finally:
        uvicorn_log.removeFilter(_is_no_system_error)


def _is_no_system_error(record: logging.LogRecord) -> bool:
    return not isinstance(record.msg, OSError)


def _why_not(host: str, port: int) -> str:
    """What keeps us from listening there, and what to do."""
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as tried:
            tried.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "the port is taken; choose another --port, or 0 for any that is free"
        if error.errno == errno.EACCES:
            return "a port below 1024 needs rights that this process has not; choose another --port"
        return f"{host!r} is not an address of this machine; 0.0.0.0 stands for all of them (--host)"
    return "the port was taken or not allowed; choose another --port"


def _address(server: DrainingServer, where: ServeOptions) -> str:
    scheme = "https" if where.certificate else "http"
    port = server.servers[0].sockets[0].getsockname()[1] if server.servers else where.port
    return f"{scheme}://{where.host}:{port}/"
