"""What an operator writes: one YAML file for a whole deployment. Texts for people are in the fields' own
descriptions, which `antiphon config explain` and docs/deployments.md show.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from antiphon.core.errors import ConfigError
from antiphon.core.model_source import check_parts, parts_in, source_of
from antiphon.wire.limits import Limits as WireLimits

EDGE = r"^\w+ -> \w+$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"

_WIRE = WireLimits()

Name = Annotated[str, Field(pattern=NAME)]
Positive = Annotated[int, Field(ge=1)]


def _on_or_off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Written(BaseModel):
    """Frozen, and a key that is not known is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class SessionLimits(Written):
    """What one session may ask for."""

    max_frame_bytes: Positive = Field(
        default=_WIRE.max_frame_bytes, description="Bytes of one client frame.", examples=[22_020_096]
    )
    max_append_bytes: Positive = Field(
        default=_WIRE.max_append_bytes, description="Bytes of audio in one append.", examples=[1_048_576]
    )
    max_audio_s: float = Field(
        default=_WIRE.max_audio_s,
        ge=0.1,
        description="Seconds of audio in one turn, and in one audio part of an item.",
        examples=[120],
    )
    max_items: Positive = Field(
        default=_WIRE.max_items, description="Items of one conversation.", examples=[200]
    )
    max_text_chars: Positive = Field(
        default=_WIRE.max_text_chars,
        description="Characters of one item, and of instructions.",
        examples=[20_000],
    )
    max_parts: Positive = Field(
        default=_WIRE.max_parts, description="Content parts of one item.", examples=[16]
    )
    max_image_bytes: Positive = Field(
        default=_WIRE.max_image_bytes, description="Bytes of one picture as sent.", examples=[4_194_304]
    )
    max_image_pixels: Positive = Field(
        default=_WIRE.max_image_pixels, description="Pixels of one picture.", examples=[4_000_000]
    )
    max_media_bytes: Positive = Field(
        default=_WIRE.max_media_bytes,
        description="Bytes of decoded audio and pictures that a conversation may hold.",
        examples=[67_108_864],
    )
    max_body_bytes: Positive = Field(
        default=_WIRE.max_body_bytes, description="Bytes of one HTTP request.", examples=[33_554_432]
    )
    max_file_bytes: Positive = Field(
        default=_WIRE.max_file_bytes, description="Bytes of one audio or video file.", examples=[16_777_216]
    )
    max_video_frames: Positive = Field(
        default=_WIRE.max_video_frames, description="Frames of one video.", examples=[256]
    )
    max_spoken_chars: Positive = Field(
        default=_WIRE.max_spoken_chars, description="Characters read aloud in one request.", examples=[2048]
    )
    max_choices: Positive = Field(
        default=_WIRE.max_choices,
        description="Choices of one completion request: its prompts, each as often as `n` says.",
        examples=[16],
    )
    max_open_responses: Positive = Field(
        default=_WIRE.max_open_responses,
        description="Responses of one session in the making at once.",
        examples=[2],
    )


class Limits(Written):
    """How much of everything; more is refused with an error that names the limit."""

    max_sessions: Positive = Field(
        default=64, description="Sessions open at once; more are refused.", examples=[256]
    )
    max_open_responses: Positive = Field(
        default=64,
        description="Live replies in the making at once, of all sessions; more are refused.",
        examples=[128],
    )
    max_best_effort_responses: Positive = Field(
        default=64,
        description="Best-effort replies (`service_tier: flex`, transcriptions) at once; more are refused.",
        examples=[256],
    )
    min_lead_s: float = Field(
        default=0.6,
        ge=0,
        description="Seconds of audio every live listener should have left; while one lately had less, new "
        "sessions are refused; 0: no guard.",
        examples=[0.4],
    )
    max_context_tokens: Positive = Field(
        default=8192, description="Prompt plus reply of one response, in tokens.", examples=[32_768]
    )
    start_limit_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds until a stage's own process has to be ready; one that is late is named.",
        examples=[1800],
    )
    silence_limit_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds in which a stage's own process has to answer; one that hangs is started again. "
        "One that computes has ten times as long.",
        examples=[20],
    )
    session: SessionLimits = Field(default=SessionLimits(), description="What one session may ask for.")


class Device(Written):
    """A device that stages can be on. Those of one process take turns on it."""

    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda|cuda:\d+)$",
        description="The torch device: auto (the GPU where there is one), cpu, cuda or cuda:N.",
        examples=["cuda:1"],
    )
    kind: str | None = Field(
        default=None,
        description="What it is, by the name in the table of datasheets; says how much memory it has.",
        examples=["H200"],
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory for this deployment, in GiB; by default the kind's, or what the machine says.",
        examples=[139],
    )


