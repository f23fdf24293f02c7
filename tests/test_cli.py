"""The command line: what it prints, and with what status it ends."""

from __future__ import annotations

import http.client
import os
import platform
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon import __version__
from antiphon.cli import app
from antiphon.core.errors import AntiphonError
from antiphon.nn.cpu import has_pairs
from antiphon.server import launch

COMMANDS = [
    [],
    ["serve"],
    ["replay"],
    ["explain"],
    ["lift"],
    ["doctor"],
    ["profile"],
    ["checkpoint"],
    ["checkpoint", "demo"],
    ["bench"],
    ["bench", "summarize"],
    ["compare"],
    ["plot"],
    *(["plot", kind] for kind in ("frontier", "cdf", "timeline", "kv", "gantt", "perfetto")),
]
STARTED = [sys.executable, "-m", "antiphon.cli"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "antiphon")
def test_help(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_short_help_and_the_version() -> None:
    for command in ([], ["serve"], ["bench", "sweep"]):
        assert "Usage" in CliRunner().invoke(app, [*command, "-h"]).output
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.output.strip()) == (0, f"antiphon {__version__}")


@pytest.mark.parametrize(("option", "load"), [("--concurrency", "0"), ("--rate", "-1"), ("--rate", "1,nan")])
def test_a_load_that_is_none_is_refused_before_anything_runs(tmp_path: Path, option: str, load: str) -> None:
    said = CliRunner().invoke(app, ["bench", "sweep", option, load, "--out", str(tmp_path / "x")])
    assert said.exit_code == 1
    assert "it must be above 0" in said.output
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("file", "file"),
        ("file/under", "file"),
        ("file/under/deeper", "file"),
        ("dangling/under", "dangling"),
        ("/dev/null/under", "/dev/null"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--simulate", "baseline", "liveserve", "--workload", "smoke"],
        ["tune", "--workload", "barge-in"],
        ["bench", "sweep", "--url", "http://127.0.0.1:9", "--concurrency", "1"],
        ["simulate", "--workload", "smoke"],
    ],
    ids=" ".join,
)
def test_a_file_where_a_directory_is_to_be_is_told_before_anything_runs(
    tmp_path: Path, command: list[str], place: str, first: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    said = CliRunner().invoke(app, [*command, "--out", str(tmp_path / place)])
    assert said.exit_code in (1, 2)
    words = said.output.replace("\n", "")
    assert f"{tmp_path / first} is not a directory; give another --out (it is created)" in words
    assert "Errno" not in words
    assert "seed" not in words, "nothing was said to run"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_peer_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "versus"
    targets = ["first=http://127.0.0.1:9", "peer=http://127.0.0.1:9"]
    said = CliRunner().invoke(app, ["compare", *targets, "--out", str(out)])
    assert said.exit_code == 1
    words = " ".join(said.output.split())
    assert "target first: http://127.0.0.1:9/v1/models names no model" in words
    assert "Check the URL, and that a server runs there" in words
    assert "--model" not in words, "there it is what presets are served with"
    assert "warming up" not in words
    assert not out.exists()


@pytest.mark.parametrize("wait_s", [0.05, 0.3])
def test_who_stops_it_while_it_starts_sees_no_traceback(wait_s: float) -> None:
    program = [
        sys.executable,
        "-c",
        # Whoever starts the tests in the background has SIGINT ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from antiphon.__main__ import main; print(flush=True); main()",
        "doctor",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert "Traceback" not in said
    assert process.returncode in (1, 130)


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
async def test_an_address_that_cannot_be_had_is_told_once(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = launch.ServeOptions(host, taken.getsockname()[1])
        server = launch.server_for(launch.create_app(), where.host, where.port)
        with pytest.raises(AntiphonError, match="cannot listen on"):
            await launch._listen(server, where)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("[X509: KEY_VALUES_MISMATCH] key values mismatch", "the key is another certificate's"),
        ("[SSL] PEM lib", "no PEM file"),
        (None, "no PEM file"),
    ],
)
def test_keys_that_tls_cannot_use_are_told(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str | None, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise ssl.SSLError(error)

    if error is not None:
        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    key = tmp_path / "key.pem"
    key.write_text("no key")
    options = ["--tls-certificate", str(key), "--tls-key", str(key)]
    result = CliRunner().invoke(app, ["serve", str(tiny_checkpoint), *options])
    assert (result.exit_code, words in result.output) == (1, True)
    assert "listening" not in result.output


async def test_why_an_address_cannot_be_listened_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "is taken" in launch._why_not("127.0.0.1", taken.getsockname()[1])
    assert "is not an address of this machine" in launch._why_not("192.0.2.1", 0)
    assert "is not an address of this machine" in launch._why_not("no.such.host.invalid", 0)


def test_doctor_explains_default_sizes(tiny_checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--model", str(tiny_checkpoint)])
    assert result.exit_code == 0, result.output
    for words in (
        "max_rows 16, the usual size",
        "step_tokens 1024",
        "GiB are free",
        "the most is 16 rows of 8192",
    ):
        assert words in result.output
    result = CliRunner().invoke(app, ["doctor", "--model", "no/such/place"])
    assert result.exit_code == 1


def test_doctor_tells_a_model_from_a_deployment(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert result.exit_code == 1
    assert "A model is named by --model" in result.output


def test_doctor_says_what_runs_and_what_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    said = {words[0]: words[1:] for words in lines if words}
    assert said["python"] == [platform.python_version()]
    everything = "float32, bfloat16, float16, float64 on cpu"
    assert " ".join(said["reference"]) == f"verified runs {everything}"
    assert " ".join(said["cpu"]).endswith(f"auto takes it for {everything}")
    if has_pairs():
        rounds = "auto takes it for weights stored in bfloat16, unless --dtype is given"
        assert " ".join(said["cpu-bf16"]) == f"verified runs float32 on cpu; {rounds}"
        assert "AVX512-BF16" in result.output
    else:
        assert "needs AVX512-BF16" in " ".join(said["cpu-bf16"])
    for name in ("flashinfer", "triton"):
        assert " ".join(said[name]) == "unverified runs on cuda, not on cpu"
    assert "GiB free" in result.output
    assert "cannot run here, there is no CUDA; unverified" in result.output


def test_demo_checkpoint(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["checkpoint", "demo", str(tmp_path / "tiny"), "--size", "tiny"])
    assert made.exit_code == 0, made.output
    assert "making a tiny random model in" in made.output
    assert (tmp_path / "tiny" / "config.json").is_file()
    again = ["checkpoint", "demo", str(tmp_path / "tiny"), "--size", "tiny"]
    taken = CliRunner().invoke(app, again)
    assert (taken.exit_code, "not an empty directory" in taken.output) == (1, True)
    assert "making" not in taken.output, "nothing was made"
    inside = ["checkpoint", "demo", str(tmp_path / "tiny" / "config.json" / "x"), "--size", "tiny"]
    nowhere = CliRunner().invoke(app, inside)
    assert (nowhere.exit_code, "cannot be made" in nowhere.output) == (1, True)
    kept = CliRunner().invoke(app, [*again, "--if-missing"])
    assert (kept.exit_code, kept.output) == (0, "")
    vast = CliRunner().invoke(app, ["checkpoint", "demo", str(tmp_path / "x"), "--size", "vast"])
    assert (vast.exit_code, "choose one of tiny" in vast.output) == (1, True)


def test_replay_of_what_is_no_record(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    for path, words in ((foreign, "not a record file"), (tmp_path / "none", "none"), (tmp_path, "")):
        result = CliRunner().invoke(app, ["replay", str(path)])
        assert result.exit_code == 1
        assert "error" in result.output
        assert words in result.output


@pytest.mark.parametrize(
    "options",
    [
        *(["--max-rows", "-1"], ["--kv-tokens", "10"], ["--depth", "2"], ["--dtype", "float12"]),
        *(["--attention", "flash"], ["--origins", "example.org"], ["--origins", "http://["]),
    ],
)
def test_serve_with_a_wrong_option(tiny_checkpoint: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", str(tiny_checkpoint), *options])
    assert result.exit_code == 1
    assert options[0].removeprefix("--").replace("-", "_") in result.output
    assert "listening" not in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["org-without-name"], "neither a directory nor a hub id"),
        (["."], "has no config.json"),
        (["org/name", "--profile", "none.json"], "none.json cannot be read"),
        (["org/name", "--profile", "h2000"], "did you mean H200"),
        (["org/name", "--preset", "bseline"], "did you mean baseline"),
        *(
            (["org/name", "--media-hosts", f"a.example,{wrong}"], f"'{wrong}' is not a host such as")
            for wrong in ("https://b.example", "b.example/sounds", "b.example:http", "me@b.example", ":80")
        ),
    ],
)
def test_what_can_be_checked_is_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], words: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(launch, "run", lambda *asked: started.append(asked))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", *options])
    assert (result.exit_code, started) == (1, [])
    assert words in result.output


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        *((["--host", host], True) for host in ("0.0.0.0", "::", "192.168.1.5", "some.host")),
        *((["--host", host], False) for host in ("127.0.0.1", "::1", "localhost")),
        (["--host", "0.0.0.0", "--api-keys", "k"], False),
    ],
)
def test_who_serves_everybody_without_keys_is_warned(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, options: list[str], is_warned: bool
) -> None:
    async def run(*_: object) -> None: ...

    monkeypatch.setattr(launch, "run", run)
    result = CliRunner().invoke(app, ["serve", str(tiny_checkpoint), *options])
    assert result.exit_code == 0
    assert ("without --api-keys" in result.output) == is_warned


