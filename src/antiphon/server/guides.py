"""Guides are compiled once before the engine is asked, in a process of its own under a time limit: what is
wrong with one is an answer, and neither the serving loop nor a step ever meets one that takes too long."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import msgspec

from antiphon.core.errors import ProtocolError
from antiphon.core.sampling import Guide
from antiphon.engine.signals import held_back
from antiphon.server.turns_of_keys import TurnsOfKeys
from antiphon.wire.guides import AskedGuide

MOST_KEPT = 256
"""Guides of which it is known whether they can be used."""
MOST_SHOWN = 1000
"""Characters of what is wrong."""


class GuideCheck:
    """Of one model's tokenizer. The process starts with the first guide, and after one that ended it."""

    def __init__(self, checkpoint: Path, vocab: int, most_s: float, retry_after_s: float) -> None:
        self._command = (
            *(sys.executable, "-m", "antiphon.engine.guide_check"),
            *(str(checkpoint), str(vocab), str(most_s)),
        )
        self._most_s = most_s
        self._child: subprocess.Popen[bytes] | None = None
        self._refusal = ""
        self._known: dict[Guide, ProtocolError | None] = {}
        refusal = "Too many guides are being compiled."
        self._turns = TurnsOfKeys(1, "antiphon-guides", refusal, retry_after_s)

    async def check(self, asked: AskedGuide, key: int | None = None) -> None:
        """key: which API key it came with; keys take turns. Raises ProtocolError for a guide that cannot be
        used, and Overloaded where too many of the key wait."""
        try:
            wrong = self._known[asked.guide]
        except KeyError:
            wrong = await self._learn(asked.guide, key)
        if wrong is not None:
            raise ProtocolError(f"{asked.param}: {wrong}", code=wrong.code, param=asked.param)

    async def _learn(self, guide: Guide, key: int | None) -> ProtocolError | None:
        return await self._turns.run(key, self._learnt, guide)

    def _learnt(self, guide: Guide) -> ProtocolError | None:
        """In the thread."""
        if guide not in self._known:
            wrong = self._wrong_with(guide)
            while len(self._known) >= MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[guide] = wrong
        return self._known[guide]

    def _wrong_with(self, guide: Guide) -> ProtocolError | None:
        child = self._started()
        if self._refusal:
            return ProtocolError(self._refusal, code="unsupported_parameter")
        said = self._asked(child, msgspec.json.encode(guide) + b"\n")
        if said is not None:
            text = said if len(said) <= MOST_SHOWN else said[:MOST_SHOWN] + " …"
            return ProtocolError(text, code="invalid_guide") if said else None
        status, self._child = child.wait(), None
        if status == -signal.SIGPROF:
            text = f"It takes more than {self._most_s:g} s to compile (max_guide_s). Send a simpler one."
        else:
            text = "It is too complex to be compiled. Send a simpler one."
        return ProtocolError(text, code="guide_too_complex")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            with held_back():
                self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            weakref.finalize(self, _end, self._child)
            said = self._asked(self._child, b"")
            self._refusal = "This model's texts cannot be guided." if said is None else said
        return self._child

    def _asked(self, child: subprocess.Popen[bytes], line: bytes) -> str | None:
        """What the process answers; None where it has ended."""
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(line)
            child.stdin.flush()
            answer = child.stdout.readline()
            return msgspec.json.decode(answer, type=str) if answer else None
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError), child:
        child.kill()
