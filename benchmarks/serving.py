"""Against vLLM's CPU build as its own load generator measures both servers: `vllm bench serve`, unchanged.

    antiphon checkpoint talk checkpoints/talk
    python benchmarks/serving.py checkpoints/talk/thinker --peer-python PATH --work DIR --out FILE

The checkpoint is SmolLM2, a released Llama in bf16; any text model does. `PATH` is the interpreter of an
environment of its own, as `vllm_decode.py` has it. Its `vllm` command ends at once: the CPU build has no
package of that name to tell the version of. What `vllm bench serve` calls is called without it.

A round starts the servers one after the other, in reverse order every second round, each alone on the cores
that this process may use (`taskset -c 0,1 python …` names them). A server is warmed up, then each load is run
on either endpoint: so many streams, each of which sends its next request when it has the whole reply; random
prompts, other ones in every run; greedy; --ignore-eos. A load `8x130+8000` has one more client beside its
eight streams: a prompt of 8,000 tokens comes some seconds after the one before was read, again and again.
What is measured is of the streams. A chat's prompt is longer by the template. `auto` is
the server's own choice of arithmetic. Both are told how many requests may run at once, how long one may be,
and vLLM how much memory KV may take; all else they choose by themselves. vLLM compiles the model at its first
start, which takes minutes, and keeps that.

Figures are medians over the rounds. A ratio is taken within a round; above 1 ours is better. What was
measured lies in `--work`: a run that was broken off goes on there, with the same options.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.bench import provenance

CLIENT = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
ENDPOINTS = {"openai-chat": "/v1/chat/completions", "openai": "/v1/completions"}
SYSTEMS = ("ours-float32", "ours-auto", "vllm-float32", "vllm-bfloat16")
FIGURES = {
    "tokens_per_s": "output_throughput",
    "mean_ttft_ms": "mean_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "p99_itl_ms": "p99_itl_ms",
}
"""As they are called here, and in the client's result."""
WARM_SEED = 9999
CONTEXT = 8192
KV_GB = 2
BETWEEN_S = 5
"""From a long prompt's answer to the next one."""

Figures = dict[str, float]
Round = dict[str, dict[str, Figures]]
"""Of each system, of each load on each endpoint."""


@dataclass(frozen=True)
class Load:
    """prompt: tokens, without a template. beside: of a prompt that comes again and again; 0: none does."""

    streams: int
    prompt: int
    beside: int = 0

    @classmethod
    def of(cls, text: str) -> Load:
        streams, _, prompts = text.partition("x")
        prompt, _, beside = prompts.partition("+")
        return cls(int(streams), int(prompt), int(beside or 0))

    def __str__(self) -> str:
        return f"{self.streams}x{self.prompt}" + (f"+{self.beside}" if self.beside else "")


