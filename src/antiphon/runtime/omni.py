"""The Python entry: requests in, text, tokens and audio out, in this process.

from antiphon import Omni, Request

omni = Omni("checkpoints/demo")
reply = omni.generate([Request("Good morning!")])[0]
print(reply.text, reply.audio.shape)
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.conversation import AudioPart, ImagePart, Item, Part, Role, TextPart, VideoPart
from antiphon.core.errors import AntiphonError, ConfigError, ProtocolError
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.model_source import name_of
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.core.sampling import Sampling
from antiphon.core.units import MAX_AMPLITUDE
from antiphon.graphs import find_graph
from antiphon.runtime.driver import Driver
from antiphon.runtime.loading import load_engine
from antiphon.wire.windows import pieces_of

Content = str | Sequence[str | dict[str, Any]]
"""Text, or parts: a str, {"text": str}, {"audio": float32 [n] at 16 kHz},
{"image": PIL image or uint8 [h, w, 3]}, {"video": uint8 [t, h, w, 3], "fps": frames a second}, the last with
the video's own sound as a further "audio" where it has any. The model is shown every frame: choose before.
"""

REPLACEMENT = "\ufffd"
"""What bytes that are no whole character yet are decoded to."""

ROLES = get_args(Role)

MOST_IDLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One multimodal request.

    content       the user's message; or give `messages`, a list of (role, content), for a longer conversation
    instructions  a system message in front
    speech        False: text only
    voice         speaker name; None is the checkpoint's first
    max_tokens    of the text reply; None leaves the checkpoint's default
    sampling      per decoder stage of the model's graph (thinker, talker), and under the name of its residual
                  (predictor) for the further codes of a frame; what is not named uses the checkpoint's
                  defaults, and the predictor mirrors the talker
    say           read this text aloud as the reply to it all, word for word; the prompt has no media then

    A reply of a single text token has nothing to speak: its audio is empty.
    """

    content: Content = ""
    messages: Sequence[tuple[Role, Content]] = ()
    instructions: str = ""
    speech: bool = True
    voice: str | None = None
    max_tokens: int | None = None
    sampling: dict[str, Sampling] = field(default_factory=dict[str, Sampling])
    say: str | None = None


@dataclass(slots=True)
class Reply:
    """A reply, or what a stream brought since its last part.

    text       decoded reply
    token_ids  per decoder stage int64 [n, width]: of a thinker [n, 1], of a talker [frames, codebooks]
    audio      float32 [samples] at 24 kHz in [-1, 1]; empty for a reply without speech
    status     in_progress | completed | incomplete | failed | cancelled; `reason` and `message` say why
    """

    text: str = ""
    token_ids: dict[str, NDArray[np.int64]] = field(default_factory=dict[str, NDArray[np.int64]])
    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    status: str = "in_progress"
    reason: str = ""
    message: str = ""
    usage: Usage = field(default_factory=Usage)


