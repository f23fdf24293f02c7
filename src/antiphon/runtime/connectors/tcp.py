"""Two hosts: frames over TCP, after both sides have proved that they know the same secret.

The greeting, fixed in size: magic, version, nonce; from the listener also the limits. Each side then proves
itself by an HMAC over both greetings and its own role, compared in constant time. What follows is neither
encrypted nor signed: use it on networks that are yours.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import time
from collections.abc import Callable

from antiphon.core.errors import ConfigError, PeerLost, system_words
from antiphon.runtime.connectors.limits import PACKED_BYTES, LinkLimits
from antiphon.runtime.connectors.stream import StreamConnector

log = logging.getLogger(__name__)

MAGIC = b"ANTIPHON"
VERSION = 1
GREETING_WAIT_S = 2.0
MIN_SECRET_BYTES = 16
LOST_AFTER_MS = 60_000
_HELLO = struct.Struct("<8sH32s")
_PROOF_BYTES = 32
_ACCEPTED, _REFUSED = b"\1", b"\0"


class Listener:
    """Waits for the other end of a link. `address` is (host, port) with the port that port 0 became."""

    def __init__(self, host: str, port: int, secret: bytes, limits: LinkLimits | None = None) -> None:
        _check(secret)
        self._secret = secret
        self._limits = limits or LinkLimits()
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {system_words(error)}") from None
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def accept(self, timeout_s: float) -> StreamConnector:
        """The next peer that knows the secret; others are turned away and logged. Raises PeerLost after the
        timeout, with what was wrong with the last who came."""
        until, last = time.monotonic() + timeout_s, ""
        while (left_s := until - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                connection, address = self._socket.accept()
            except OSError:
                break
            try:
                wait_s = min(GREETING_WAIT_S, until - time.monotonic())
                return _greeted(connection, wait_s, self._greet)
            except (ConfigError, PeerLost) as error:
                last = f"; the last who came ({address[0]}) was turned away: {error}"
                log.warning("turned %s away: %s", address[0], error)
        raise PeerLost(f"no peer connected within {timeout_s:g} s{last}")

    def fileno(self) -> int:
        """Readable when a peer waits to be accepted."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _greet(self, connection: socket.socket, until: float) -> LinkLimits:
        """Raises ConfigError, PeerLost."""
        mine = _HELLO.pack(MAGIC, VERSION, secrets.token_bytes(32)) + self._limits.packed()
        connection.sendall(mine)
        theirs = _receive(connection, _HELLO.size, until)
        _check_version(theirs)
        proof = _receive(connection, _PROOF_BYTES, until)
        if not hmac.compare_digest(proof, _proof(self._secret, b"connects", mine, theirs)):
            connection.sendall(_REFUSED)
            raise ConfigError("its secret is not ours: give both sides the same")
        connection.sendall(_ACCEPTED + _proof(self._secret, b"listens", mine, theirs))
        return self._limits


def connect(host: str, port: int, secret: bytes, timeout_s: float = 10.0) -> StreamConnector:
    """Raises ConfigError for a wrong secret or version, PeerLost where no peer listens or answers."""
    _check(secret)
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        raise PeerLost(f"no peer listens on {host}:{port} ({system_words(error)})") from None

    def greet(connection: socket.socket, until: float) -> LinkLimits:
        theirs = _receive(connection, _HELLO.size, until)
        mine = _HELLO.pack(MAGIC, VERSION, secrets.token_bytes(32))
        connection.sendall(mine)
        _check_version(theirs)
        theirs += _receive(connection, PACKED_BYTES, until)
        connection.sendall(_proof(secret, b"connects", theirs, mine))
        if _receive(connection, 1, until) != _ACCEPTED:
            raise ConfigError(f"{host}:{port} has another secret: give both sides the same")
        proof = _receive(connection, _PROOF_BYTES, until)
        if not hmac.compare_digest(proof, _proof(secret, b"listens", theirs, mine)):
            raise ConfigError(f"{host}:{port} does not know the secret: give both sides the same")
        return LinkLimits.unpacked(theirs[_HELLO.size :])

    return _greeted(connection, timeout_s, greet)


def between() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection within this host, for two other processes, each of which calls `adopt`
    with its own. Nobody else could connect, so nobody has to prove anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        while True:
            other, address = server.accept()
            if address == one.getsockname():
                return one, other
            other.close()


def adopt(connection: socket.socket) -> StreamConnector:
    """An end of what `between` made. The host itself tells of a peer's death; one that stands still for long
    may go on, and whoever started it knows better."""
    _tune(connection, lost_after_ms=0)
    return StreamConnector(connection, LinkLimits())


def _greeted(
    connection: socket.socket, wait_s: float, greet: Callable[[socket.socket, float], LinkLimits]
) -> StreamConnector:
    """Closes the socket if the greeting fails. Raises ConfigError, PeerLost."""
    try:
        connection.settimeout(max(0.001, wait_s))
        limits = greet(connection, time.monotonic() + wait_s)
        _tune(connection)
        return StreamConnector(connection, limits)
    except OSError as error:
        connection.close()
        raise PeerLost(f"the other side broke the greeting off ({system_words(error)})") from None
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, num_bytes: int, until: float) -> bytes:
    """Exactly this many bytes, by then. Raises PeerLost."""
    data = b""
    while len(data) < num_bytes:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise PeerLost("the other side took too long to greet")
        connection.settimeout(left_s)
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise PeerLost("the other side hung up while greeting")
        data += more
    return data


def _check(secret: bytes) -> None:
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"the connectors' secret has {len(secret)} bytes; {MIN_SECRET_BYTES} or more are needed, "
            "for instance from `openssl rand -hex 32`"
        )


def _check_version(hello: bytes) -> None:
    magic, version, _ = _HELLO.unpack(hello)
    if magic != MAGIC:
        raise PeerLost("the other side is no Antiphon connector")
    if version != VERSION:
        raise ConfigError(
            f"the other side speaks version {version} of the connector, this one {VERSION}: "
            "run the same release on both sides"
        )


def _proof(secret: bytes, role: bytes, listener: bytes, connector: bytes) -> bytes:
    return hmac.digest(secret, role + listener + connector, "sha256")


def _tune(connection: socket.socket, lost_after_ms: int = LOST_AFTER_MS) -> None:
    """Short messages leave at once. A host that is gone without a word is noticed after so long (0: after as
    long as the system has it); a peer that reads nothing for as long, while the window between the kernels is
    full, counts as gone as well."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_USER_TIMEOUT", lost_after_ms)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
