"""What an operator writes: one YAML file for a whole deployment. Texts for people are in the fields' own
descriptions, which `antiphon config explain` and docs/deployments.md show.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.core.errors import ConfigError
from antiphon.core.model_source import check_parts, parts_in, source_of
from antiphon.wire.limits import Limits as WireLimits
from antiphon.wire.readers import ReaderRates

EDGE = r"^\w+ -> \w+$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"

_WIRE = WireLimits()
_READERS = ReaderRates()

Name = Annotated[str, Field(pattern=NAME)]
Positive = Annotated[int, Field(ge=1)]


def _on_or_off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def key(default: Any, description: str, example: Any = None, **bounds: Any) -> Any:
    """A field: its default, what it is in words, one value as an operator may write it, and its bounds."""
    return Field(default=default, description=description, examples=[example], **bounds)


class Written(BaseModel):
    """Frozen, and a key that is not known is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class SessionLimits(Written):
    """What one session may ask for."""

    max_frame_bytes: Positive = key(_WIRE.max_frame_bytes, "Bytes of one client frame.", 22_020_096)
    max_append_bytes: Positive = key(_WIRE.max_append_bytes, "Bytes of audio in one append.", 1_048_576)
    max_audio_s: float = key(
        _WIRE.max_audio_s, "Seconds of audio in one turn, and in one audio part of an item.", 120, ge=0.1
    )
    max_items: Positive = key(_WIRE.max_items, "Items of one conversation.", 200)
    max_text_chars: Positive = key(
        _WIRE.max_text_chars, "Characters of one item, and of instructions.", 20_000
    )
    max_parts: Positive = key(_WIRE.max_parts, "Content parts of one item.", 16)
    max_image_bytes: Positive = key(_WIRE.max_image_bytes, "Bytes of one picture as sent.", 4_194_304)
    max_image_pixels: Positive = key(_WIRE.max_image_pixels, "Pixels of one picture.", 4_000_000)
    max_media_bytes: Positive = key(
        _WIRE.max_media_bytes, "Bytes of decoded audio and pictures that a conversation may hold.", 67_108_864
    )
    max_body_bytes: Positive = key(
        _WIRE.max_body_bytes, "Bytes of one HTTP request, and of all that it names by URL.", 33_554_432
    )
    max_file_bytes: Positive = key(_WIRE.max_file_bytes, "Bytes of one audio or video file.", 16_777_216)
    max_video_frames: Positive = key(_WIRE.max_video_frames, "Frames of one video.", 256)
    max_spoken_chars: Positive = key(_WIRE.max_spoken_chars, "Characters read aloud in one request.", 2048)
    max_choices: Positive = key(
        _WIRE.max_choices, "Choices of one completion request: its prompts, each as often as `n` says.", 16
    )
    max_guide_chars: Positive = key(
        _WIRE.max_guide_chars,
        "Characters of a schema, a regular expression or a grammar that a text has to match.",
        20_000,
    )
    max_guide_s: float = key(
        _WIRE.max_guide_s, "Seconds of a core that a schema or a grammar may take to compile.", 0.5, gt=0
    )
    max_open_responses: Positive = key(
        _WIRE.max_open_responses, "Responses of one session in the making at once.", 2
    )


class DeploymentLimits(Written):
    """How much of everything; more is refused with an error that names the limit."""

    max_sessions: Positive = key(
        64,
        "Sessions and HTTP requests open at once, best-effort ones apart; more are refused. Half of the "
        "places are kept for API keys in equal parts, where there are several.",
        256,
    )
    max_open_responses: Positive = key(
        64, "Live replies in the making at once, of all sessions; more are refused.", 128
    )
    max_best_effort_responses: Positive = key(
        64,
        "Best-effort replies at once: `service_tier: flex`, and what sessions have written down; more are "
        "refused.",
        256,
    )
    min_lead_s: float = key(
        0.6,
        "Seconds of audio every live listener should have left; while one lately had less, new "
        "sessions are refused; 0: no guard.",
        0.4,
        ge=0,
    )
    max_context_tokens: Positive = key(8192, "Prompt plus reply of one response, in tokens.", 32_768)
    start_limit_s: float = key(
        600.0, "Seconds until a stage's own process has to be ready; one that is late is named.", 1800, gt=0
    )
    silence_limit_s: float = key(
        60.0,
        "Seconds in which a process of a stage, or the engine's, has to answer; one that hangs is started "
        "again. One that computes has ten times as long.",
        20,
        gt=0,
    )
    session: SessionLimits = key(SessionLimits(), "What one session may ask for.")


