"""Configuration of the deciding half: frozen, resolved before anything runs, and written into a record."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec

from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling
from antiphon.core.stage_options import EdgeOptions, StageOptions

CLASSES = ("latency", "best_effort", "preparatory")


class ClassBounds(msgspec.Struct, frozen=True):
    """What requests of a class (tier) are promised; None: nothing.

    ttft_s  seconds from the end of the person's turn to the first token
    tpot_s  seconds per token after it

    Raises ConfigError for what is not over 0.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}; it must be over 0 seconds")


class ArConfig(msgspec.Struct, frozen=True):
    """An AR stage. Blocks are per KV group, tokens per step over all rows.

    max_rows   rows of the row table: requests that hold KV and may run
    step_rows  of them that run in one step at most; None: all
    step_s     of a step with prompts while replies are drawn beside it; None: as long as those can wait; 0:
               as long as it takes

    Raises ConfigError where `layer_groups` leave a gap, overlap or share a name.
    """

    max_rows: int = 8
    step_rows: int | None = None
    block_size: int = 16
    num_blocks: int = 1024
    step_tokens: int = 1024
    step_s: float | None = None
    stop_ids: tuple[int, ...] = ()
    width: int = 1
    """Tokens per emitted row: 1, or the number of codebooks."""
    sampling: Sampling = Sampling()
    headroom_blocks: int = 1
    """Blocks beside its prompt that must be free for a request to get a row: room to draw before it may be
    preempted."""
    max_context_tokens: int | None = None
    """Prompt plus reply of one request, below what the KV holds anyway."""
    layer_groups: tuple[tuple[str, int, int], ...] = ()
    """KV groups (name, first layer, end), half-open and in order; empty: one group of all layers. That the
    last one ends with the model's last layer is checked where the pages are made."""
    host_blocks: int = 0
    """Blocks per KV group in the host tier."""
    ready_blocks: int | None = None
    """Blocks per KV group whose memory may be used at once, that of others once running requests need it:
    until then the KV of closed sessions gives way. None: all of it is there."""

    def __post_init__(self) -> None:
        at = 0
        for name, first, end in self.layer_groups:
            if first != at or end <= first:
                raise ConfigError(
                    f"layer_groups: {name!r} holds layers {first} to {end}; it must begin at layer {at} "
                    "and hold one or more"
                )
            at = end
        names = [name for name, _, _ in self.layer_groups]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"layer_groups: two groups have one name ({', '.join(names)}); each needs its own"
            )


class CodecConfig(msgspec.Struct, frozen=True):
    """A codec stage: how many streams are open at once."""

    max_rows: int = 8


class EncoderConfig(msgspec.Struct, frozen=True):
    """An encoder stage: media per step, and how many media outputs stay cached."""

    step_media: int = 4
    cached_media: int = 64


UnitRole = Literal["both", "prefill", "decode"]


class Unit(msgspec.Struct, frozen=True):
    """One replica of a stage.

    name     what plans and facts call it
    stage    the stage of the graph; its configuration goes by this name
    device   units of one process on one device take turns, a step at a time; others run beside them
    process  where it lives; "" is the process that decides. At most one encoder unit lives in a process
    role     prefill: it reads prompts, and hands each request on with the first token that it draws; decode:
             it goes on with those; both: it keeps its requests. For the stage that writes
    """

    name: str
    stage: str
    device: str = ""
    process: str = ""
    role: UnitRole = "both"