def peer_environment(python: Path) -> dict[str, str]:
    """Intel's OpenMP, which vLLM asks for, is loaded first where it is there, as vLLM's images do."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    openmp = python.parent.parent / "lib" / "libiomp5.so"
    return environment | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})


class Bench:
    """Starts servers, and the client against them."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self._arguments = arguments
        self._work = work
        self._peer = arguments.peer_python.absolute()
        self._checkpoint = str(arguments.checkpoint.resolve())

    def measure(self, system: str, turn: int) -> dict[str, Any]:
        """What the client says of each load, of a server of its own."""
        arguments = self._arguments
        found: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 1), "runs": {}}
        with self._server(system) as url:
            if system.startswith("vllm"):
                found["version"] = get(f"{url}/version")["version"]
            self._client(url, "openai", Load(4, arguments.loads[0].prompt), WARM_SEED)
            for number, load in enumerate(arguments.loads):
                for backend in arguments.backends:
                    seed = 1000 * turn + 10 * number + list(ENDPOINTS).index(backend)
                    result = self._client(url, backend, load, seed)
                    found["runs"][f"{backend} {load}"] = result
                    sys.stderr.write(f"round {turn}: {system:14} {backend:12} {load!s:8} {told(result)}\n")
        return found

    @contextlib.contextmanager
    def _server(self, system: str) -> Iterator[str]:
        """Its address, once it is ready. In the end it is gone with all that it started."""
        url = f"http://127.0.0.1:{(port := free_port())}"
        command, environment = self._started_by(system, port)
        log = self._work / f"{system}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        try:
            self._wait(process, url, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _started_by(self, system: str, port: int) -> tuple[list[str], dict[str, str]]:
        kind, _, dtype = system.partition("-")
        threads, rows = str(self._arguments.threads), str(self._arguments.rows)
        shared = ("--dtype", dtype, "--host", "127.0.0.1", "--port", str(port))
        if kind == "ours":
            command = [sys.executable, "-m", "antiphon", "serve", self._checkpoint, "--name", "model"]
            options = ("--device", "cpu", "--threads", threads, "--max-rows", rows)
            return [*command, *shared, *options, "--max-context-tokens", str(CONTEXT)], dict(os.environ)
        environment = peer_environment(self._peer) | {
            "OMP_NUM_THREADS": threads,
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GB),
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(self._peer), "-m", "vllm.entrypoints.openai.api_server", "--model", self._checkpoint]
        options = ("--served-model-name", "model", "--max-num-seqs", rows, "--max-model-len", str(CONTEXT))
        return [*command, *shared, *options], environment

    def _wait(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        """Until the model is there."""
        until = time.monotonic() + self._arguments.start_limit
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(OSError):
                if get(f"{url}/v1/models")["data"]:
                    return
            time.sleep(0.5)
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        sys.exit(f"The server did not become ready; its last words are\n{last}")

    def _client(self, url: str, backend: str, load: Load, seed: int) -> Figures:
        """Raises SystemExit where a request failed, or a reply was not as long as it should be."""
        requests, tokens = load.streams * self._arguments.waves, self._arguments.tokens
        with tempfile.TemporaryDirectory() as folder:
            options = {
                "backend": backend,
                "endpoint": ENDPOINTS[backend],
                "base-url": url,
                "model": "model",
                "tokenizer": self._checkpoint,
                "dataset-name": "random",
                "random-input-len": load.prompt,
                "random-output-len": tokens,
                "num-prompts": requests,
                "max-concurrency": load.streams,
                "temperature": 0,
                "seed": seed,
                "result-dir": folder,
                "result-filename": "result.json",
            }
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            command = [str(self._peer), "-c", CLIENT, *words, "--ignore-eos", "--save-result"]
            environment = peer_environment(self._peer) | {"HF_HUB_OFFLINE": "1"}
            with prompts_beside(url, load.beside, seed):
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            path = Path(folder) / "result.json"
            if not path.exists():
                sys.exit(f"The client ended without a result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            result = json.loads(path.read_text())
        if (result["completed"], result["total_output_tokens"]) != (requests, requests * tokens):
            count = f"{result['completed']} requests, {result['total_output_tokens']} tokens"
            sys.exit(f"{backend} {load}: {count} instead of {requests} and {requests * tokens}")
        return {name: result[key] for name, key in FIGURES.items()}


@contextlib.contextmanager
def prompts_beside(url: str, tokens: int, seed: int) -> Iterator[None]:
    """Meanwhile prompts of so many tokens come, one after the other; none if `tokens` is 0. Raises OSError
    where one is refused."""
    over = threading.Event()
    draw = random.Random(seed)

    def send() -> None:
        while tokens and not over.wait(BETWEEN_S):
            ids = [draw.randrange(100, 1000) for _ in range(tokens)]
            body = json.dumps({"model": "model", "prompt": ids, "max_tokens": 1}).encode()
            request = urllib.request.Request(
                f"{url}/v1/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as answer:
                answer.read()

    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(send)
        try:
            yield
        finally:
            over.set()
        sent.result()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def listed(text: str) -> list[str]:
    return text.split(",")


def loads_of(text: str) -> list[Load]:
    return [Load.of(one) for one in listed(text)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def told(result: Figures) -> str:
    speed, first, gap = (result[name] for name in ("tokens_per_s", "mean_ttft_ms", "p99_itl_ms"))
    return f"{speed:6.1f} tokens/s, TTFT {first / 1e3:5.2f} s, P99 of gaps {gap / 1e3:5.2f} s"


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Of each load on each endpoint: each system's medians, and each of ours against each of theirs."""
    systems = sorted(rounds[0])
    pairs = [(a, b) for a in systems for b in systems if a.startswith("ours") and b.startswith("vllm")]
    return {
        run: {system: medians([one[system][run] for one in rounds]) for system in systems}
        | {f"{a} against {b}": ratios([(one[a][run], one[b][run]) for one in rounds]) for a, b in pairs}
        for run in rounds[0][systems[0]]
    }


def medians(each: list[Figures]) -> Figures:
    return {name: round(statistics.median(one[name] for one in each), 1) for name in FIGURES}


def ratios(both: list[tuple[Figures, Figures]]) -> dict[str, Any]:
    """Of ours and theirs in each round. Above 1 ours is better: more tokens, or less time."""
    tokens = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in both]
    ttft, itl = (
        [theirs[name] / ours[name] for ours, theirs in both] for name in ("mean_ttft_ms", "p99_itl_ms")
    )
    return {
        name: {"median": round(statistics.median(values), 2), "all": [round(value, 2) for value in values]}
        for name, values in (("tokens_per_s", tokens), ("mean_ttft", ttft), ("p99_itl", itl))
    }


def run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments, work)
    rounds: list[dict[str, Any]] = []
    for turn in range(arguments.rounds):
        rounds.append({})
        for system in arguments.systems[:: -1 if turn % 2 else 1]:
            kept = work / f"{turn}-{system}.json"
            rounds[turn][system] = provenance.once(kept, partial(bench.measure, system, turn))
    versions = {part.get("version") for one in rounds for part in one.values()} - {None}
    return {
        "vllm": ", ".join(sorted(versions)),
        "load_before": [{system: part["load_before"] for system, part in one.items()} for one in rounds],
        "runs": summary([{system: part["runs"] for system, part in one.items()} for one in rounds]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--systems", type=listed, default=list(SYSTEMS), help=",".join(SYSTEMS))
    parser.add_argument("--backends", type=listed, default=list(ENDPOINTS), help=",".join(ENDPOINTS))
    loads = "1x130,8x130,32x130,4x1024"
    parser.add_argument(
        "--loads", type=loads_of, default=loads, help="streams x tokens of a prompt + those of one beside"
    )
    parser.add_argument("--tokens", type=int, default=128, help="of a reply")
    parser.add_argument("--waves", type=int, default=2, help="requests of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="requests that a server runs at once")
    parser.add_argument("--start-limit", type=float, default=900, help="seconds until a server is ready")
    parser.add_argument("--work", type=Path, help="where parts are kept; by default nowhere")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server that runs is ended too
    with tempfile.TemporaryDirectory() as folder:
        measured = run(arguments, arguments.work or Path(folder))
    result = {
        "checkpoint": arguments.checkpoint.name,
        "weights_stored_in": json.loads((arguments.checkpoint / "config.json").read_text())["dtype"],
        "new_tokens": arguments.tokens,
        "requests_of_each_stream": arguments.waves,
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "rows": arguments.rows,
        **measured,
        "command": f"python benchmarks/{provenance.command()}".replace(str(arguments.peer_python), "PATH"),
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