class Sampling(Written):
    """How a stage draws where a request says nothing; what is left out is the checkpoint's own."""

    temperature: float | None = Field(default=None, ge=0, description="0 is greedy.", examples=[0.9])
    top_k: int | None = Field(
        default=None, ge=0, description="Draw from the best so many; 0: all.", examples=[50]
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Draw from the best that hold this share; 1: all.",
        examples=[0.8],
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, description="Divides what was drawn before; 1: off.", examples=[1.05]
    )
    max_tokens: Positive | None = Field(default=None, description="Tokens of one reply.", examples=[1024])


class ClassBounds(Written):
    """What requests of a class are promised, for policies that go by it."""

    ttft_s: float | None = Field(
        default=None,
        gt=0,
        description="Seconds from the end of the person's turn to the first token.",
        examples=[1.0],
    )
    tpot_s: float | None = Field(
        default=None, gt=0, description="Seconds per token after the first.", examples=[0.1]
    )


class Classes(Written):
    """Each class of requests."""

    latency: ClassBounds = Field(default=ClassBounds(), description="Requests that a person waits for.")
    best_effort: ClassBounds = Field(
        default=ClassBounds(), description="`service_tier: flex`, and transcriptions."
    )
    preparatory: ClassBounds = Field(default=ClassBounds(), description="What will be wanted soon.")


class Sizes(Written):
    """How much a unit of a stage has, and does in a step."""

    max_rows: Positive | None = Field(
        default=None,
        description="Requests that run at once in each unit (16 where nothing says).",
        examples=[64],
    )
    step_rows: Positive | None = Field(
        default=None,
        description="Of them, those that run in one step at most; unless said all.",
        examples=[32],
    )
    kv_tokens: Positive | None = Field(
        default=None,
        description="KV capacity of each unit, in tokens (unless said 32768, and one context at least).",
        examples=[262_144],
    )
    host_kv_tokens: int | None = Field(
        default=None,
        ge=0,
        description="KV of idle sessions that each unit may keep in host memory, in tokens; 0: none.",
        examples=[1_048_576],
    )
    step_tokens: Positive | None = Field(
        default=None,
        description="Budget of a step, in tokens over all rows; longer prompts run in chunks (1024).",
        examples=[4096],
    )
    block_size: Positive | None = Field(
        default=None, description="Tokens of one KV block (16).", examples=[32]
    )


