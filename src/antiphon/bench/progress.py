"""How a run goes, while it goes: one live line on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
from rich.console import Console
from rich.live import Live

from antiphon.core.counted import counted
from antiphon.core.playback import Playback
from antiphon.metrics.continuity import GAP_S
from antiphon.metrics.log import (
    AudioDelta,
    ClientSampled,
    ErrorSeen,
    Event,
    ResponseEnded,
    ResponseStarted,
    SessionEnded,
    SessionQueued,
    SessionRefused,
    SessionStarted,
    TurnEnded,
)

PLAIN_EVERY_S = 10.0


class RunProgress:
    """Watches events as they are logged. What it shows is for the eye; figures come from the log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._shown_s = 0.0
        self._open: set[str] = set()
        self._queued: set[str] = set()
        self._num_errors = 0
        self._refusals: Counter[str] = Counter()
        """By code."""
        self._refused_last: dict[str, str] = {}
        """The last message of each code."""
        self._lag_s = 0.0
        """How late the load generator's own loop was at worst."""
        self._num_replies = 0
        self._num_failed = 0
        self._num_gaps = 0
        self._ttfp_s: list[float] = []
        self._spoke: dict[tuple[str, int], float] = {}
        self._answering: dict[str, tuple[str, int]] = {}
        self._playing: dict[str, Playback] = {}

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def saw(self, event: Event) -> None:
        match event:
            case AudioDelta():
                self._heard(event)
            case TurnEnded():
                self._spoke[event.session, event.turn] = event.speech_end_s
            case ResponseStarted():
                self._answering[event.response] = (event.session, event.turn)
            case ResponseEnded():
                self._ended(event)
            case SessionQueued():
                self._queued.add(event.session)
            case SessionStarted():
                self._open.add(event.session)
                self._queued.discard(event.session)
            case SessionEnded():
                self._open.discard(event.session)
            case SessionRefused():
                self._open.discard(event.session)
                self._refusals[event.code] += 1
                self._refused_last[event.code] = event.message
            case ClientSampled():
                self._lag_s = max(self._lag_s, event.lag_s)
            case ErrorSeen() if not event.is_late_cancel:
                self._num_errors += 1
            case _:
                pass

    def show(self, now: float) -> None:
        if self._console.is_terminal:
            self._live.update(self.line(now), refresh=True)
        elif now - self._shown_s >= PLAIN_EVERY_S:
            self._shown_s = now
            self._console.print(self.line(now), soft_wrap=True)

    def line(self, now: float) -> str:
        ttfp = f"{np.percentile(self._ttfp_s, 90):.2f} s" if self._ttfp_s else "none yet"
        waiting = f"  {len(self._queued)} waiting" if self._queued else ""
        return (
            f"{now:5.0f} s  {counted(len(self._open), 'session')}{waiting}  "
            f"{counted(self._num_replies, 'reply', 'replies')}, {self._num_failed} of them failed  "
            f"TTFP p90 {ttfp}  "
            f"{counted(self._num_gaps, 'gap')}  {self._refusals.total()} refused  "
            f"{counted(self._num_errors, 'error')}"
        )

    def warnings(self) -> list[str]:
        """Why people were sent away, a line for each code, the most frequent first; and whether the load
        generator was late enough itself to make gaps."""
        refused = [
            f"refused {count} times, the last one with {self._refused_last[code]}"
            for code, count in self._refusals.most_common()
        ]
        late = (
            f"the load generator was up to {self._lag_s:.2f} s late itself (client_lag_s), so late replies "
            "and gaps may be its own; leave it a core, or play fewer people at once"
        )
        return [*refused, late] if self._lag_s >= GAP_S else refused

    def _heard(self, event: AudioDelta) -> None:
        playback = self._playing.get(event.response)
        if playback is None:
            playback = self._playing[event.response] = Playback()
            spoke_s = self._spoke.pop(self._answering.get(event.response, ("", 0)), None)
            if spoke_s is not None:
                self._ttfp_s.append(event.t_s - spoke_s)
        if playback.add(event.audio_s, event.t_s) >= GAP_S:
            self._num_gaps += 1

    def _ended(self, event: ResponseEnded) -> None:
        self._num_replies += 1
        self._num_failed += event.status == "failed"
        self._answering.pop(event.response, None)
        self._playing.pop(event.response, None)
