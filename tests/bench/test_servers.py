"""Targets by name, and servers that are started, watched and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from pathlib import Path

import pytest

import forked
from antiphon.bench.servers import Launch, Servers, Target, parse_target, parse_targets
from antiphon.core.errors import AntiphonError, ConfigError

pytestmark = pytest.mark.usefixtures("forked_processes")

OPTIONS = ("--device", "cpu", "--threads", "1", "--name", "tiny")


def test_targets() -> None:
    assert parse_target("baseline") == Target("baseline", preset="baseline")
    assert parse_target("again=baseline") == Target("again", preset="baseline")
    assert parse_target("peer=http://host:8000/") == Target("peer", url="http://host:8000")
    assert parse_target("ws://host:8000") == Target("host-8000", url="ws://host:8000")
    assert parse_target("http://host/?a=b") == Target("host", url="http://host/?a=b")
    assert [target.name for target in parse_targets(["baseline", "b=http://x"])] == ["baseline", "b"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["nonesuch", "baseline"], "is no URL, and as a preset: no preset 'nonesuch'. There are baseline"),
        (["ftp://host", "baseline"], "http(s)"),
        (["a=http://localhost:80O0", "baseline"], "target 'http://localhost:80O0': a server's URL is"),
        (["http://[::1", "baseline"], "target 'http://[::1': a server's URL is"),
        (["http://:8000", "baseline"], "target 'http://:8000': a server's URL is"),
        (["a/b=http://host", "baseline"], "a name is letters"),
        (["baseline"], "two targets or more"),
        (["a=http://x", "a=http://y"], "have one name"),
    ],
)
def test_targets_that_are_none(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_targets(texts)
    assert words in str(error.value)


async def test_a_url_is_fresh_once() -> None:
    target = Target("peer", url="http://127.0.0.1:9")
    async with Servers(None) as servers:
        async with servers.ready(target) as first:
            assert (first.url, first.is_fresh) == ("http://127.0.0.1:9", True)
        async with servers.ready(target) as second:
            assert not second.is_fresh
        assert servers.why_ended(target) is None


async def test_a_preset_needs_a_model() -> None:
    async with Servers(None) as servers:
        with pytest.raises(ConfigError, match="--model"):
            async with servers.ready(Target("baseline", preset="baseline")):
                pass


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.status


async def test_start_die_start_again_stop(writer_checkpoint: Path, tmp_path: Path) -> None:
    target = Target("baseline", preset="baseline")
    launch = Launch(str(writer_checkpoint), OPTIONS, tmp_path, start_s=60)
    said: list[str] = []
    async with Servers(launch, say=said.append) as servers:
        async with servers.ready(target) as first:
            assert first.is_fresh
            assert await asyncio.to_thread(get, first.url + "/ready") == 200
        async with servers.ready(target) as again:
            assert (again.url, again.is_fresh) == (first.url, False)
            (pid,) = forked.children(os.getpid())
            os.killpg(pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                while servers.why_ended(target) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert "exit status -9" in (servers.why_ended(target) or "")
        async with servers.ready(target) as risen:
            assert risen.is_fresh
            assert await asyncio.to_thread(get, risen.url + "/ready") == 200
    assert said == ["starting a server with preset baseline"] * 2
    assert not forked.children(os.getpid())


async def test_servers_for_one_run_alone(writer_checkpoint: Path, tmp_path: Path) -> None:
    launch = Launch(str(writer_checkpoint), OPTIONS, tmp_path, start_s=60)
    async with Servers(launch, keep=False) as servers:
        async with servers.ready(Target("baseline", preset="baseline")) as ready:
            assert ready.is_fresh
        assert not forked.children(os.getpid())


async def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    launch = Launch(str(tmp_path / "none-such"), OPTIONS, tmp_path, start_s=60)
    async with Servers(launch) as servers:
        with pytest.raises(AntiphonError, match="ended before it was ready") as error:
            async with servers.ready(Target("baseline", preset="baseline")):
                pass
    assert "none-such" in str(error.value)


async def test_a_server_that_takes_too_long(writer_checkpoint: Path, tmp_path: Path) -> None:
    launch = Launch(str(writer_checkpoint), OPTIONS, tmp_path, start_s=0.01)
    async with Servers(launch) as servers:
        with pytest.raises(AntiphonError, match=r"not ready within 0\.01 s"):
            async with servers.ready(Target("baseline", preset="baseline")):
                pass
    assert not forked.children(os.getpid())