class Stage(Sizes):
    """One stage of the model's graph: how many units of it, where, and how large."""

    device: Name | None = Field(
        default=None, description="Device of all its units, a name from `devices`.", examples=["gpu0"]
    )
    devices: list[Name] = Field(
        default=[],
        description="Devices of its units, in turn: unit N is on the one after the last unit's.",
        examples=[["gpu0", "gpu1"]],
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Units of this stage; each has rows and KV of its own.",
        examples=[4],
    )
    prefill: int = Field(
        default=0,
        ge=0,
        description="So many of its units, the first ones, only read prompts, and hand each request with its "
        "KV to one of the others, which only write; 0: every unit does both. For the stage that writes text.",
        examples=[1],
    )
    process: str = Field(
        default="shared",
        pattern=NAME,
        description="Where its units live: shared (the process that decides), own (one process a unit), or "
        "the name of a process; with replicas, unit N of every stage that names it lives in NAME.N.",
        examples=["own"],
    )
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the device's memory for each unit: weights, KV and work space. Without "
        "kv_tokens, the KV is what is left of it.",
        examples=[0.6],
    )
    tensor_parallel: Positive = Field(
        default=1,
        description="Processes that compute its decoder together; 1, or the same for every decoder that is "
        "divided. On a CPU only, without replicas and processes of its own.",
        examples=[2],
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="CPU threads of its processes, of stages in one process the most; 0: one in a process of "
        "its own, torch's default in the shared one.",
        examples=[2],
    )
    sampling: Sampling = Field(
        default=Sampling(),
        description="How it draws where a request says nothing.",
        examples=[{"temperature": 0.7}],
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


class Edge(Written):
    """How one stage hands on to the next."""

    connector: Literal["shared_memory", "tcp"] | None = Field(
        default=None,
        description="What carries payloads straight from one stage's process to the other's, neither of them "
        "shared; shared_memory unless said. Codec frames go through the process that decides.",
        examples=["tcp"],
    )
    first_chunk: Positive | None = Field(
        default=None,
        description="Frames that a codec waits for before a reply's first sound; fewer sound sooner.",
        examples=[2],
    )
    chunk: Positive | None = Field(
        default=None, description="Frames that a codec decodes together after that.", examples=[8]
    )
    credit: Positive | None = Field(
        default=None,
        description="Frames of a reply that may be ahead of what the codec has decoded.",
        examples=[32],
    )


class Parts(Written):
    """The checkpoints of a cascade, each a directory or a hub id."""

    transcriber: str | None = Field(
        default=None,
        min_length=1,
        description="What hears: a Whisper, as a directory relative to this file, or a hub id.",
        examples=["openai/whisper-tiny.en"],
    )
    thinker: str | None = Field(
        default=None,
        min_length=1,
        description="What writes: a text model (Llama, Qwen2 or Qwen3), as a directory relative to this "
        "file, or a hub id.",
        examples=["Qwen/Qwen3-1.7B"],
    )
    voice: str | None = Field(
        default=None,
        min_length=1,
        description="What speaks: a VITS voice, as a directory relative to this file, or a hub id.",
        examples=["checkpoints/talk/voice"],
    )


class Deployment(Written):
    """A whole deployment."""

    base: str | None = Field(
        default=None,
        description="What this file changes: a deployment that ships, or a file relative to this one. Keys "
        "here win; mappings are merged, lists replaced; null takes a key of the base away.",
        examples=["one-gpu"],
    )
    description: str = Field(
        default="", description="What it is for, for people.", examples=["Eight GPUs, one host."]
    )
    model: str | None = Field(
        default=None,
        description="Checkpoint directory (relative to where `serve` is started), or a hub id. The command "
        "line's wins.",
        examples=["Qwen/Qwen3-Omni-30B-A3B-Instruct"],
    )
    parts: Parts = Field(
        default=Parts(),
        description="The three checkpoints of a cascade, instead of `model`. Parts that the command line "
        "names (thinker=DIR) win.",
        examples=[
            {
                "transcriber": "openai/whisper-tiny.en",
                "thinker": "Qwen/Qwen3-1.7B",
                "voice": "checkpoints/talk/voice",
            }
        ],
    )
    preset: str = Field(
        default="baseline",
        description="Which policy decides what: a preset that ships, or a file relative to this one.",
        examples=["fcfs"],
    )
    profile: str | None = Field(
        default=None,
        description="What steps and copies take, for policies that ask: a kind of hardware in the table of "
        "datasheets, or a file that `antiphon profile` wrote, relative to this one. Unless said, what they "
        "report.",
        examples=["H200"],
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        default="auto",
        description="Of weights and KV; auto is bfloat16 on CUDA and float32 on a CPU, where weights stored "
        "in bfloat16 are multiplied in it if the CPU has AVX512-BF16.",
        examples=["bfloat16"],
    )
    attention: str = Field(
        default="auto",
        description="Attention back-end; auto is the first verified one that runs on the device; one "
        "that multiplies in bfloat16 only where dtype is auto too.",
        examples=["triton"],
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto",
        description="auto: the checkpoint's weights; dummy: random ones, config and tokenizer are enough.",
        examples=["dummy"],
    )
    depth: Literal[0, 1] | None = Field(
        default=None,
        description="Steps in flight while the next is decided; unless said 1 on CUDA and 0 on a CPU.",
        examples=[1],
    )
    cuda_graphs: Annotated[Literal["off", "on"], BeforeValidator(_on_or_off)] = Field(
        default="off", description="Decode with CUDA graphs; CUDA only.", examples=["on"]
    )
    layer_groups: Positive = Field(
        default=1, description="KV groups that a decoder's layers are split into.", examples=[4]
    )
    step_s: float | None = Field(
        default=None,
        ge=0,
        le=60,
        description="Seconds of a step while others live beside its prompts, which run in shorter chunks for "
        "it; 0: as long as it takes. Unless said as long as those can wait: their class's tpot_s, a quarter "
        "of a listener's lead, or 0.2.",
        examples=[0.1],
    )
    limits: Limits = Field(default=Limits(), description="How much of everything; more is refused.")
    defaults: Sizes = Field(default=Sizes(), description="Sizes of all stages that say nothing of their own.")
    classes: Classes = Field(
        default=Classes(), description="What requests are promised by their class; policies may go by it."
    )
    devices: dict[Name, Device] = Field(
        default_factory=dict, description="Devices by the names that stages use.", examples=[{"gpu0": {}}]
    )
    stages: dict[Name, Stage] = Field(
        default_factory=dict,
        description="Stages of the model's graph by name (encoders, thinker, talker, code2wav); what is not "
        "listed has one unit.",
        examples=[{"thinker": {"replicas": 2}}],
    )
    edges: dict[Annotated[str, Field(pattern=EDGE)], Edge] = Field(
        default_factory=dict,
        description='Hand-offs between stages, by "source -> target"; from a stage with `prefill` to itself '
        "too.",
        examples=[{"talker -> code2wav": {"chunk": 8}}],
    )

    @property
    def is_cascade(self) -> bool:
        """Whether it is for a cascade: `parts` is written, be it without any."""
        return "parts" in self.model_fields_set

    def source(self, given: str = "") -> str:
        """The model to serve, as `core.model_source` names one; "" if none is named. `given`: what the
        command line names; parts of a cascade there replace those here.

        Raises ConfigError: `parts` beside a model, here or given, and a cascade without one of its parts.
        """
        written: dict[str, str] = self.parts.model_dump(exclude_none=True)
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
