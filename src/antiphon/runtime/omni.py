"""The Python entry: requests in, text, tokens and audio out, in this process.

from antiphon import Omni, Request

omni = Omni("checkpoints/demo")
reply = omni.generate([Request("Good morning!")])[0]
print(reply.text, reply.audio.shape)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from antiphon.core.config import EngineOptions
from antiphon.core.conversation import AudioPart, ImagePart, Item, Part, Role, TextPart
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.core.sampling import Sampling
from antiphon.engine.load import Engine, load_engine
from antiphon.runtime.driver import Driver

Content = str | Sequence[str | dict[str, Any]]
"""Text, or parts: a str, {"text": str}, {"audio": float32 [n] at 16 kHz}, {"image": PIL image or uint8 [h, w, 3]}."""


@dataclass(frozen=True, slots=True)
class Request:
    """One multimodal request.

    content       the user's message; or give `messages`, a list of (role, content), for a longer conversation
    instructions  a system message in front
    speech        False: text only
    voice         speaker name; None is the checkpoint's first
    max_tokens    of the text reply; None leaves the checkpoint's default
    sampling      per stage ("thinker", "talker"); stages not named use the checkpoint's defaults
    """

    content: Content = ""
    messages: Sequence[tuple[Role, Content]] = ()
    instructions: str = ""
    speech: bool = True
    voice: str | None = None
    max_tokens: int | None = None
    sampling: dict[str, Sampling] = field(default_factory=dict[str, Sampling])


@dataclass(slots=True)
class Reply:
    """A reply, or what a stream brought since its last part.

    text       decoded reply
    token_ids  per stage int64 [n, width]: "thinker" [n, 1], "talker" [frames, codebooks]
    audio      float32 [samples] at 24 kHz in [-1, 1]; empty for a reply without speech
    status     in_progress | completed | incomplete | failed | cancelled; `reason` and `message` say why
    """

    text: str = ""
    token_ids: dict[str, NDArray[np.int64]] = field(default_factory=dict[str, NDArray[np.int64]])
    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    status: str = "in_progress"
    reason: str = ""
    message: str = ""
    usage: Usage = Usage()


class Omni:
    """A loaded model, driven by whoever calls it. Not for use from several threads at once.

    model    checkpoint directory or hub id
    preset   name of a scheduling preset
    device   auto | cpu | cuda | cuda:N
    dtype    auto | float32 | bfloat16 | float16 | float64
    options  further fields of EngineOptions (max_rows, kv_tokens, step_tokens, …)

    Raises CheckpointError or ConfigError.
    """

    def __init__(
        self,
        model: str | Path,
        preset: str = "baseline",
        device: str = "auto",
        dtype: str = "auto",
        **options: Any,
    ) -> None:
        try:
            chosen = EngineOptions(device=device, dtype=dtype, preset=preset, **options)
        except TypeError as error:
            known = ", ".join(EngineOptions.__struct_fields__)
            raise ConfigError(f"{error}; options are {known}") from None
        engine = load_engine(str(model), chosen, Path(str(model)).name, lambda what, done, total: None)
        self._begin(engine)

    def _begin(self, engine: Engine) -> None:
        self._engine = engine
        self._driver = Driver(engine, self._collect)
        self._tokenizer = Tokenizer.from_file(str(Path(engine.info.path) / "tokenizer.json"))
        self._outputs: list[Output] = []
        self._count = itertools.count(1)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests, batched; replies in the order of the requests. Failures are in `status`."""
        names = [f"request-{next(self._count)}" for _ in requests]
        facts = [
            fact for name, request in zip(names, requests, strict=True) for fact in _facts(name, request)
        ]
        parts: dict[str, list[Output]] = {name: [] for name in names}
        for output in self._run(facts, len(names)):
            parts[output.session].append(output)
        self._close(names)
        return [self._reply(parts[name]) for name in names]

    def stream(self, request: Request) -> Iterator[Reply]:
        """Answer one request as it is produced: each part holds what is new, the last one the end's status."""
        name = f"request-{next(self._count)}"
        text = ""
        ids: list[int] = []
        try:
            for output in self._run(_facts(name, request), 1):
                part = self._reply([output])
                if isinstance(output, TokensOut) and output.stage == "thinker":
                    ids += output.tokens[:, 0].tolist()
                    whole = self._decode(ids)
                    part.text, text = whole[len(text) :], whole
                yield part
        finally:
            self._close([name])

    def _run(self, facts: list[Fact], count: int) -> Iterator[Output]:
        """Advance the driver until `count` responses have ended."""
        more = True
        while count:
            if not more and not facts:
                raise AntiphonError("the engine stopped with responses open: this is a bug of Antiphon")
            more = self._driver.advance(facts)
            facts = []
            outputs, self._outputs = self._outputs, []
            for output in outputs:
                count -= isinstance(output, ResponseEnded)
                yield output

    def _collect(self, output: Output) -> None:
        self._outputs.append(output)

    def _close(self, names: list[str]) -> None:
        """Also reached when a stream is abandoned: the response is cancelled with its session."""
        cancels: list[Fact] = [ResponseCancelled(name, name) for name in names]
        closes: list[Fact] = [SessionClosed(name) for name in names]
        self._driver.advance([*cancels, *closes])
        self._outputs = []

    def _reply(self, outputs: list[Output]) -> Reply:
        tokens: dict[str, list[NDArray[np.int64]]] = {}
        audio: list[NDArray[np.float32]] = []
        reply = Reply()
        for output in outputs:
            match output:
                case TokensOut():
                    tokens.setdefault(output.stage, []).append(output.tokens)
                case AudioOut():
                    audio.append(np.frombuffer(output.audio, np.float32))
                case ResponseEnded():
                    reply.status, reply.reason = output.status, output.reason
                    reply.message, reply.usage = output.message, output.usage
        reply.token_ids = {stage: np.concatenate(rows) for stage, rows in tokens.items()}
        if audio:
            reply.audio = np.concatenate(audio)
        if "thinker" in tokens:
            reply.text = self._decode(reply.token_ids["thinker"][:, 0].tolist())
        return reply

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _facts(name: str, request: Request) -> list[Fact]:
    """A conversation of its own for each request."""
    messages = request.messages or [("user", request.content)]
    items = [Item(f"item-{i}", role, _parts(content)) for i, (role, content) in enumerate(messages)]
    wanted = ResponseRequested(
        name,
        name,
        "reply",
        speech=request.speech,
        instructions=request.instructions,
        voice=request.voice,
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        codes=True,
    )
    return [SessionOpened(name), *(ItemAdded(name, item) for item in items), wanted]


def _parts(content: Content) -> tuple[Part, ...]:
    entries = [content] if isinstance(content, str) else content
    return tuple(_part({"text": entry} if isinstance(entry, str) else entry) for entry in entries)


def _part(entry: dict[str, Any]) -> Part:
    if "text" in entry:
        return TextPart(entry["text"])
    if "audio" in entry:
        samples = np.asarray(entry["audio"])
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise ConfigError(
                f"audio must be float32 [samples] at 16 kHz, got {samples.dtype} {list(samples.shape)}"
            )
        return AudioPart.of(samples.tobytes())
    if "image" in entry:
        image = entry["image"]
        pixels = np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ConfigError(
                f"an image must be a PIL image or uint8 [h, w, 3], got {pixels.dtype} {list(pixels.shape)}"
            )
        return ImagePart.of(pixels.tobytes(), pixels.shape[1], pixels.shape[0])
    raise ConfigError(f"a content part must have one of the keys text, audio, image; it has {sorted(entry)}")