class Omni:
    """A loaded model, driven by whoever calls it. Not for use from several threads at once.

    model    checkpoint directory or hub id
    preset   which policies decide: a preset that ships, or a YAML file
    device   auto | cpu | cuda | cuda:N
    dtype    auto | float32 | bfloat16 | float16 | float64
    options  further fields of EngineOptions (max_rows, kv_tokens, step_tokens, depth, stages_apart, …)

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
        self.engine = load_engine(str(model), chosen, name_of(str(model)), lambda what, done, total: None)
        self.driver = Driver(self.engine, self._collect)
        self._writer = find_graph(self.engine.node.graph).reply_stages[0]
        """The stage whose tokens are the reply's text."""
        self._tokenizer = Tokenizer.from_file(str(Path(self.engine.info.path) / "tokenizer.json"))
        self._inbox: dict[str, deque[Output]] = {}
        self._count = itertools.count(1)

    def close(self) -> None:
        """End the processes that stages have for their own, if any; they also end with this one."""
        if self.engine.processes is not None:
            self.engine.processes.close()

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests, batched; replies in the order of the requests. Failures are in `status`. A
        request whose recording is empty or not finite fails alone.

        Raises ConfigError, before anything runs, for a request that is put wrongly.
        """
        if isinstance(requests, Request):
            raise ConfigError("generate takes a list of requests: generate([request])")
        names = [self._name() for _ in requests]
        refused: dict[str, Reply] = {}
        facts: list[Fact] = []
        for name, request in zip(names, requests, strict=True):
            try:
                facts += self._facts(name, request)
            except ProtocolError as error:
                refused[name] = _refusal(error)
        begun = [name for name in names if name not in refused]
        try:
            self._begin(begun, facts)
            return [refused.get(name) or self._reply(list(self._outputs(name))) for name in names]
        finally:
            self._close(begun)

    def stream(self, request: Request) -> Iterator[Reply]:
        """Answer one request as it is produced: each part holds what is new, the last the end's status.

        Several streams may be read in turns: whichever is read drives them all.
        """
        name = self._name()
        try:
            facts = self._facts(name, request)
        except ProtocolError as error:
            return _refused(error)
        return self._stream(name, facts)

    def _stream(self, name: str, facts: list[Fact]) -> Iterator[Reply]:
        ids: list[int] = []
        given = 0
        try:
            self._begin([name], facts)
            for output in self._outputs(name):
                part = self._reply([output])
                if isinstance(output, TokensOut) and output.stage == self._writer:
                    ids += output.tokens[:, 0].tolist()
                whole = self._decode(ids)
                if isinstance(output, ResponseEnded) or not whole.endswith(REPLACEMENT):
                    part.text, given = whole[given:], len(whole)
                else:
                    part.text = ""
                yield part
        finally:
            self._close([name])

    def _begin(self, names: list[str], facts: list[Fact]) -> None:
        self._inbox.update({name: deque() for name in names})
        self.driver.advance(facts)

    def _outputs(self, name: str) -> Iterator[Output]:
        """One response's outputs up to its end; drives the engine while there are none."""
        inbox = self._inbox[name]
        while True:
            while not inbox:
                self._advance(inbox)
            output = inbox.popleft()
            yield output
            if isinstance(output, ResponseEnded):
                return

    def _advance(self, inbox: deque[Output]) -> None:
        """Bring the engine on; wait only if that put nothing into `inbox`."""
        more = self.driver.advance([])
        if inbox:
            return
        if not more and self.driver.wake_at is None:
            raise AntiphonError("the engine stopped with responses open: this is a bug of Antiphon")
        self.driver.wait(MOST_IDLE_S)

    def _collect(self, outputs: tuple[Output, ...]) -> None:
        """What nobody waits for any more is dropped."""
        for output in outputs:
            inbox = self._inbox.get(output.session)
            if inbox is not None:
                inbox.append(output)

    def _close(self, names: list[str]) -> None:
        """Also reached when a stream is abandoned: its response is cancelled with its session."""
        for name in names:
            self._inbox.pop(name, None)
        self.driver.advance([SessionClosed(name) for name in names])

    def _name(self) -> str:
        return f"request-{next(self._count)}"

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
        if self._writer in tokens:
            reply.text = self._decode(reply.token_ids[self._writer][:, 0].tolist())
        return reply

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _facts(self, name: str, request: Request) -> list[Fact]:
        """A conversation of its own for each request. Raises ConfigError, and ProtocolError for a recording
        that cannot be heard."""
        self._check(request)
        messages = request.messages or [("user", request.content)]
        items = [
            Item(f"item-{i}", role, self._heard(parts_of(content)))
            for i, (role, content) in enumerate(messages)
        ]
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
            say=request.say,
        )
        return [SessionOpened(name), *(ItemAdded(name, item) for item in items), wanted]

    def _heard(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Recordings in pieces that a transcriber hears."""
        pieces = (
            pieces_of(part, self.engine.info) if isinstance(part, AudioPart) else (part,) for part in parts
        )
        return tuple(itertools.chain.from_iterable(pieces))

    def _check(self, request: Request) -> None:
        """Raise ConfigError for what is no request, or where a misspelt name would otherwise go unnoticed."""
        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = type(request).__name__
            raise ConfigError(f'a request is a Request, such as Request("Good morning!"); got {got}')
        voices = self.engine.info.voices
        _check_sampling(request.sampling, self.engine.node)
        if request.voice is not None and request.voice.lower() not in voices:
            raise ConfigError(f"the voice {request.voice!r} is unknown; voices are {', '.join(voices)}")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise ConfigError(f"max_tokens is {request.max_tokens}; it must be 1 or more")
        if any(
            isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2 for one in request.messages
        ):
            raise ConfigError(
                "messages are (role, content) pairs; the parts of one message stand in a list, as in "
                'Request([{"text": "What is that?"}, {"audio": samples}])'
            )
        for role, _ in request.messages:
            if role not in ROLES:
                raise ConfigError(f"a message has the role {role!r}; roles are {', '.join(ROLES)}")


def _refusal(error: ProtocolError) -> Reply:
    return Reply(status="failed", reason=error.code, message=str(error))


def _refused(error: ProtocolError) -> Iterator[Reply]:
    """Yields the refusal as a stream's only part."""
    yield _refusal(error)


def _check_sampling(sampling: dict[str, Sampling], node: NodeConfig) -> None:
    stages = [stage for stage in find_graph(node.graph).stages if stage.name in node.ar]
    residuals = [stage.residual for stage in stages if stage.residual]
    names = [*(stage.name for stage in stages), *residuals]
    for name, asked in sampling.items():
        if name not in names:
            raise ConfigError(f"sampling names the stage {name!r}; stages are {', '.join(names)}")
        if name in residuals and (asked.suppress or asked.repetition_penalty != 1.0):
            raise ConfigError(f"sampling of {name!r} has no suppress and no repetition_penalty")


def parts_of(content: Content) -> tuple[Part, ...]:
    """A message's content as parts of the record. Raises ConfigError, and ProtocolError for a recording that
    cannot be heard."""
    if not isinstance(content, Sequence):
        raise ConfigError(
            'a message\'s content is a text, or a list of parts, such as [{"audio": samples}]; '
            f"got {type(content).__name__}"
        )
    entries = [content] if isinstance(content, str) else content
    return tuple(_part({"text": entry} if isinstance(entry, str) else entry) for entry in entries)


def _part(entry: dict[str, Any]) -> Part:
    match entry:
        case {"text": str(text), **rest} if not rest:
            return TextPart(text)
        case {"audio": samples, **rest} if not rest:
            return _audio_part(np.asarray(samples))
        case {"image": image, **rest} if not rest:
            return _image_part(np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image))
        case {"video": frames, "fps": fps, **rest} if rest.keys() <= {"audio"}:
            return _video_part(np.asarray(frames), fps, rest.get("audio"))
    got = f"the keys {', '.join(map(str, entry))}" if isinstance(entry, dict) else type(entry).__name__
    raise ConfigError(
        'a content part must be a str, {"text": str}, {"audio": …}, {"image": …} or '
        f'{{"video": …, "fps": …, "audio": … (its own sound, if any)}}; got {got}'
    )


