"""Back-ends by name: where each can run, whether it has been verified there, and how to make it.

Every back-end has an attention like `nn.attention.paged_attention` that agrees with it, and computes a
decoder's steps with it (`nn.step.Steps`). Which one runs is settled before anything runs; libraries that a
back-end needs are imported by its creator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from antiphon.core.errors import ConfigError
from antiphon.nn.attention import Attention, paged_attention
from antiphon.nn.cpu import can_compile, compiled_steps, cpu_attention, has_pairs
from antiphon.nn.graph_steps import GraphSteps
from antiphon.nn.graphs import Capture
from antiphon.nn.operators import OperatorSteps
from antiphon.nn.products import linear
from antiphon.nn.step import Stack, Steps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to compute a decoder's steps.

    create    makes its paged attention; a stage has its own, because it may keep a workspace
    devices   device types it runs on
    dtypes    what it computes in; empty: anything
    package   the importable module it needs, if any
    verified  it has run on such a device and agreed with the reference there; `auto` takes no other
    steps     how steps are computed with that attention, where nothing is captured
    rounds    it multiplies in bf16 what is stored in it, whatever the dtype: `auto` takes it only where the
              dtype is chosen too
    """

    create: Callable[[], Attention]
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] = ()
    package: str = ""
    verified: bool = True
    steps: Callable[[Stack, Attention], Steps] = OperatorSteps
    rounds: bool = False

    def steps_for(self, stack: Stack, capture: Capture | None = None) -> Steps:
        """The steps of one decoder; with `capture`, decode steps are captured so, and replayed."""
        attention = self.create()
        return self.steps(stack, attention) if capture is None else GraphSteps(stack, attention, capture)

    def obstacle(self, device: torch.device, dtype: torch.dtype) -> str:
        """Why it cannot run here, for people; empty where it can."""
        if device.type not in self.devices:
            return f"runs on {' and '.join(self.devices)}, not on {device.type}"
        if self.dtypes and dtype not in self.dtypes:
            return f"computes in {' and '.join(map(str, self.dtypes))}, not in {dtype}"
        if self.rounds and not has_pairs():
            return "needs AVX512-BF16 and the package numba, of which one is missing"
        if self.package and find_spec(self.package) is None:
            return f"needs the package {self.package}, which is not installed"
        return ""


def cpu_steps(stack: Stack, attention: Attention, *, rounds: bool = False) -> Steps:
    """Compiled where the decoder's type allows it."""
    operators = OperatorSteps(stack, attention)
    if not can_compile(stack.norm):
        return operators
    halves = sum(layer.qkv.dtype is torch.bfloat16 for layer in stack.layers) if rounds else 0
    if halves:
        log.info(ROUNDS, halves)
    return compiled_steps(stack, operators, linear, rounds=halves > 0)


ROUNDS = "%d layers whose weights are stored in bf16 are multiplied in it; --dtype float32 computes in fp32"


def flashinfer() -> Attention:
    from antiphon.nn.flashinfer_attention import FlashInfer

    return FlashInfer()


def triton() -> Attention:
    from antiphon.nn.triton_attention import TritonAttention

    return TritonAttention()


BACKENDS: dict[str, Backend] = {
    "cpu-bf16": Backend(
        lambda: cpu_attention,
        ("cpu",),
        (torch.float32,),
        steps=partial(cpu_steps, rounds=True),
        rounds=True,
    ),
    "cpu": Backend(lambda: cpu_attention, ("cpu",), steps=cpu_steps),
    "flashinfer": Backend(
        flashinfer, ("cuda",), (torch.float16, torch.bfloat16), package="flashinfer", verified=False
    ),
    "triton": Backend(
        triton,
        ("cuda",),
        (torch.float32, torch.float16, torch.bfloat16),
        package="triton",
        verified=False,
    ),
    "reference": Backend(lambda: paged_attention, ("cpu", "cuda")),
}
"""In the order in which `auto` tries them."""


def pick_backend(name: str, device: torch.device, dtype: torch.dtype, *, may_round: bool = False) -> str:
    """The name of the back-end to use: `auto` is the first verified one that runs here, and that doesn't
    round what is computed unless it may.

    Raises ConfigError for a name that doesn't exist or a back-end that cannot run here.
    """
    if name == "auto":
        able = ((n, b) for n, b in BACKENDS.items() if b.verified and not b.obstacle(device, dtype))
        return next(n for n, b in able if may_round or not b.rounds)
    if name not in BACKENDS:
        raise ConfigError(f"--attention {name!r} is unknown; use auto, {', '.join(BACKENDS)}")
    obstacle = BACKENDS[name].obstacle(device, dtype)
    if obstacle:
        raise ConfigError(f"--attention {name} {obstacle}")
    return name
