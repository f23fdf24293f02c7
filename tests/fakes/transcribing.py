"""A node of a cascade whose orders are carried out at once, by hand: nothing is computed."""

from __future__ import annotations

from collections import Counter, defaultdict

from antiphon.assembly.node import Node
from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, NodeConfig
from antiphon.core.conversation import AudioPart, Item, TextPart, TranscriptOptions
from antiphon.core.facts import (
    NO_INTS,
    NO_TOKENS,
    Fact,
    ItemAdded,
    PromptFailed,
    PromptReady,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    StagePrompt,
    StepDone,
    StepFailed,
    TurnForeseen,
    WordsWanted,
)
from antiphon.core.plans import (
    AdvisoryAnswered,
    ArStep,
    AudioOut,
    CodecStep,
    Decision,
    EncodeStep,
    Join,
    Order,
    Output,
    RenderPrompt,
    ResponseEnded,
    TokensOut,
    WordsHeard,
    ints,
)
from antiphon.core.sampling import Sampling

STOP, NOBODY, WORD = 3, 4, 20
SAMPLES = 240
"""Of one step of the voice."""
CREDIT = 256
CONFIG = NodeConfig(
    graph="cascade",
    ar={
        "transcriber": ArConfig(
            max_rows=2, num_blocks=8, block_size=4, stop_ids=(STOP, NOBODY), sampling=Sampling(max_tokens=8)
        ),
        "thinker": ArConfig(
            max_rows=4, num_blocks=500, block_size=4, stop_ids=(STOP,), sampling=Sampling(max_tokens=900)
        ),
    },
    codec={"voice": CodecConfig(4)},
    encoder={"ears": EncoderConfig(step_media=2, cached_media=2)},
    end_inputs={},
    transcript_prompt=(1, 2),
)


def recording(number: int, options: TranscriptOptions | None = None) -> AudioPart:
    return AudioPart(bytes(4 * number), number, options)


def written(number: int) -> tuple[int, ...]:
    """What the transcriber writes of a recording."""
    return 30 + number, 31 + number


