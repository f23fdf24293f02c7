"""The benchmark with another server's load generator, which is played here: what it starts, reads, ends."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antiphon.checkpoint.demo import make_demo

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"
PEER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

def option(name):
    return sys.argv[sys.argv.index(name) + 1]

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        models = {"data": [{"id": "model", "owned_by": "peer"}]}
        answers = {"/version": {"version": "0.0"}, "/v1/models": models}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers[self.path]).encode())

if sys.argv[1] == "-m":
    assert "PYTHONPATH" not in os.environ
    HTTPServer(("127.0.0.1", int(option("--port"))), Answers).serve_forever()
model = json.load(urlopen(option("--base-url") + "/v1/models"))["data"][0]
requests, tokens = int(option("--num-prompts")), int(option("--random-output-len"))
speed = 50.0 if model["owned_by"] == "peer" else 100.0
result = {"completed": requests - LOST, "total_output_tokens": requests * tokens, "output_throughput": speed}
result |= {"mean_ttft_ms": 1e4 / speed, "mean_tpot_ms": 1e3 / speed, "p99_itl_ms": 2e3 / speed}
with open(option("--result-dir") + "/" + option("--result-filename"), "w") as out:
    json.dump(result, out)
"""


def peer(folder: Path, lost: int = 0) -> Path:
    """An interpreter that plays the peer's environment. `lost`: requests that fail in each run."""
    python = folder / "peer" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!{sys.executable}\nLOST = {lost}\n{PEER}")
    python.chmod(0o755)
    return python


def run(folder: Path, python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    checkpoint = folder / "tiny"
    if not checkpoint.exists():
        make_demo(checkpoint, model="qwen3", size="tiny", seed=3)
    shared = ("--peer-python", str(python), "--work", str(folder / "work"), "--out", str(folder / "out.json"))
    command = [sys.executable, str(SCRIPT), str(checkpoint), *shared, "--loads", "1x8,2x8", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_servers_run_by_turns_and_ratios_are_within_a_round(tmp_path: Path) -> None:
    words = ("--systems", "ours-float32,vllm-float32", "--rounds", "2", "--threads", "1")
    done = run(tmp_path, peer(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert result["vllm"] == "0.0"
    assert "PATH" in result["command"]
    assert str(peer(tmp_path)) not in result["command"]
    loads = ("1x8", "2x8")
    assert set(result["runs"]) == {f"{end} {load}" for end in ("openai", "openai-chat") for load in loads}
    for found in result["runs"].values():
        assert found["vllm-float32"]["tokens_per_s"] == 50
        both = found["ours-float32 against vllm-float32"]
        names = ("tokens_per_s", "mean_ttft", "p99_itl")
        assert both == {name: {"median": 2, "all": [2, 2]} for name in names}
    systems = [line.split()[2] for line in done.stderr.splitlines() if line.startswith("round ")]
    assert systems[::4] == ["ours-float32", "vllm-float32", "vllm-float32", "ours-float32"]
    assert run(tmp_path, tmp_path / "gone", *words).returncode == 0, "what was measured is not measured again"


def test_a_run_in_which_requests_fail_counts_for_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, peer(tmp_path, lost=1), "--systems", "vllm-float32", "--rounds", "1")
    assert done.returncode == 1
    assert "7 requests, 1024 tokens instead of 8 and 1024" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    python = peer(tmp_path)
    python.write_text("#!/bin/sh\necho no such model\nexit 3\n")
    done = run(tmp_path, python, "--systems", "vllm-float32", "--rounds", "1")
    assert done.returncode == 1
    assert "no such model" in done.stderr


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serving_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["8x130", "8x130+8000"])
def test_a_load_is_read_as_it_is_written(script: ModuleType, text: str) -> None:
    load = script.Load.of(text)
    assert str(load) == text
    assert (load.streams, load.prompt, load.beside) == (8, 130, 8000 if "+" in text else 0)


def test_long_prompts_come_one_after_the_other(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BETWEEN_S", 0)
    prompts: list[list[int]] = []
    came = threading.Event()

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"])
            self.send_response(200)
            self.end_headers()
            if len(prompts) == 2:
                came.set()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with script.prompts_beside(f"http://127.0.0.1:{server.server_port}", 7, 0):
            assert came.wait(60)
        server.shutdown()
    assert {len(prompt) for prompt in prompts} == {7}
    assert prompts[0] != prompts[1]
