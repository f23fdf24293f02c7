"""Media by remote URL: only from hosts that the operator names, not from private addresses, under bounds."""

from __future__ import annotations

import asyncio
import http.client
import io
import ipaddress
import socket
import ssl
import string
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.wire.errors import shown
from antiphon.wire.limits import check

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 3
MAX_URLS = 16
THREADS = 2 * MAX_URLS
PIECE_BYTES = 64 * 1024
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses as IPv6-only networks have them."""


class MediaFetcher:
    """Fetches what requests name. `hosts` are `host` (ports 80 and 443) or `host:port`; none: nothing is.

    A name that leads to a private address is refused, so that no client reaches what only this machine can
    reach; a literal address that the operator wrote down is meant.
    """

    def __init__(self, hosts: tuple[str, ...], max_bytes: int, max_all_bytes: int, timeout_s: float) -> None:
        """max_bytes: of one medium; max_all_bytes: of all that a request names."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._max_all_bytes = max_all_bytes
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, "fetch")
        """A slow host holds up no other work."""

    async def fetch(self, urls: dict[str, str]) -> dict[str, bytes]:
        """Bytes by URL. Raises ProtocolError, with the URL's value in `urls` as its param, or LimitExceeded;
        refusals come before any fetch."""
        if len(urls) > MAX_URLS:
            raise LimitExceeded("max_media_urls", MAX_URLS, len(urls))
        for url in urls:
            self._placed(self._check, url, urls[url])
        loop, bounds = asyncio.get_running_loop(), _Bounds(time.monotonic() + self._timeout_s)
        read = partial(self._read, bounds)
        reads = [loop.run_in_executor(self._threads, self._placed, read, url, at) for url, at in urls.items()]
        return dict(zip(urls, await asyncio.gather(*reads), strict=True))

    def _placed(self, work: Callable[[str], T], url: str, at: str) -> T:
        try:
            return work(url)
        except ProtocolError as error:
            error.param = at
            raise

    def _check(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError:
            raise ProtocolError(f"{shown(url)} is not a URL.", code="invalid_url") from None
        host = (parts.hostname or "").lower()
        names = {f"{host}:{port}"} | ({host} if port == PORTS.get(parts.scheme) else set())
        if parts.scheme not in PORTS or parts.username or not names & self._hosts:
            allowed = ", ".join(sorted(self._hosts)) or "none"
            raise ProtocolError(
                f"Media are not fetched from {shown(host)}; the operator allows these hosts: {allowed}."
                " Send the media as a data: URL.",
                code="media_url_not_allowed",
            )
        return parts

    def _read(self, bounds: _Bounds, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            parts = self._check(url)
            try:
                location, body = self._get(parts, bounds)
                if location is None:
                    return body
                url = urljoin(url, location)
            except TimeoutError:
                raise LimitExceeded("media_url_timeout_s", self._timeout_s, inf) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                kind = type(error).__name__
                raise _failed(url, f"cannot be fetched ({kind})") from None
        raise _failed(url, f"redirects more than {MAX_REDIRECTS} times")

    def _get(self, parts: SplitResult, bounds: _Bounds) -> tuple[str | None, bytes]:
        """Where it is redirected to, or the body."""
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock = self._connect(host, port, parts.scheme == "https", bounds)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"User-Agent": "antiphon", "Accept-Encoding": "identity"}
            connection.request("GET", quote(path, safe=string.punctuation), headers=headers)
            with http.client.HTTPResponse(sock, method="GET") as answer:
                answer.fp.close()
                answer.fp = io.BufferedReader(_Incoming(sock, bounds))
                answer.begin()
                location = answer.getheader("Location")
                if answer.status in REDIRECTS and location:
                    return location, b""
                if answer.status != 200:
                    raise _failed(parts.geturl(), f"answers with status {answer.status}")
                return None, self._body(answer, bounds)
        finally:
            connection.close()

    def _connect(self, host: str, port: int, secure: bool, bounds: _Bounds) -> socket.socket:
        """A socket to an address that was checked: the name is not looked up a second time."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not _is_address(host) and not _are_public(addresses):
            raise ProtocolError(
                f"{shown(host)} leads to a private address; media are fetched from public ones only.",
                code="media_url_not_allowed",
            )
        plain = socket.create_connection((addresses[0], port), bounds.left_s())
        if not secure:
            return plain
        try:
            plain.settimeout(bounds.left_s())
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _body(self, answer: http.client.HTTPResponse, bounds: _Bounds) -> bytes:
        pieces, num_bytes = [], 0
        while piece := answer.read1(PIECE_BYTES):
            pieces.append(piece)
            num_bytes += len(piece)
            check("max_file_bytes", self._max_bytes, num_bytes)
            check("max_body_bytes", self._max_all_bytes, bounds.count(len(piece)), "of all media by URL")
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
        return b"".join(pieces)


@dataclass(slots=True)
class _Bounds:
    """What the fetches of one request share. deadline_s: by time.monotonic()."""

    deadline_s: float
    num_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left_s(self) -> float:
        """Raises TimeoutError behind the deadline."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def count(self, num_bytes: int) -> int:
        """How many they are with these."""
        with self.lock:
            self.num_bytes += num_bytes
            return self.num_bytes


class _Incoming(io.RawIOBase):
    """What comes through a socket. A host that sends a byte now and then is cut off at the deadline too."""

    def __init__(self, sock: socket.socket, bounds: _Bounds) -> None:
        self._sock = sock
        self._bounds = bounds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._sock.settimeout(self._bounds.left_s())
        return self._sock.recv_into(buffer)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _are_public(addresses: Iterable[str]) -> bool:
    return all(_reached(ipaddress.ip_address(address.partition("%")[0])).is_global for address in addresses)


def _reached(address: Address) -> Address:
    return ipaddress.IPv4Address(address.packed[-4:]) if address in NAT64 else address


def _failed(url: str, why: str) -> ProtocolError:
    return ProtocolError(f"The media URL {shown(url)} {why}.", code="media_url_failed")
