"""The server's own counters and the engine's figures, as Prometheus text. One registry an app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded
from antiphon.core.model_info import ModelInfo
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.metrics.names import DESCRIPTIONS, parse_key
from antiphon.wire.advisories import ADVISED
from antiphon.wire.effects import Payload
from antiphon.wire.errors import error_object

MOST_LEAD_S = 60.0
"""More is shown as this."""
WIRE_BYTES_PER_S, G711_BYTES_PER_S = 2 * WIRE_SAMPLE_RATE_HZ, 8000
SESSION_BUCKETS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
FIRST_OUTPUT_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


Family = CounterMetricFamily | GaugeMetricFamily


class EngineStats(Collector):
    """The engine's latest figures under the names it gives them, `name` or `name{stage="…"}`."""

    def __init__(self, stats: Callable[[], dict[str, float]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for key, value in sorted(self._stats().items()):
            name, labels = parse_key(key)
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if name not in families:
                families[name] = kind(name, DESCRIPTIONS.get(name, name), labels=[*labels])
            families[name].add_metric([*labels.values()], value)
        yield from families.values()


class ServerMetrics:
    """What the server itself sees."""

    def __init__(
        self, stats: Callable[[], dict[str, float]], least_lead_s: Callable[[], float] = lambda: inf
    ) -> None:
        registry = self.registry = CollectorRegistry()
        registry.register(EngineStats(stats))
        self._build = Gauge(
            "antiphon_build_info",
            "1: which version serves which model, where, in which type.",
            ["version", "model", "family", "device", "dtype"],
            registry=registry,
        )
        self.sessions = Gauge("antiphon_server_sessions", "Open sessions.", registry=registry)
        self.opened = Counter("antiphon_server_sessions_opened", "Sessions opened.", registry=registry)
        self.session_s = Histogram(
            "antiphon_server_session_seconds",
            "How long a session was open.",
            buckets=SESSION_BUCKETS_S,
            registry=registry,
        )
        self.speech_starts = Counter(
            "antiphon_server_speech_starts",
            "Times that a server's VAD heard speech begin.",
            registry=registry,
        )
        self.spoken_turns = Counter(
            "antiphon_server_spoken_turns",
            "Spoken turns that were complete, by what ended them: the server's VAD, or the client's commit.",
            ["ended_by"],
            registry=registry,
        )
        self.refused = Counter(
            "antiphon_server_sessions_refused", "Sessions refused, by code.", ["code"], registry=registry
        )
        self.received_bytes = Counter(
            "antiphon_server_received_bytes", "Bytes of client frames.", registry=registry
        )
        self.sent_bytes = Counter("antiphon_server_sent_bytes", "Bytes of server events.", registry=registry)
        self.slow_readers = Counter(
            "antiphon_server_slow_readers", "Clients cut off because they did not read.", registry=registry
        )
        self.errors = Counter(
            "antiphon_server_error_events",
            "Error events and HTTP errors, by code.",
            ["code"],
            registry=registry,
        )
        self.limits = Counter(
            "antiphon_server_refusals",
            "Events and responses refused because they passed a limit, by limit.",
            ["limit"],
            registry=registry,
        )
        self.advisories = Counter(
            "antiphon_server_advisories",
            "Advisories that the engine was told of (taken), that came too soon (throttled), or that named no"
            " session of their key (unknown).",
            ["outcome"],
            registry=registry,
        )
        Gauge(
            "antiphon_server_least_lead_seconds",
            "Least audio that a live listener had left in the last 15 s; 60 where nobody had less.",
            registry=registry,
        ).set_function(lambda: min(least_lead_s(), MOST_LEAD_S))
        self.responses = Counter(
            "antiphon_server_responses", "Responses ended, by status.", ["status"], registry=registry
        )
        self.interrupted = Counter(
            "antiphon_server_interrupted",
            "Replies that ended before they were whole: spoken over (turn_detected), cancelled, or left by"
            " their client (closed).",
            ["reason"],
            registry=registry,
        )
        self.truncated = Counter(
            "antiphon_server_truncated",
            "Spoken replies of sessions, cut to what was heard of them: interrupted, truncated, or left by"
            " their client.",
            registry=registry,
        )
        self.audio_s = Counter(
            "antiphon_server_audio_seconds", "Seconds of speech sent in sessions.", registry=registry
        )
        self.unheard_s = Counter(
            "antiphon_server_unheard_audio_seconds",
            "Of them, those behind the place where their reply was cut: the client's word, or an estimate.",
            registry=registry,
        )
        self.gaps = Counter(
            "antiphon_server_gaps",
            "Times that a live reply's audio had run out for 0.1 s or longer before more of it came.",
            registry=registry,
        )
        created = "from response.created"
        self.first_text_s = self._histogram("antiphon_server_first_text_seconds", created, "text")
        self.first_audio_s = self._histogram("antiphon_server_first_audio_seconds", created, "audio")
        self.turn_to_audio_s = self._histogram(
            "antiphon_server_turn_to_audio_seconds",
            "from the end of a spoken turn (a detected one ends with the silence that tells it)",
            "audio",
        )

    def _histogram(self, name: str, since: str, what: str) -> Histogram:
        return Histogram(
            name,
            f"Seconds {since} to the first {what} delta queued for the client.",
            buckets=FIRST_OUTPUT_BUCKETS_S,
            registry=self.registry,
        )

    def left(self) -> None:
        """Count a reply that had not ended when its client's connection was closed."""
        self.responses.labels("cancelled").inc()
        self.interrupted.labels("closed").inc()

    def tell(self, info: ModelInfo) -> None:
        """What is served, from now on."""
        self._build.labels(version("antiphon"), info.name, info.family, info.device, info.dtype).set(1)

    def refuse(self, error: AntiphonError) -> None:
        """Count a request that was answered with this error."""
        code = error_object(error)["code"]
        self.errors.labels(code).inc()
        if isinstance(error, LimitExceeded):
            self.limits.labels(error.limit).inc()
        if isinstance(error, Overloaded):
            self.refused.labels(code).inc()


class ResponseMeter:
    """Times one session's responses by the events that pass."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._created_s: dict[str, float] = {}
        self._turn_ended_s: float | None = None
        """When the person's last spoken turn ended, until a reply is heard."""
        self._is_detected = False
        """The VAD heard the end of the turn that is not committed yet."""
        self._num_cut, self._unheard_s = 0, 0.0
        """Of the session, as far as they are counted."""
        self._bytes_per_s = WIRE_BYTES_PER_S
        self._waiting = {
            "response.output_text.delta": (metrics.first_text_s, set[str]()),
            "response.output_audio_transcript.delta": (metrics.first_text_s, set[str]()),
            "response.output_audio.delta": (metrics.first_audio_s, set[str]()),
        }

    def saw(self, event: Payload, now: float) -> None:
        kind = event["type"]
        if kind in self._waiting:
            self._first(kind, event["response_id"], now)
            if kind == "response.output_audio.delta":
                self._spoke(event["delta"], now)
        elif kind == "input_audio_buffer.speech_started":
            self._metrics.speech_starts.inc()
            self._is_detected = False
        elif kind == "input_audio_buffer.speech_stopped":
            self._is_detected = True
        elif kind == "input_audio_buffer.committed":
            self._turn_ended_s = now
            self._metrics.spoken_turns.labels("vad" if self._is_detected else "client").inc()
            self._is_detected = False
        elif kind in ("session.created", "session.updated"):
            is_pcm = event["session"]["audio"]["output"]["format"]["type"] == "audio/pcm"
            self._bytes_per_s = WIRE_BYTES_PER_S if is_pcm else G711_BYTES_PER_S
        elif kind == "response.created":
            self._created_s[event["response"]["id"]] = now
        elif kind == "response.done":
            self._ended(event["response"])
        elif kind == ADVISED and event["action"] == "throttled":
            self._metrics.advisories.labels("throttled").inc()
        elif kind == "error":
            self._refused(event["error"])

    def cut(self, num_cut: int, unheard_s: float) -> None:
        """So many of its spoken replies were cut by now, with so many seconds of them never heard."""
        if num_cut > self._num_cut or unheard_s > self._unheard_s:
            self._metrics.truncated.inc(num_cut - self._num_cut)
            self._metrics.unheard_s.inc(unheard_s - self._unheard_s)
            self._num_cut, self._unheard_s = num_cut, unheard_s

    def closed(self) -> None:
        """The session is over: what has not ended never will."""
        for _ in self._created_s:
            self._metrics.left()
        self._created_s.clear()

    def _first(self, kind: str, response: str, now: float) -> None:
        histogram, seen = self._waiting[kind]
        if response not in seen:
            seen.add(response)
            histogram.observe(now - self._created_s[response])

    def _spoke(self, delta: str, now: float) -> None:
        if self._turn_ended_s is not None:
            self._metrics.turn_to_audio_s.observe(now - self._turn_ended_s)
            self._turn_ended_s = None
        self._metrics.audio_s.inc(3 * len(delta) / 4 / self._bytes_per_s)

    def _refused(self, error: Payload) -> None:
        self._metrics.errors.labels(error["code"]).inc()
        if error["code"] == "limit_exceeded":
            self._metrics.limits.labels(error["message"].partition(":")[0]).inc()

    def _ended(self, response: Payload) -> None:
        self._turn_ended_s = None
        details = response["status_details"] or {}
        if details.get("error", {}).get("code") == "context_length_exceeded":
            self._metrics.limits.labels("max_context_tokens").inc()
        self._metrics.responses.labels(response["status"]).inc()
        if response["status"] == "cancelled" and "reason" in details:
            self._metrics.interrupted.labels(details["reason"]).inc()
        del self._created_s[response["id"]]
        for _, seen in self._waiting.values():
            seen.discard(response["id"])