class PolicyChoice(msgspec.Struct, frozen=True):
    """Who takes a decision, as a preset says.

    policy   a name that ships or that a package registered, `package.module:Class`, or `file.py:Class`
    options  of the policy; `stages` has others for single stages, and may name another `policy` there
    observe  the policy is asked and the baseline's answer is carried out; `stages` may say otherwise
    digests  of the sources of policies that do not ship, by policy: a record replays with the same ones only
    """

    policy: str
    options: dict[str, Any] = {}
    stages: dict[str, dict[str, Any]] = {}
    digests: dict[str, str] = {}
    observe: bool = False

    def of(self, stage: str) -> tuple[str, dict[str, Any]]:
        """Policy and options for a stage."""
        own = {name: value for name, value in self.stages.get(stage, {}).items() if name != "observe"}
        policy = own.pop("policy", self.policy)
        return policy, ({**self.options, **own} if policy == self.policy else own)

    def observes(self, stage: str) -> bool:
        """Is it only observed there?"""
        return bool(self.stages.get(stage, {}).get("observe", self.observe))


class NodeConfig(msgspec.Struct, frozen=True):
    """All that a node decides by.

    end_inputs  per conditioned stage, the input that ends its text
    call_ids    text tokens that begin a tool call: from there on a reply is not spoken
    json_call_ids  text tokens that begin one where a reply begins with them; no such reply is spoken
    blank_ids   text tokens of white space, which may stand before these
    units       replicas of the stages, in pipeline order; empty: one of each, all on one device
    edges       chunks that differ from the graph's
    classes     what requests of a class (latency, best_effort) are promised
    policies    what the preset says, by decision; empty: not looked up yet
    transcript_prompt  tokens that a transcript begins with, where a stage transcribes
    times       what a profile says of steps and copies (`latency.costs.Times`); empty: it is observed
    """

    graph: str
    ar: dict[str, ArConfig]
    codec: dict[str, CodecConfig]
    encoder: dict[str, EncoderConfig]
    end_inputs: dict[str, int]
    preset: str = "baseline"
    call_ids: tuple[int, ...] = ()
    units: tuple[Unit, ...] = ()
    edges: tuple[EdgeOptions, ...] = ()
    classes: dict[str, ClassBounds] = {}
    policies: dict[str, PolicyChoice] = {}
    times: dict[str, Any] = {}
    transcript_prompt: tuple[int, ...] = ()
    json_call_ids: tuple[int, ...] = ()
    blank_ids: tuple[int, ...] = ()

    @property
    def placed(self) -> tuple[Unit, ...]:
        """The units, or where none are named one of each stage that the checkpoint has."""
        return self.units or tuple(Unit(name, name) for name in (*self.encoder, *self.ar, *self.codec))


class ProcessOptions(msgspec.Struct, frozen=True):
    """A process of its own for the units that name it.

    threads  CPU threads; 0 leaves torch's default
    """

    name: str
    threads: int = 1


CONNECTORS = ("shared_memory", "tcp")


class LinkOptions(msgspec.Struct, frozen=True):
    """How payloads go from the processes of one stage to those of another.

    Raises ConfigError for a connector that does not exist.
    """

    source: str
    target: str
    connector: str = "shared_memory"

    def __post_init__(self) -> None:
        if self.connector not in CONNECTORS:
            known = ", ".join(CONNECTORS)
            raise ConfigError(
                f"link {self.source} -> {self.target}: {self.connector!r} is not one of {known}"
            )


