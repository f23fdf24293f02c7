"""Remote media: allowed hosts only, no way round them, and bounds."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import msgspec
import openai
import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.server.fetch import MAX_URLS, MediaFetcher, _are_public
from server.conftest import running
from server.fake_engine import INFO, FakeEngine


class Site(http.server.BaseHTTPRequestHandler):
    """What an allowed host may answer."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        self.send_response(200 if self.path != "/gone" else 404)
        self.end_headers()
        self.wfile.write(b"x" * (5000 if self.path == "/big" else 10))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Site.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetcher(*hosts: str, timeout_s: float = 5.0) -> MediaFetcher:
    return MediaFetcher(hosts, 1000, 2000, timeout_s)


PAUSE_S, LONG_S = 0.05, 5.0
SLOW = {
    "header": (b"HTTP/1.1 200 OK\r\n", b"X"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
}
"""What is sent at once, and what then comes again and again."""


@pytest.fixture
def says() -> Iterator[Any]:
    """Makes a host that answers everybody so: what is sent at once, and what then, each piece after a pause,
    until LONG_S are over."""
    door = socket.create_server(("127.0.0.1", 0))
    with ThreadPoolExecutor(MAX_URLS + 1) as threads:

        def answer(client: socket.socket, at_once: bytes, again: bytes) -> None:
            until = time.monotonic() + LONG_S
            with client:
                try:
                    client.recv(1 << 16)
                    client.sendall(at_once)
                    while again and time.monotonic() < until:
                        client.sendall(again)
                        time.sleep(PAUSE_S)
                except OSError:
                    pass  # it was hung up on

        def open_door(at_once: bytes, again: bytes) -> None:
            while True:
                try:
                    client, _ = door.accept()
                except OSError:
                    return
                threads.submit(answer, client, at_once, again)

        def host(at_once: bytes, again: bytes = b"") -> str:
            threads.submit(open_door, at_once, again)
            return f"127.0.0.1:{door.getsockname()[1]}"

        yield host
        door.shutdown(socket.SHUT_RDWR)
        door.close()


async def test_an_allowed_host_is_read(site: str) -> None:
    url = f"http://{site}/a?b=c"
    assert await fetcher(site).fetch({url: "m"}) == {url: b"x" * 10}
    assert Site.seen == ["/a?b=c"]
    again = f"http://{site}/to?/a"
    assert await fetcher(site).fetch({again: "m"}) == {again: b"x" * 10}


@pytest.mark.parametrize(
    "url",
    [
        "http://{site}/to?http://localhost:{port}/a",
        "http://{site}/to?file:///etc/passwd",
        "http://{site}/to?/to?/to?/to?/to?/to?/a",
        "http://{site}/gone",
        "http://localhost:{port}/a",
        "http://user@{site}/a",
        "http://{site}.example.org/a",
        "http://[broken/a",
        "http://127.0.0.1:99999/a",
        "ftp://{site}/a",
    ],
)
async def test_everything_else_is_refused(site: str, url: str) -> None:
    url = url.format(site=site, port=site.split(":")[1])
    with pytest.raises(ProtocolError) as refused:
        await fetcher(site).fetch({url: "messages[0]"})
    assert refused.value.code in ("media_url_not_allowed", "media_url_failed", "invalid_url")
    assert refused.value.param == "messages[0]"


async def test_a_name_that_leads_inside_is_refused(site: str) -> None:
    port = site.split(":")[1]
    with pytest.raises(ProtocolError, match="private address"):
        await fetcher(f"localhost:{port}").fetch({f"http://localhost:{port}/a": "m"})
    assert Site.seen == []


async def test_bounds(site: str) -> None:
    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        await fetcher(site).fetch({f"http://{site}/big": "m"})
    with pytest.raises(LimitExceeded, match="max_media_urls"):
        await fetcher(site).fetch({f"http://{site}/{n}": "m" for n in range(17)})
    with pytest.raises(ProtocolError, match="cannot be fetched"):
        await fetcher("127.0.0.1:1").fetch({"http://127.0.0.1:1/": "m"})


@pytest.mark.parametrize("slow", SLOW)
async def test_a_host_that_is_slow_on_purpose_is_cut_off(says: Any, slow: str) -> None:
    host, began_s = says(*SLOW[slow]), time.monotonic()
    with pytest.raises(LimitExceeded, match="media_url_timeout_s"):
        await fetcher(host, timeout_s=0.2).fetch({f"http://{host}/a": "m"})
    assert time.monotonic() - began_s < LONG_S / 2


async def test_a_slow_host_holds_up_no_other_work(says: Any) -> None:
    host = says(*SLOW["header"])
    urls = {f"http://{host}/{n}": "m" for n in range(MAX_URLS)}
    task = asyncio.create_task(fetcher(host, timeout_s=1.0).fetch(urls))
    await asyncio.sleep(PAUSE_S)
    await asyncio.to_thread(lambda: None)
    assert not task.done()
    with pytest.raises(LimitExceeded):
        await task


async def test_all_media_of_a_request_have_a_bound(says: Any) -> None:
    host = says(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 900)
    urls = [f"http://{host}/{n}" for n in range(3)]
    assert len(await fetcher(host).fetch(dict.fromkeys(urls[:2], "m"))) == 2
    with pytest.raises(LimitExceeded, match=r"max_body_bytes: 2700 is over .* of all media by URL"):
        await fetcher(host).fetch(dict.fromkeys(urls, "m"))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nxxx",
        b"HTTP/1.1 302 Found\r\nLocation: http://[broken\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\xe4\r\n\r\n",
    ],
)
async def test_an_answer_that_is_broken_is_refused(says: Any, answer: bytes) -> None:
    host = says(answer)
    with pytest.raises(ProtocolError) as refused:
        await fetcher(host).fetch({f"http://{host}/a": "m"})
    assert refused.value.code == "media_url_failed"


async def test_letters_beyond_ascii_are_sent_as_browsers_do(site: str) -> None:
    url = f"http://{site}/ä b.png?q=%C3%B6"
    assert await fetcher(site).fetch({url: "m"}) == {url: b"x" * 10}
    assert Site.seen == ["/%C3%A4%20b.png?q=%C3%B6"]


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::8.8.8.8", True),
        ("10.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::169.254.169.254", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert _are_public([address]) == is_public


async def test_nothing_is_fetched_for_a_model_that_takes_no_pictures() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, inputs=("audio",)))
    part: Any = {"type": "image_url", "image_url": {"url": "http://nowhere/a.png"}}
    async with running(engine=engine) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError, match="takes text and audio: leave image out"):
            await client.chat.completions.create(
                model="test-omni", messages=[{"role": "user", "content": [part]}]
            )