def test_options_of_serve_are_in_groups() -> None:
    said = CliRunner().invoke(app, ["serve", "-h"]).output
    for group in ("Memory and limits", "Where it listens", "Decisions and records"):
        assert group in said


def test_an_empty_log_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    result = CliRunner().invoke(app, ["bench", "summarize", str(path)])
    assert result.exit_code
    assert "not the log of a run" in result.output


def test_serve_without_a_checkpoint(tmp_path: Path) -> None:
    missing = tmp_path / "none-such"
    done = subprocess.run(
        [*STARTED, "serve", str(missing), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error:" in done.stderr
    assert "none-such" in done.stderr
    assert "Traceback" not in done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status_of(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(300)
def test_serve_until_terminated(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Ready, then a signal to the whole group, as a supervisor sends it: a clean end and no child left."""
    port, record = free_port(), tmp_path / "a.record"
    log = (tmp_path / "log").open("w+")
    command = [
        *STARTED,
        "serve",
        str(tiny_checkpoint),
        "--port",
        str(port),
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    server = subprocess.Popen([*command, "--record", str(record)], stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 240  # kernels are compiled
        while status_of(port, "/ready") != 200:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = children_of(server.pid)
        assert children
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(20) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    finally:
        server.kill()
        server.wait()
        log.seek(0)
        said = log.read()
        log.close()
    assert "is ready: open http://127.0.0.1" in said
    assert not re.search("Traceback|ERROR", said), said
    result = CliRunner().invoke(app, ["replay", str(record)])
    assert result.exit_code == 0, result.output


def test_serve_hands_its_limits_and_depth_on(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    seen = []

    async def run(start: Any, settings: Any, *_: object) -> None:
        seen.extend([start.options.depth, settings.limits.max_audio_s, settings.limits.max_items])

    monkeypatch.setattr(launch, "run", run)
    options = ["--depth", "1", "--max-audio-s", "2.5", "--max-items", "7"]
    there = str(tiny_checkpoint)
    assert CliRunner().invoke(app, ["serve", there, *options]).exit_code == 0
    assert CliRunner().invoke(app, ["serve", there]).exit_code == 0
    assert seen == [1, 2.5, 7, None, 600.0, 1000]
    assert CliRunner().invoke(app, ["serve", there, "--record", "nowhere/a"]).exit_code == 1
    wrong = (
        *(("--port", "99999"), ("--port", "-1"), ("--layer-groups", "0"), ("--max-audio-s", "0")),
        *(("--max-items", "0"), ("--depth", "deep"), ("--min-lead-s", "nan")),
    )
    for option, value in (*wrong, ("--max-sessions", "-5"), ("--max-context-tokens", "0")):
        assert CliRunner().invoke(app, ["serve", there, option, value]).exit_code == 2