LOAD_FORMATS = ("auto", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ATTENTION = ("auto", "cpu-bf16", "cpu", "flashinfer", "triton", "reference")
SIZES = "max_rows", "block_size", "kv_tokens", "step_tokens", "max_context_tokens", "tensor_parallel"
DERIVED = "max_rows", "kv_tokens", "step_tokens"
"""Sizes that an engine derives where nobody says them."""
LEAST = dict.fromkeys((*SIZES, "layer_groups"), (1, "")) | {
    **dict.fromkeys(DERIVED, (0, " (by the model and the machine)")),
    "threads": (0, " (torch's default)"),
    "host_kv_tokens": (0, " (no host tier)"),
}
"""What each of these is at least, and what that means."""
OVER_ZERO = {"start_limit_s": "seconds", "silence_limit_s": "seconds", "link_gb_s": "GB/s"}
"""Must be, with their units."""
USUAL_ROWS, USUAL_KV_TOKENS, USUAL_STEP_TOKENS = 16, 32768, 1024
"""Where a size is not said, and cannot be derived."""


class EngineOptions(msgspec.Struct, frozen=True):
    """What an operator chooses when an engine starts.

    device      auto | cpu | cuda | cuda:N
    dtype       auto | float32 | bfloat16 | float16 | float64; auto is float32 on a CPU, bfloat16 on CUDA, and
                on a CPU it lets `auto` attention multiply in bfloat16 what is stored in it
    attention   auto | the name of a back-end; auto is the fastest that is verified on the device
    profile     what steps and copies take, for policies: a datasheet's hardware, or a profile's JSON file;
                "": what they report
    max_rows    requests that run at once in a stage; 0: by the model and the machine (`engine.derived`)
    step_rows   of them, those that run in one step at most; None: all
    kv_tokens   KV capacity of each AR stage, in tokens; 0: by the memory that is free
    host_kv_tokens  the same of the host tier, where idle KV goes when the device is full; 0: there is none
    link_gb_s   most that copies between the tiers take, in GB/s each way, on a CPU; None: what they reach
    step_tokens tokens of one step, over all rows; longer prompts run in chunks; 0: as max_rows
    step_s      seconds of a step while replies are drawn beside its prompts, which run in shorter chunks for
                it; 0: as long as it takes; None: as long as they can wait, by their class's tpot_s or lead
    max_context_tokens  prompt plus reply of one response
    threads     CPU threads of the engine; 0 leaves torch's default
    depth       steps in flight while the next is decided: 0 or 1; None is 1 on CUDA, 0 on a CPU
    tensor_parallel  processes that compute a decoder together
    divided     the stages whose decoders they do; none named: all
    graphs      off | on: decode steps and codec frames as CUDA graphs, on CUDA only; unverified
    layer_groups KV groups that a decoder's layers are split into, evenly; at most one a layer
    load_format auto: the checkpoint's weights | dummy: random ones, of which no file need be there
    dummy_seed  other dummy weights
    units       replicas of the stages, and where they are; none: one of each, on one device
    processes   what the processes are given that units name; one that is not listed has the defaults
    links       connectors between stages in different processes; one that is not listed has shared memory
    stages      sizes and sampling of single stages, where they differ from those above
    edges       chunks of single edges, where they differ from the graph's
    classes     what requests of a class (latency, best_effort, preparatory) are promised
    places      torch devices by the names that units have for them; who is not listed is on `device`
    stages_apart  every stage in a process of its own, where `units` says nothing
    start_limit_s  how long processes of units may take until they are ready
    silence_limit_s  how long one may leave the question unanswered whether it is there; how long the engine's
                may say nothing
    """

    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    preset: str = "baseline"
    profile: str = ""
    max_rows: int = 0
    step_rows: int | None = None
    block_size: int = 16
    kv_tokens: int = 0
    host_kv_tokens: int = 0
    link_gb_s: float | None = None
    step_tokens: int = 0
    step_s: float | None = None
    max_context_tokens: int = 8192
    threads: int = 0
    depth: int | None = None
    tensor_parallel: int = 1
    divided: tuple[str, ...] = ()
    graphs: str = "off"
    layer_groups: int = 1
    load_format: str = "auto"
    dummy_seed: int = 0
    units: tuple[Unit, ...] = ()
    processes: tuple[ProcessOptions, ...] = ()
    links: tuple[LinkOptions, ...] = ()
    stages_apart: bool = False
    start_limit_s: float = 600.0
    silence_limit_s: float = 60.0
    stages: dict[str, StageOptions] = {}
    edges: tuple[EdgeOptions, ...] = ()
    classes: dict[str, ClassBounds] = {}
    places: dict[str, str] = {}

    @property
    def is_apart(self) -> bool:
        """Does any unit live in a process of its own?"""
        return self.stages_apart or any(unit.process for unit in self.units)

    def is_divided(self, stage: str) -> bool:
        """Is the stage's decoder computed by several processes together?"""
        return self.tensor_parallel > 1 and (not self.divided or stage in self.divided)

    def of(self, stage: str) -> EngineOptions:
        """The options of one stage: its own sizes in the place of those for all, and the usual sizes in the
        place of those that are 0. Raises ConfigError."""
        own = self.stages.get(stage, StageOptions()).sizes
        if zero := [name for name in DERIVED if own.get(name) == 0]:
            raise ConfigError(f"stage {stage}: {zero[0]} is 0; of one stage it must be 1 or more")
        usual = {name: size for name, size in self._usual.items() if not getattr(self, name)}
        try:
            return msgspec.structs.replace(self, **usual | own, stages={}) if usual or own else self
        except ConfigError as error:
            raise ConfigError(f"stage {stage}: {error}") from None

    @property
    def _usual(self) -> dict[str, int]:
        context = -(-self.max_context_tokens // self.block_size) * self.block_size
        kv_tokens = max(USUAL_KV_TOKENS, context)
        return {"max_rows": USUAL_ROWS, "kv_tokens": kv_tokens, "step_tokens": USUAL_STEP_TOKENS}

    @property
    def held_tokens(self) -> int:
        """KV capacity of an AR stage in whole blocks, in tokens."""
        return self.kv_tokens // self.block_size * self.block_size

    def __post_init__(self) -> None:
        for name, (least, meaning) in LEAST.items():
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} is {value}; it must be {least}{meaning} or more")
        if self.step_rows is not None and not 1 <= self.step_rows <= (self.max_rows or inf):
            most = f"max_rows, which is {self.max_rows}" if self.max_rows else "max_rows"
            raise ConfigError(f"step_rows is {self.step_rows}; it must be from 1 to {most}")
        if self.step_s is not None and not 0 <= self.step_s < inf:
            raise ConfigError(f"step_s is {self.step_s:g}; it must be 0 (as long as it takes) or more")
        for name in self.classes:
            if name not in CLASSES:
                raise ConfigError(f"classes: {name!r} is not one of {', '.join(CLASSES)}")
        if self.depth not in (None, 0, 1):
            raise ConfigError(f"depth is {self.depth}; it must be 0 or 1 (steps in flight)")
        if self.graphs not in ("off", "on"):
            raise ConfigError(f"graphs is {self.graphs!r}; it must be off or on")
        if self.host_kv_tokens and self.tensor_parallel > 1:
            raise ConfigError("host_kv_tokens needs tensor_parallel 1: copies are not divided among ranks")
        if self.layer_groups > 1 and self.tensor_parallel > 1:
            raise ConfigError("layer_groups are not divided among ranks: use 1, or tensor_parallel 1")
        if self.tensor_parallel > 1 and any(unit.role != "both" for unit in self.units):
            raise ConfigError(
                "units that prefill or decode only need tensor_parallel 1: moves are not divided"
            )
        if self.attention not in ATTENTION:
            raise ConfigError(f"--attention {self.attention!r} is unknown; use {', '.join(ATTENTION)}")
        for name, known in (("load_format", LOAD_FORMATS), ("dtype", DTYPES)):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        if self.stages_apart and self.units:
            raise ConfigError("stages_apart and units both say where the stages are: give one of them")
        if self.is_apart and self.tensor_parallel > 1:
            raise ConfigError(
                "stages in processes of their own are not divided among ranks: use tensor_parallel 1"
            )
        for name, unit in OVER_ZERO.items():
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ConfigError(f"{name} is {value:g}; it must be over 0 {unit}")
        if self.kv_tokens and self.held_tokens < self.max_context_tokens:
            raise ConfigError(
                f"kv_tokens ({self.kv_tokens}) must hold at least one context (max_context_tokens, "
                f"{self.max_context_tokens}) in whole blocks of {self.block_size}"
            )
        for stage in self.stages:
            self.of(stage)