def _audio_part(samples: NDArray[Any]) -> AudioPart:
    if samples.ndim != 1 or samples.dtype != np.float32:
        got = f"{samples.dtype} {list(samples.shape)}"
        raise ConfigError(f"audio must be float32 [samples] at 16 kHz, got {got}")
    if not len(samples):
        raise ProtocolError("The audio is empty: it has no samples.", code="audio_too_short")
    if not np.isfinite(samples).all():
        raise ProtocolError(
            "The audio has samples that are not finite (NaN or infinite).", code="invalid_prompt"
        )
    return AudioPart.of(np.clip(samples, -MAX_AMPLITUDE, MAX_AMPLITUDE).tobytes())


def _image_part(pixels: NDArray[Any]) -> ImagePart:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        got = f"{pixels.dtype} {list(pixels.shape)}"
        raise ConfigError(f"an image must be a PIL image or uint8 [h, w, 3], got {got}")
    return ImagePart.of(pixels.tobytes(), pixels.shape[1], pixels.shape[0])


def _video_part(frames: NDArray[Any], fps: Any, audio: Any) -> VideoPart:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        got = f"{frames.dtype} {list(frames.shape)}"
        raise ConfigError(f"a video must be uint8 [t, h, w, 3], got {got}")
    if isinstance(fps, bool) or not isinstance(fps, int | float | np.number):
        raise ConfigError(f"a video's fps must be a number, got {fps!r}")
    sound = None if audio is None else _audio_part(np.asarray(audio)).samples
    num_frames, height, width, _ = frames.shape
    return VideoPart.of(frames.tobytes(), (width, height), num_frames, float(fps), sound)