class WrittenDevice(Written):
    """A device that stages can be on. Those of one process take turns on it."""

    device: str = key(
        "auto",
        "The torch device: auto (the GPU where there is one), cpu, cuda or cuda:N.",
        "cuda:1",
        pattern=r"^(auto|cpu|cuda|cuda:\d+)$",
    )
    kind: str | None = key(
        None, "What it is, by the name in the table of datasheets; says how much memory it has.", "H200"
    )
    memory_gib: float | None = key(
        None,
        "Memory for this deployment, in GiB; by default the kind's, or what the machine says.",
        139,
        gt=0,
    )


class WrittenSampling(Written):
    """How a stage draws where a request says nothing; what is left out is the checkpoint's own."""

    temperature: float | None = key(None, "0 is greedy.", 0.9, ge=0)
    top_k: int | None = key(None, "Draw from the best so many; 0: all.", 50, ge=0)
    top_p: float | None = key(None, "Draw from the best that hold this share; 1: all.", 0.8, gt=0, le=1)
    repetition_penalty: float | None = key(None, "Divides what was drawn before; 1: off.", 1.05, gt=0)
    max_tokens: Positive | None = key(None, "Tokens of one reply, where its request names no number.", 1024)


class WrittenBounds(Written):
    """What requests of a class are promised, for policies that go by it."""

    ttft_s: float | None = key(
        None, "Seconds from the end of the person's turn to the first token.", 1.0, gt=0
    )
    tpot_s: float | None = key(None, "Seconds per token after the first.", 0.1, gt=0)


class Classes(Written):
    """Each class of requests."""

    latency: WrittenBounds = key(WrittenBounds(), "Requests that a person waits for.")
    best_effort: WrittenBounds = key(
        WrittenBounds(), "`service_tier: flex`, and what sessions have written down."
    )
    preparatory: WrittenBounds = key(WrittenBounds(), "What will be wanted soon.")


class Readers(Written):
    """How fast texts are read, where their requests do not say it in numbers."""

    reading: float = key(_READERS.reading, "Tokens a second of a person who reads.", 8, ge=1, le=100)
    listening: float = key(
        _READERS.listening, "Tokens a second of a person to whom the client speaks the text.", 4, ge=1, le=100
    )
    most: float = key(
        _READERS.most,
        "Tokens a second that a request may say at most; one that says more is taken at this. "
        "`auto` is for those that no person reads.",
        24,
        ge=1,
        le=100,
    )
    streamed: Literal["reading", "listening", "auto"] | None = key(
        None,
        "Who reads a streamed text, and a written reply of a realtime session, where nothing is "
        "said: a person as above, or auto, an agent that takes it as fast as there is room. Unless "
        "said it is reading under a preset that schedules by it (`tokenflow`), and nobody is known to "
        "under others.",
        "reading",
    )
    whole: Literal["auto"] | None = key(
        None,
        "The same of a text that is sent once all of it is there: auto, or nobody is known to. Unless said "
        "it is auto under `tokenflow`.",
        "auto",
    )


class StageSizes(Written):
    """How much a unit of a stage has, and does in a step."""

    max_rows: Positive | None = key(
        None, "Requests that run at once in each unit (16 where nothing says).", 64
    )
    step_rows: Positive | None = key(
        None, "Of them, those that run in one step at most; unless said all.", 32
    )
    kv_tokens: Positive | None = key(
        None, "KV capacity of each unit, in tokens (unless said 32768, and one context at least).", 262_144
    )
    host_kv_tokens: int | None = key(
        None,
        "KV of idle sessions that each unit may keep in host memory, in tokens; 0: none.",
        1_048_576,
        ge=0,
    )
    step_tokens: Positive | None = key(
        None, "Budget of a step, in tokens over all rows; longer prompts run in chunks (1024).", 4096
    )
    block_size: Positive | None = key(None, "Tokens of one KV block (16).", 32)


