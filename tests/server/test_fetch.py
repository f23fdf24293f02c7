"""Remote media: allowed hosts only, no way round them, and bounds."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import openai
import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.server.fetch import MediaFetcher
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


def fetcher(*hosts: str) -> MediaFetcher:
    return MediaFetcher(hosts, 1000, 5.0)


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


async def test_nothing_is_fetched_for_a_model_that_takes_no_pictures() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, inputs=("audio",)))
    part: Any = {"type": "image_url", "image_url": {"url": "http://nowhere/a.png"}}
    async with running(engine=engine) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError, match="takes text and audio: leave image out"):
            await client.chat.completions.create(
                model="test-omni", messages=[{"role": "user", "content": [part]}]
            )
