"""Media by remote URL: only from hosts that the operator names, not from private addresses, under bounds."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.wire.errors import shown

T = TypeVar("T")

PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 3
MAX_URLS = 16
PIECE_BYTES = 64 * 1024


class MediaFetcher:
    """Fetches what requests name. `hosts` are `host` (ports 80 and 443) or `host:port`; none: nothing is.

    A name that leads to a private address is refused, so that no client reaches what only this machine can
    reach; a literal address that the operator wrote down is meant.
    """

    def __init__(self, hosts: tuple[str, ...], max_bytes: int, timeout_s: float) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def fetch(self, urls: dict[str, str]) -> dict[str, bytes]:
        """Bytes by URL. Raises ProtocolError, with the URL's value in `urls` as its param, or LimitExceeded;
        refusals come before any fetch."""
        if len(urls) > MAX_URLS:
            raise LimitExceeded("max_media_urls", MAX_URLS, len(urls))
        for url in urls:
            self._placed(self._check, url, urls[url])
        reads = [asyncio.to_thread(self._placed, self._read, url, at) for url, at in urls.items()]
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

    def _read(self, url: str) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        for _ in range(MAX_REDIRECTS + 1):
            parts = self._check(url)
            try:
                location, body = self._get(parts, deadline_s)
            except (OSError, http.client.HTTPException) as error:
                kind = type(error).__name__
                raise _failed(url, f"cannot be fetched ({kind})") from None
            if location is None:
                return body
            url = urljoin(url, location)
        raise _failed(url, f"redirects more than {MAX_REDIRECTS} times")

    def _get(self, parts: SplitResult, deadline_s: float) -> tuple[str | None, bytes]:
        """Where it is redirected to, or the body."""
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        connection = http.client.HTTPConnection(host, port)
        connection.sock = self._connect(host, port, parts.scheme == "https", deadline_s)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"User-Agent": "antiphon", "Accept-Encoding": "identity"})
            with connection.getresponse() as answer:
                location = answer.getheader("Location")
                if answer.status in REDIRECTS and location:
                    return location, b""
                if answer.status != 200:
                    raise _failed(parts.geturl(), f"answers with status {answer.status}")
                return None, self._body(answer, deadline_s)
        finally:
            connection.close()

    def _connect(self, host: str, port: int, secure: bool, deadline_s: float) -> socket.socket:
        """A socket to an address that was checked: the name is not looked up a second time."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not _is_address(host) and not _are_public(addresses):
            raise ProtocolError(
                f"{shown(host)} leads to a private address; media are fetched from public ones only.",
                code="media_url_not_allowed",
            )
        timeout_s = max(deadline_s - time.monotonic(), 0.001)
        plain = socket.create_connection((addresses[0], port), timeout_s)
        if not secure:
            return plain
        try:
            return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def _body(self, answer: http.client.HTTPResponse, deadline_s: float) -> bytes:
        pieces, num_bytes = [], 0
        while piece := answer.read1(PIECE_BYTES):
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > self._max_bytes:
                raise LimitExceeded("max_file_bytes", self._max_bytes, num_bytes)
            if time.monotonic() > deadline_s:
                raise LimitExceeded("media_url_timeout_s", self._timeout_s, float("inf"))
        return b"".join(pieces)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _are_public(addresses: Iterable[str]) -> bool:
    return all(ipaddress.ip_address(address.partition("%")[0]).is_global for address in addresses)


def _failed(url: str, why: str) -> ProtocolError:
    return ProtocolError(f"The media URL {shown(url)} {why}.", code="media_url_failed")
