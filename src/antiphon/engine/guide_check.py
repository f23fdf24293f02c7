"""A process that compiles guides to see whether it can: `python -m antiphon.engine.guide_check DIR VOCAB S`.

A line of JSON in, a guide; a line of JSON out, what is wrong with it, "" if nothing is. The first line says
whether the tokenizer could be read. A guide that takes more than S seconds of a core ends the process, and so
does the end of standard input.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec

from antiphon.core.sampling import Guide
from antiphon.engine.guides import GuideError, compiled, tokenizer_of
from antiphon.engine.signals import leave_to_parent


def main(checkpoint: str, vocab: str, most_s: str) -> None:
    leave_to_parent()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        tokenizer = tokenizer_of(Path(checkpoint), int(vocab), ())
    except GuideError as error:
        _say(str(error))
        return
    _say("")
    for line in sys.stdin.buffer:
        guide = msgspec.json.decode(line, type=Guide)
        signal.setitimer(signal.ITIMER_PROF, float(most_s))
        try:
            compiled(guide, tokenizer)
            wrong = ""
        except GuideError as error:
            wrong = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(wrong)


def _say(text: str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(text) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
