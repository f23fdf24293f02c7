"""One script's client: the generators of a person or a job, run on virtual time over a link to the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from antiphon.core.facts import Fact
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.people.acks import acknowledge
from antiphon.people.acts import FRAME_S, Doing, Say, Send, Wait
from antiphon.people.downlink import Downlink
from antiphon.people.job import Job
from antiphon.people.person import Person
from antiphon.people.seat import Seat
from antiphon.people.uplink import settings
from antiphon.sim.events import Agenda
from antiphon.sim.links import Link, Network
from antiphon.sim.log import Log
from antiphon.sim.process import Process, Waiting
from antiphon.sim.sessions import ServerSession, clip_urls, picture_url
from antiphon.wire.readers import ReaderRates
from antiphon.workload.script import PersonScript, Script


class Client:
    """A connection and the server's session at its other end."""

    def __init__(
        self,
        script: Script,
        agenda: Agenda,
        log: Log,
        tell: Callable[[Fact], None],
        network: Network,
        seed: int,
        has_vad: bool,
        readers: ReaderRates = ReaderRates(),
        max_recording_s: float | None = None,
    ) -> None:
        """seed: of the network's jitter. `has_vad`: the server detects the turns of people. readers: of texts
        whose requests say nothing. max_recording_s: what the model hears at once; None: any."""
        self._script = script
        self._agenda = agenda
        self._log = log
        self._network = network
        self._has_vad = has_vad and isinstance(script, PersonScript)
        self._up = Link(agenda, network, seed, "up", script.name)
        self._down = Link(agenda, network, seed, "down", script.name)
        is_person = isinstance(script, PersonScript)
        reads = script.reading_tokens_per_s if is_person else None
        rate, tells_rate = (reads, script.tells_rate) if is_person else (script.rate, script.rate is not None)
        self._downlink = Downlink(script.name, log, reads)
        asked, tier = settings(script, has_vad=self._has_vad), "latency" if is_person else script.tier
        self.session = ServerSession(
            script.name,
            asked,
            self._has_vad,
            tier,
            rate,
            agenda,
            tell,
            self._down,
            self._downlink,
            readers,
            tells_rate=tells_rate,
            max_recording_s=max_recording_s,
        )

    def leave(self, left: Callable[[], None]) -> None:
        """Nothing arrives here any more. `left` is called when the server knows."""
        self._down.cut()
        self._up.send(left)

    def play(self, process: Process, patience_s: float, received: Callable[[], None]) -> Waiting:
        """The script, as `process` runs it. Raises GaveUp or ConfigError."""
        script = self._script
        seat = Seat(
            self._downlink,
            self._log,
            self._has_vad,
            patience_s,
            picture_url,
            clip_urls,
            lambda doing: self._beside(doing, process),
            received,
        )
        self._downlink.listeners.append(process.ring)
        acks = Process(self._agenda)
        if isinstance(script, PersonScript) and script.acks is not None:
            acks.start(self._carried_out(acknowledge(script, seat)))
        self._up.send(self.session.open)
        try:
            yield Wait(self._agenda.now + 2 * self._network.delay_s)
            player = Person(script, seat) if isinstance(script, PersonScript) else Job(script, seat)
            yield from self._carried_out(player.play())
        finally:
            acks.stop()

    def _beside(self, doing: Doing, owner: Process) -> Process:
        helper = Process(self._agenda, owner.ring)
        self._downlink.listeners.append(helper.ring)
        helper.start(self._carried_out(doing))
        return helper

    def _carried_out(self, doing: Doing) -> Waiting:
        with closing(doing):
            for act in doing:
                match act:
                    case Wait():
                        yield act
                    case Send():
                        self._up.send(self.session.receive, act.event)
                    case Say():
                        yield from self._say(act)

    def _say(self, said: Say) -> Waiting:
        """Who commits by hand has sent something when the first frame was spoken; all that follows is sent
        with it, since nobody looks at it before the commit."""
        started_s = self._agenda.now
        if self._has_vad:
            self._up.send(self.session.hear, said)
        else:
            yield Wait(started_s + min(FRAME_S, said.length_s))
            silence = bytes(round(said.length_s * WIRE_SAMPLE_RATE_HZ) * PCM16_BYTES)
            self._up.send(self.session.receive, {"type": "input_audio_buffer.append", "audio": silence})
        yield Wait(started_s + said.length_s)