class World:
    """A node whose orders are carried out at once, by hand: nothing is computed."""

    def __init__(self) -> None:
        self.node = Node(CONFIG)
        self.now = 0.0
        self.facts: list[Fact] = []
        self.log: list[tuple[tuple[Fact, ...], float, Decision]] = []
        self.rows: dict[str, dict[int, Join]] = defaultdict(dict)
        self.drawn: Counter[tuple[str, int]] = Counter()
        self.read: Counter[int] = Counter()
        self.sounded: Counter[int] = Counter()
        self.bad: set[int] = set()
        self.silent: set[int] = set()
        """Recordings in which nobody speaks."""
        self.reply_length = 3
        self.samples = SAMPLES
        self.is_voicing = True
        self.encoded: list[int] = []
        self.prompts: list[RenderPrompt] = []
        self.transcribed: list[Join] = []
        self.words: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.text: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, ResponseEnded] = {}
        self.advised: list[AdvisoryAnswered] = []
        self.so_far: list[tuple[str, str, tuple[int, ...], bool]] = []

    def ask(self, session: str, *said: AudioPart | str) -> None:
        parts = tuple(TextPart(part) if isinstance(part, str) else part for part in said)
        self.facts += [SessionOpened(session), ItemAdded(session, Item(f"q-{session}", "user", parts))]
        self.facts.append(ResponseRequested(session, session, f"a-{session}"))

    def serve_another(self, turns: int) -> None:
        """Somebody else has asked, and so many turns have gone by since."""
        self.ask("other", "hello")
        for _ in range(turns):
            self.turn()

    def turn(self) -> bool:
        facts, self.facts = self.facts, []
        self.now += 0.01
        decision = self.node.decide(facts, self.now)
        self.node.check_integrity()
        self.log.append((tuple(facts), self.now, decision))
        for output in decision.outputs:
            self._hear(output)
        for order in decision.orders:
            self.facts += self._carried_out(order)
        return bool(self.facts)

    def run(self) -> World:
        for _ in range(3000):
            if not self.turn():
                return self
        raise AssertionError("it never comes to rest")

    def check_empty(self) -> None:
        for ar in self.node.stages.ar.values():
            assert not ar.requests
        for session in list(self.node.monitor.sessions):
            self.facts.append(SessionClosed(session))
        self.run()
        assert all(ar.kv.blocks.num_free == ar.kv.num_blocks for ar in self.node.stages.ar.values())
        assert not any(encoder.pins for encoder in self.node.stages.encoders.values())
        assert not any(codec.requests for codec in self.node.stages.codec.values())

    def _hear(self, output: Output) -> None:
        match output:
            case AdvisoryAnswered():
                self.advised.append(output)
            case WordsHeard():
                tokens = tuple(output.tokens.tolist())
                self.so_far.append((output.session, output.item_id, tokens, output.is_pause))
            case TokensOut():
                self.text[output.response] += output.tokens[:, 0].tolist()
            case AudioOut():
                self.words[output.response] += output.words
            case ResponseEnded():
                assert output.response not in self.ends, "it ends once"
                self.ends[output.response] = output

    def _carried_out(self, order: Order) -> list[Fact]:
        match order:
            case RenderPrompt():
                if order.options is not None:
                    if order.options.language == "xx":
                        return [PromptFailed(order.request, "language: xx")]
                    before = ints([7, 1, 2])
                    prompt = StagePrompt(before, before, (), 0, NO_INTS)
                    return [PromptReady(order.request, {"transcriber": prompt})]
                self.prompts.append(order)
                ids = ints([9, *(token for tokens in order.transcripts.values() for token in tokens)])
                prompt = StagePrompt(ids, ids, (), len(ids), NO_INTS)
                return [PromptReady(order.request, {"thinker": prompt})]
            case EncodeStep():
                keys = [part.key for part in order.media]
                if self.bad.intersection(keys):
                    return [StepFailed(order.stage, order.step, NO_INTS, ints(keys), "too loud")]
                self.encoded += keys
                return [StepDone(order.stage, order.step, NO_INTS, NO_TOKENS, NO_INTS, ints(keys))]
            case ArStep():
                return [self._drawn(order)]
            case CodecStep():
                return [self._voiced(order)]
            case _:
                return []

    def _drawn(self, order: ArStep) -> Fact:
        rows = self.rows[order.stage]
        for row in order.leaves.tolist():
            del rows[row]
        for join in order.joins:
            rows[join.row] = join
        emitting = [rows[row] for row in order.rows[order.emits == 1].tolist()]
        tokens = [[self._token(order.stage, join)] for join in emitting]
        requests = ints([join.request for join in emitting])
        drawn = ints([token for row in tokens for token in row]).reshape(-1, 1)
        return StepDone(order.stage, order.step, requests, drawn, NO_INTS, NO_INTS)

    def _token(self, stage: str, join: Join) -> int:
        at = self.drawn[stage, join.request]
        self.drawn[stage, join.request] += 1
        if stage == "thinker":
            return WORD if at < self.reply_length else STOP
        self.transcribed.append(join)
        (span,) = join.prompt.spans
        assert span.length == len(join.prompt.token_ids)
        if span.key in self.silent:
            return NOBODY
        asked = 50 * (join.prompt.token_ids.tolist() == [7, 1, 2])
        return (*(asked + token for token in written(span.key)), STOP)[at]

    def _voiced(self, order: CodecStep) -> Fact:
        """Each step speaks all that it was given, in two windows; or nothing."""
        samples, owing, words = [], [], []
        for request, count in zip(order.requests.tolist(), order.counts.tolist(), strict=True):
            self.read[request] += count
            samples.append(self.samples if self.is_voicing else 0)
            self.sounded[request] += samples[-1]
            if self.is_voicing and count:
                owing.append(request)
            elif self.is_voicing:
                words += [request, self.read[request], self.sounded[request]]
        audio = tuple(bytes(4 * count) for count in samples)
        about = order.stage, order.step, order.requests, NO_TOKENS, ints(samples), NO_INTS, audio
        return StepDone(*about, owing=ints(owing), words=ints(words))


def foreseen(number: int, options: TranscriptOptions | None = None) -> TurnForeseen:
    return TurnForeseen("s", Item("q", "user", (recording(number, options),)), ResponseRequested("s", "", ""))


def wanted(
    number: int, session: str = "s", is_pause: bool = False, options: TranscriptOptions | None = None
) -> WordsWanted:
    return WordsWanted(session, "q", (recording(number, options),), is_pause)


def transcription(*numbers: int, session: str = "t", tier: str = "latency") -> ResponseRequested:
    """Somebody asks what is said in recordings."""
    said = Item("said", "user", tuple(recording(number) for number in numbers))
    return ResponseRequested(
        session, "t", "t", speech=False, remember=False, items=(said,), tier=tier, transcribe=True
    )
