"""Processes of an engine that begin as a fork of one that has imported what they need. To import torch takes
longer than most of what tests let such a process do.

`Forked` is `subprocess.Popen`, but for the beginning of `python -m antiphon.runtime PROGRAM ARGUMENT`. Such a
process is a child of the one that starts it: it is waited for, stopped and killed as any other. Where it
starts processes itself, they are forked as well. What is forked from runs no thread and holds no descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

spawned = subprocess.Popen
"""Starts a process that imports what it needs."""

START = [sys.executable, "-m", "antiphon.runtime"]
IMPORTED = (
    *("antiphon.runtime.worker", "antiphon.runtime.stage_worker"),
    *(f"antiphon.models.{family}.family" for family in ("cascade", "qwen3_omni", "text")),
    *(
        f"antiphon.models.qwen3_omni.{part}"
        for part in ("encoders", "memory", "packed_convolutions", "vocoder")
    ),
    *(f"antiphon.models.qwen_media.{part}" for part in ("media_stage", "preprocess")),
    *(f"antiphon.nn.cpu.{part}" for part in ("activation", "draws", "experts", "passes", "steps")),
    "transformers.models.auto.tokenization_auto",
)
"""And what they import once they load a model."""
NAME = "forks"
"""Of a process to fork from, where the system lists it."""
MOST_BYTES, MOST_DESCRIPTORS = 1 << 17, 64
HIGH = 256
"""Descriptors from here on are no process's own when it begins."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


def _prctl(option: int, value: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@contextlib.contextmanager
def _takes_orphans() -> Iterator[None]:
    """Processes below this one whose parent ends meanwhile become its children."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


@dataclass(frozen=True)
class Asked:
    """A process that is wanted. places: numbers that its descriptors have; mask: signals that it blocks."""

    words: list[str]
    env: dict[str, str]
    places: list[int]
    mask: list[int]


class Forked(subprocess.Popen):
    """In the place of `subprocess.Popen` once `forks` says where to ask for a fork."""

    forks = b""

    def _execute_child(self, *about: Any) -> None:
        args, executable, preexec_fn, close_fds, pass_fds, cwd, env = about[:7]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = about[10:16]
        words = list(args) if isinstance(args, list | tuple) else [args]
        if words[:3] != START or executable or preexec_fn or cwd or not close_fds:
            super()._execute_child(*about)
            return
        stdio = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        asked = Asked(words[3:], dict(os.environ if env is None else env), [0, 1, 2, *pass_fds], [*mask])
        with _takes_orphans(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(self.forks)
            socket.send_fds(server, [json.dumps(vars(asked)).encode()], [*stdio, *pass_fds])
            self.pid = int(server.recv(MOST_BYTES))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _serve(listener: socket.socket, lifeline: int) -> tuple[Asked, list[int]]:
    """Forks a process for whoever asks, until the lifeline ends. Returns in what was forked."""
    _prctl(PR_SET_NAME, ctypes.c_char_p(NAME.encode()))
    while True:
        ready, _, _ = select.select([listener, lifeline], [], [])
        if lifeline in ready:
            os._exit(0)
        connection, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
        read, write = os.pipe()
        if not (between := os.fork()):
            if pid := os.fork():
                os.write(write, str(pid).encode())
                os._exit(0)
            for one in (read, write, lifeline):
                os.close(one)
            connection.close()
            listener.close()
            return Asked(**json.loads(data)), descriptors
        os.close(write)
        os.waitpid(between, 0)  # what it forked has its parent now
        connection.send(os.read(read, MOST_BYTES))
        os.close(read)
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)


def _listener() -> socket.socket:
    """At an address of its own."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"\0antiphon-{NAME}-{os.getpid()}")
    made.listen()
    return made


def _begin(asked: Asked, descriptors: list[int]) -> int:
    """What `python -m antiphon.runtime` does, in this process. Returns its exit status."""
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, HIGH) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, place in zip(high, asked.places, strict=True):
        os.dup2(one, place)
        os.close(one)
    os.environ.clear()
    os.environ.update(asked.env)
    known = {*sys.path}
    sys.path += [one for one in asked.env.get("PYTHONPATH", "").split(os.pathsep) if one and one not in known]
    _prctl(PR_SET_NAME, ctypes.c_char_p(b"python"))
    signal.pthread_sigmask(signal.SIG_SETMASK, asked.mask)
    return importlib.import_module("antiphon.runtime.__main__").main(*asked.words)


def _fork_from_a_fork(asked: Asked, descriptors: list[int]) -> tuple[Asked, list[int]]:
    """A copy of this process, which has only begun, stays as it is for what this one starts. Returns in this
    one, and in what is forked from the copy."""
    listener = _listener()
    lifeline, life = os.pipe()
    if not os.fork():
        for descriptor in (life, *descriptors):
            os.close(descriptor)
        return _serve(listener, lifeline)
    os.close(lifeline)
    Forked.forks = _address(listener)
    listener.close()
    subprocess.Popen = Forked
    return asked, descriptors


def _address(listener: socket.socket) -> bytes:
    found = listener.getsockname()
    return found if isinstance(found, bytes) else found.encode()


def main() -> int:
    """The process to fork from: it lives as long as its standard input, and writes its address."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has no thread but that which forks"
    listener = _listener()
    os.write(1, _address(listener))
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    asked, descriptors = _serve(listener, lifeline)
    if asked.words[0] == "worker":
        asked, descriptors = _fork_from_a_fork(asked, descriptors)
    gc.enable()
    return _begin(asked, descriptors)


@contextlib.contextmanager
def served() -> Iterator[bytes]:
    """A process to fork from, below this one; where to ask it."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    server = spawned(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
    )
    with server:
        assert server.stdout is not None
        yield os.read(server.stdout.fileno(), MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