class StageSpec(StageSizes):
    """One stage of the model's graph: how many units of it, where, and how large."""

    device: Name | None = key(None, "Device of all its units, a name from `devices`.", "gpu0")
    devices: list[Name] = key(
        [], "Devices of its units, in turn: unit N is on the one after the last unit's.", ["gpu0", "gpu1"]
    )
    replicas: int = key(1, "Units of this stage; each has rows and KV of its own.", 4, ge=1, le=256)
    prefill: int = key(
        0,
        "So many of its units, the first ones, only read prompts, and hand each request with its "
        "KV to one of the others, which only write; 0: every unit does both. For the stage that writes text.",
        1,
        ge=0,
    )
    process: str = key(
        "shared",
        "Where its units live: shared (the process that decides), own (one process a unit), or "
        "the name of a process; with replicas, unit N of every stage that names it lives in NAME.N.",
        "own",
        pattern=NAME,
    )
    memory_fraction: float | None = key(
        None,
        "Share of the device's memory for each unit: weights, KV and work space. Without "
        "kv_tokens, the KV is what is left of it.",
        0.6,
        gt=0,
        le=1,
    )
    tensor_parallel: Positive = key(
        1,
        "Processes that compute its decoder together; 1, or the same for every decoder that is "
        "divided. On a CPU only, without replicas and processes of its own.",
        2,
    )
    threads: int = key(
        0,
        "CPU threads of its processes, of stages in one process the most; 0: one in a process of "
        "its own, torch's default in the shared one.",
        2,
        ge=0,
    )
    sampling: WrittenSampling = key(
        WrittenSampling(), "How it draws where a request says nothing.", {"temperature": 0.7}
    )

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.device is not None and self.devices:
            raise ValueError("has `device` and `devices`; say one of them")
        if len(self.devices) > self.replicas:
            raise ValueError(
                f"has {len(self.devices)} devices for {self.replicas} replicas; raise `replicas`"
            )
        if self.prefill >= self.replicas and self.prefill:
            raise ValueError(
                f"has prefill {self.prefill} of {self.replicas} replicas, which leaves none to write; "
                "raise `replicas`"
            )
        return self


class WrittenEdge(Written):
    """How one stage hands on to the next."""

    connector: Literal["shared_memory", "tcp"] | None = key(
        None,
        "What carries payloads straight from one stage's process to the other's, neither of them "
        "shared; shared_memory unless said. Codec frames go through the process that decides.",
        "tcp",
    )
    first_chunk: Positive | None = key(
        None, "Frames that a codec waits for before a reply's first sound; fewer sound sooner.", 2
    )
    chunk: Positive | None = key(None, "Frames that a codec decodes together after that.", 8)
    credit: Positive | None = key(
        None, "Frames of a reply that may be ahead of what the codec has decoded.", 32
    )


class Parts(Written):
    """The checkpoints of a cascade, each a directory or a hub id, and its settings."""

    transcriber: str | None = key(
        None,
        "What hears: a Whisper, as a directory relative to this file, or a hub id.",
        "openai/whisper-tiny.en",
        min_length=1,
    )
    thinker: str | None = key(
        None,
        "What writes: a text model (Llama, Qwen2 or Qwen3), as a directory or a GGUF relative to "
        "this file, or a hub id.",
        "Qwen/Qwen3-1.7B",
        min_length=1,
    )
    voice: str | None = key(
        None,
        "What speaks: a VITS voice, as a directory relative to this file, or a hub id.",
        "checkpoints/talk/voice",
        min_length=1,
    )
    silent_tail: bool | None = key(
        None,
        "Whether only what was said of a recording is encoded, and not a window of 30 s with the silence "
        "behind it; true unless said.",
        False,
    )
    no_speech_threshold: float | None = key(
        None,
        "How probable it must be that nobody speaks in a recording for it to be written down as nothing; "
        "0.6 unless said, and 1 is never.",
        0.8,
        gt=0,
        le=1,
    )


