"""Commands and processes of an engine that begin as a fork of one that has imported what they need. To import
torch takes longer than most of what tests let such a process do.

`Forked` is `subprocess.Popen`, but for the beginning of `python -m` with one of `MODULES`. Such a process is
a child of the one that starts it: it is waited for, stopped and killed as any other. Where it starts
processes itself, they are forked as well. What is forked from runs no thread and holds no descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

spawned = subprocess.Popen
"""Starts a process that imports what it needs."""

PYTHON = [sys.executable, "-m"]
START = [*PYTHON, "antiphon.runtime"]
MODULES = ("antiphon", "antiphon.runtime", "antiphon.engine.follower")
"""What is started with them. None of them is imported before."""
STARTERS = (["antiphon", "serve"], ["antiphon", "compare"], ["antiphon.runtime", "worker"])
"""Words that processes begin with which start others."""
IMPORTED = (
    *("antiphon.engine.ranks", "antiphon.server.launch", "antiphon.bench.compared"),
    *("antiphon.runtime.worker", "antiphon.runtime.stage_worker"),
    *(f"antiphon.models.{family}.family" for family in ("cascade", "qwen3_omni", "text")),
    *(
        f"antiphon.models.qwen3_omni.{part}"
        for part in ("encoders", "memory", "packed_convolutions", "vocoder")
    ),
    *(f"antiphon.models.qwen_media.{part}" for part in ("media_stage", "preprocess")),
    *(f"antiphon.nn.cpu.{part}" for part in ("activation", "draws", "experts", "passes", "steps")),
    *("anyio._backends._asyncio", "rich.progress", "typer", "uvicorn.protocols.http.auto"),
    "transformers.models.auto.tokenization_auto",
)
"""And what they import later: but for `antiphon.cli`, whose console is as wide as it is told then."""
NAME = "forks"
"""Of a process to fork from, where the system lists it."""
MOST_BYTES, MOST_DESCRIPTORS = 1 << 17, 64
START_NEW_SESSION = 21
"""Its place among what `Popen` is told."""
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
    """A process that is wanted. words: a module's name and what it is told; places: numbers that its
    descriptors have; mask: signals that it blocks; apart: in a session of its own."""

    words: list[str]
    env: dict[str, str]
    places: list[int]
    mask: list[int]
    apart: bool

    @property
    def starts_others(self) -> bool:
        return self.words[:2] in STARTERS


class Forked(subprocess.Popen):
    """In the place of `subprocess.Popen` once `forks` says where to ask for a fork."""

    forks = b""

    def _execute_child(self, *about: Any) -> None:
        args, executable, preexec_fn, close_fds, pass_fds, cwd, env = about[:7]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = about[10:16]
        words = list(args) if isinstance(args, list | tuple) else [args]
        is_known = words[:2] == PYTHON and words[2] in MODULES
        if not is_known or executable or preexec_fn or cwd or not close_fds:
            super()._execute_child(*about)
            return
        stdio = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        env = dict(os.environ if env is None else env)
        asked = Asked(words[2:], env, [0, 1, 2, *pass_fds], [*mask], bool(about[START_NEW_SESSION]))
        with _takes_orphans(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.connect(self.forks)
            socket.send_fds(server, [json.dumps(vars(asked)).encode()], [*stdio, *pass_fds])
            self.pid = int(server.recv(MOST_BYTES))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


@dataclass(frozen=True)
class Begun:
    """What was forked. It tells its number once it is found as what it is."""

    asked: Asked
    descriptors: list[int]
    told: int

    def close(self) -> None:
        for descriptor in (self.told, *self.descriptors):
            os.close(descriptor)


def _serve(listener: socket.socket, lifeline: int) -> Begun:
    """Forks a process for whoever asks, until the lifeline ends. Returns in what was forked."""
    _be_called(NAME)
    while True:
        ready, _, _ = select.select([listener, lifeline], [], [])
        if lifeline in ready:
            os._exit(0)
        connection, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
        read, write = os.pipe()
        if not (between := os.fork()):
            if os.fork():
                os._exit(0)
            for one in (read, lifeline):
                os.close(one)
            connection.close()
            listener.close()
            return Begun(Asked(**json.loads(data)), descriptors, write)
        os.close(write)
        os.waitpid(between, 0)  # what it forked has its parent now
        connection.send(os.read(read, MOST_BYTES))
        os.close(read)
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)


def _be_called(name: str) -> None:
    _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _listener() -> socket.socket:
    """At an address of its own."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"\0antiphon-{NAME}-{os.getpid()}")
    made.listen()
    return made


def _begin(begun: Begun) -> None:
    """What `python -m` does, in this process."""
    asked, descriptors = begun.asked, begun.descriptors
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
    signal.pthread_sigmask(signal.SIG_SETMASK, asked.mask)
    sys.argv[1:] = asked.words[1:]
    runpy.run_module(asked.words[0], run_name="__main__", alter_sys=True)


def _found(begun: Begun) -> Begun:
    """It is in its session, goes by its name, and what it would fork from goes by another one."""
    if begun.asked.apart:
        os.setsid()
    if begun.asked.starts_others and (forked := _leave_a_copy(begun)) is not begun:
        return _found(forked)
    _be_called("python")
    os.write(begun.told, str(os.getpid()).encode())
    os.close(begun.told)
    return begun


def _leave_a_copy(begun: Begun) -> Begun:
    """A copy of this process, which has only begun, stays as it is for what this one starts. Returns in this
    one, and in what is forked from the copy."""
    listener = _listener()
    lifeline, life = os.pipe()
    if not os.fork():
        os.close(life)
        begun.close()
        return _serve(listener, lifeline)
    os.close(lifeline)
    Forked.forks = _address(listener)
    listener.close()
    subprocess.Popen = Forked
    return begun


def _address(listener: socket.socket) -> bytes:
    found = listener.getsockname()
    return found if isinstance(found, bytes) else found.encode()


def _make_compiler_ready() -> None:
    """It registers what it knows when it is first used, and that takes a quarter of a second."""
    from antiphon.nn.cpu import has_compiler

    if not has_compiler():
        return
    from numba.core.registry import cpu_target

    for context in (cpu_target.typing_context, cpu_target.target_context):
        context.refresh()


def main() -> None:
    """The process to fork from: it lives as long as its standard input, and writes its address."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    gc.disable()
    for module in IMPORTED:
        importlib.import_module(module)
    _make_compiler_ready()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has no thread but that which forks"
    listener = _listener()
    os.write(1, _address(listener))
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    begun = _found(_serve(listener, lifeline))
    gc.enable()
    _begin(begun)


def children(pid: int) -> list[int]:
    """Of a process, in the order in which they were started, but for what is forked from."""
    return [child for child in _all_children(pid) if not _is_forked_from(child)]


def copies(pid: int) -> list[int]:
    """Children of a process that are forked from."""
    return [child for child in _all_children(pid) if _is_forked_from(child)]


def _all_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_forked_from(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{NAME}\n"
    except OSError:
        return False


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
    main()
