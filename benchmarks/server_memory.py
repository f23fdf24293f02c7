"""Where the memory of `antiphon serve` goes: its processes, what they map, ready and at so many streams.

    antiphon checkpoint talk checkpoints/talk
    python benchmarks/server_memory.py checkpoints/talk/thinker --options "--threads 2"

MB (10^6). `rss`: the sum over all processes. `once`: a part of a file that several of them map counts once,
as much as one of them has of it at most; programs beside the server change nothing. `large`: anonymous memory
in large pages, which weights and KV have where the machine has some; `other`: anonymous memory besides, with
the heap; `files`: libraries and other mapped files. Kernels that are compiled in this start leave their
compiler's memory: run it twice.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from served import served

from antiphon.bench import provenance

WORDS = ("one", "two", "three", "four", "house", "river", "cat", "dog", "hello", "number", "where", "what")
HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) \S+ \d+\s*(.*)$")
FIELDS = {"Rss": "rss", "Anonymous": "anonymous", "AnonHugePages": "large"}

Mapped = dict[tuple[str, str], Counter[str]]
"""Bytes of each mapping: of a file by its path and offset, all that is of none as ("", "")."""


def processes(root: int) -> list[int]:
    """This process and all that it started."""
    tasks = Path(f"/proc/{root}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [root, *(pid for child in children for pid in processes(child))]


def mapped(pid: int) -> Mapped:
    found: Mapped = {}
    key = "", ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if header := HEADER.match(line):
            key = (header[2], header[1]) if header[2].startswith("/") else ("", "")
            continue
        name, _, value = line.partition(":")
        if name in FIELDS:
            found.setdefault(key, Counter())[FIELDS[name]] += int(value.split()[0]) * 1024
    return found


def taken(root: int) -> dict[str, Any]:
    each = {pid: mapped(pid) for pid in processes(root)}
    files = Counter[tuple[str, str]]()
    for one in each.values():
        for key, sizes in one.items():
            files[key] = max(files[key], sizes["rss"] - sizes["anonymous"])
    own = {pid: sum(one.values(), Counter[str]()) for pid, one in each.items()}
    rss, anonymous = (sum(sizes[name] for sizes in own.values()) for name in ("rss", "anonymous"))
    named = {f"{number} {program_of(pid)}": shown(own[pid]) for number, pid in enumerate(own)}
    return {"together": {"rss": mb(rss), "once": mb(anonymous + files.total())}} | named


def shown(sizes: Counter[str]) -> dict[str, float]:
    rss, anonymous, large = sizes["rss"], sizes["anonymous"], sizes["large"]
    return {"rss": mb(rss), "large": mb(large), "other": mb(anonymous - large), "files": mb(rss - anonymous)}


def mb(size: int) -> float:
    return round(size / 1e6, 1)


def program_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next((word for word in words[1:] if word and not word.startswith("-")), words[0])


def ask(url: str, number: int, arguments: argparse.Namespace) -> int:
    """The tokens of a reply."""
    words = (WORDS[(number * 7 + 5 * i) % len(WORDS)] for i in range(arguments.prompt))
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": f"{number} {' '.join(words)}"}],
        "max_tokens": arguments.tokens,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())["usage"]["completion_tokens"]


def measure(arguments: argparse.Namespace, log: Path) -> dict[str, Any]:
    with served(log, str(arguments.checkpoint), "--name", "model", *arguments.options) as server:
        result = {"ready": taken(server.pid)}
        with ThreadPoolExecutor(arguments.streams) as streams:
            numbers = range(arguments.requests)
            counts = list(streams.map(lambda number: ask(server.url, number, arguments), numbers))
        if set(counts) != {arguments.tokens}:
            sys.exit(f"Replies of {counts} tokens instead of {arguments.tokens}")
        return result | {f"at {arguments.streams} streams": taken(server.pid)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--options", type=str.split, default=[], help="of the server")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=120, help="words")
    parser.add_argument("--tokens", type=int, default=24, help="of a reply")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # a server that runs is ended too
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder) / "log")
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