class Deployment(Written):
    """A whole deployment."""

    base: str | None = key(
        None,
        "What this file changes: a deployment that ships, or a file relative to this one. Keys "
        "here win; mappings are merged, lists replaced; null takes a key of the base away.",
        "one-gpu",
    )
    description: str = key("", "What it is for, for people.", "Eight GPUs, one host.")
    model: str | None = key(
        None,
        "Checkpoint directory or GGUF (relative to where `serve` is started), or a hub id. The command "
        "line's wins.",
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
    )
    parts: Parts = key(
        Parts(),
        "The three checkpoints of a cascade, instead of `model`. Parts that the command line "
        "names (thinker=DIR) win.",
        {
            "transcriber": "openai/whisper-tiny.en",
            "thinker": "Qwen/Qwen3-1.7B",
            "voice": "checkpoints/talk/voice",
        },
    )
    preset: str = key(
        "baseline", "Which policy decides what: a preset that ships, or a file relative to this one.", "fcfs"
    )
    profile: str | None = key(
        None,
        "What steps and copies take, for policies that ask: a kind of hardware in the table of "
        "datasheets, or a file that `antiphon profile` wrote, relative to this one. Unless said, what they "
        "report.",
        "H200",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = key(
        "auto",
        "Of weights and KV; auto is bfloat16 on CUDA and float32 on a CPU, where weights stored "
        "in bfloat16 are multiplied in it if the CPU has AVX512-BF16.",
        "bfloat16",
    )
    attention: str = key(
        "auto",
        "Attention back-end; auto is the first verified one that runs on the device; one "
        "that multiplies in bfloat16 only where dtype is auto too.",
        "triton",
    )
    load_format: Literal["auto", "dummy"] = key(
        "auto",
        "auto: the checkpoint's weights; dummy: random ones, config and tokenizer are enough.",
        "dummy",
    )
    depth: Literal[0, 1] | None = key(
        None, "Steps in flight while the next is decided; unless said 1 on CUDA and 0 on a CPU.", 1
    )
    cuda_graphs: Annotated[Literal["off", "on"], BeforeValidator(_on_or_off)] = key(
        "off", "Decode with CUDA graphs; CUDA only.", "on"
    )
    prefix_cache: Annotated[Literal["off", "on"], BeforeValidator(_on_or_off)] = key(
        "on",
        "Whether the KV of an HTTP request stays on the device until its room is needed, so that a "
        "prompt that begins alike is not computed again. Each API key finds what its own requests left.",
        "off",
    )
    layer_groups: Positive = key(
        1, "KV groups that a decoder's layers are split into; at most one a layer.", 4
    )
    step_s: float | None = key(
        None,
        "Seconds of a step while replies are drawn beside its prompts, which run in shorter chunks for "
        "it; 0: as long as it takes. Unless said, as long as those replies can wait: their class's tpot_s, a "
        "quarter of a listener's lead, or 0.2.",
        0.1,
        ge=0,
        le=60,
    )
    link_gb_s: float | None = key(
        None,
        "Most that copies between the KV of the device and of the host take, in GB/s each way; on a CPU "
        "only. It leaves the memory bus to others, and shows what a slower link would do. Unless said what "
        "they reach.",
        1,
        ge=0.001,
    )
    limits: DeploymentLimits = key(DeploymentLimits(), "How much of everything; more is refused.")
    defaults: StageSizes = key(StageSizes(), "Sizes of all stages that say nothing of their own.")
    classes: Classes = key(Classes(), "What requests are promised by their class; policies may go by it.")
    readers: Readers = key(Readers(), "How fast texts are read, where their requests do not say.")
    devices: dict[Name, WrittenDevice] = key({}, "Devices by the names that stages use.", {"gpu0": {}})
    stages: dict[Name, StageSpec] = key(
        {},
        "Stages of the model's graph by name (Qwen3-Omni: encoders, thinker, talker, code2wav; a cascade: "
        "ears, transcriber, thinker, voice); what is not listed has one unit.",
        {"thinker": {"replicas": 2}},
    )
    edges: dict[Annotated[str, Field(pattern=EDGE)], WrittenEdge] = key(
        {},
        'Hand-offs between stages, by "source -> target"; from a stage with `prefill` to itself too.',
        {"talker -> code2wav": {"chunk": 8}},
    )

    def stage(self, name: str) -> StageSpec:
        """What it says of a stage; the defaults of one that it does not list."""
        return self.stages.get(name, StageSpec())

    @property
    def is_cascade(self) -> bool:
        """Whether it is for a cascade: `parts` is written, be it without any."""
        return "parts" in self.model_fields_set

    def source(self, given: str = "") -> str:
        """The model to serve, as `core.model_source` names one; "" if none is named. `given`: what the
        command line names; parts of a cascade there replace those here.

        Raises ConfigError: `parts` beside a model, here or given, and a cascade without one of its parts.
        """
        said: dict[str, Any] = self.parts.model_dump(exclude_none=True)
        written = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items()
        }
        beside = given or self.model or ""
        others = parts_in(beside)
        if beside and written and not others:
            where = f"the model {given!r} is given" if given else f"`model` is {self.model!r}"
            raise ConfigError(
                f"{where}, and `parts` names {', '.join(written)}: a deployment has one model. Leave one of "
                "them out (null takes a key of the base away)"
            )
        named = {**written, **others}
        if not named:
            return beside
        check_parts(named)
        return source_of(named)
