"""What `antiphon doctor FILE` prints: what runs where, memory, sessions, what is unverified or wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

from rich.console import Console
from rich.table import Table

from antiphon.assembly.footprint import MemoryUse
from antiphon.assembly.placement import Machine
from antiphon.assembly.resolve import Resolved
from antiphon.assembly.session_size import session_size
from antiphon.assembly.sizing import gib
from antiphon.core.config import EngineOptions
from antiphon.core.counted import counted
from antiphon.core.graph import StageKind
from antiphon.stage.beside import LEAD_SHARE, LEAST_S, USUAL_S
from antiphon.workload.load import find

WHATS: tuple[MemoryUse, ...] = ("weights", "KV", "codec state", "work space")
Row = Sequence[str]


def print_report(found: Resolved, model: str, workload: str, machine: Machine) -> None:
    """Every section, the problems last. Raises ConfigError for a workload that isn't there."""
    page = Console(highlight=False)
    _section(page, "what runs where", running(found))
    _section(page, "steps", list(steps(found)))
    _section(page, "memory, by device", list(memory(found)) or [["needs a model: give --model"]])
    _section(page, f"sessions, of the workload {workload}", list(sessions(found, workload)))
    _section(page, "not on this machine", [[line] for line in absent(found, machine)])
    _section(page, "unverified", [[line] for line in unverified(found, model)])
    page.print("[bold]wrong[/]")
    for problem in wrong(found, machine):
        page.print(f"  {problem}", markup=False, soft_wrap=True)


def running(found: Resolved) -> list[Row]:
    """A row a unit: where it is, and how large."""
    placement = found.placement
    heads = ["unit", "device", "process", "role", "ranks", "rows", "KV tokens", "tokens a step"]
    return [
        heads,
        *(
            [
                *(unit.name, placement.torch_device(unit), unit.process or "shared"),
                "" if unit.role == "both" else unit.role,
                str(found.deployment.stage(unit.stage).tensor_parallel),
                *_sizes(found, unit.stage),
            ]
            for unit in placement.units
        ),
    ]


def steps(found: Resolved) -> Iterator[Row]:
    """What bounds a decoder's steps."""
    for stage in [name for name in found.graph.reply_stages if _is_decoder(found, name)]:
        if found.options is None:
            return
        own = found.options.of(stage)
        rows = own.max_rows if own.step_rows is None else own.step_rows
        yield [stage, f"{counted(rows, 'row')} and {counted(own.step_tokens, 'token')}; {_bound(own)}"]


def _bound(options: EngineOptions) -> str:
    """Of a step's time, in words."""
    if options.step_s == 0:
        return "as long as that takes (step_s 0)"
    source = f"by the profile {options.profile}" if options.profile else "once steps reported their times"
    if options.step_s is not None:
        return f"with prompts beside live replies at most {options.step_s:g} s (step_s), {source}"
    promised = [
        f"{bounds.tpot_s:g} s (tpot_s of {name})"
        for name, bounds in options.classes.items()
        if bounds.tpot_s is not None
    ]
    has_latency = (found := options.classes.get("latency")) is not None and found.tpot_s is not None
    lead = f"{LEAD_SHARE:g} of a listener's lead ({LEAST_S:g} s at least), or {USUAL_S:g} s"
    bound = " or ".join([*promised, *([] if has_latency else [lead])])
    return f"with prompts beside live replies at most {bound}, {source}"


def memory(found: Resolved) -> Iterator[Row]:
    """A row a unit, and a sum a device."""
    if not found.memory:
        return
    yield ["device", "unit", *WHATS, "in all"]
    for there, capacity in found.placement.memory.items():
        units = [unit.name for unit in found.placement.units if found.placement.torch_device(unit) == there]
        sums = {name: sum(found.memory[name].values()) for name in units}
        for name in units:
            parts = found.memory[name]
            yield [
                there,
                name,
                *(gib(parts[what]) if parts.get(what) else "" for what in WHATS),
                gib(sums[name]),
            ]
        of = f" of {gib(capacity)}" if capacity is not None else ""
        yield [there, "", "", "", "", "", f"{gib(sum(sums.values()))}{of}"]
    yield from _host_tiers(found)


def sessions(found: Resolved, workload: str) -> Iterator[Row]:
    """Whole conversations that each decoder's KV holds at once."""
    if found.options is None:
        yield ["can't be told before what is wrong is put right"]
        return
    size = session_size(find(workload), found.rates)
    writer = found.graph.reply_stages[0]
    for stage in [name for name in found.graph.reply_stages if _is_decoder(found, name)]:
        own = found.options.of(stage)
        units, tokens = _keepers(found, stage), size.mean if stage == writer else size.speaking
        tail = f" (P90 {size.p90})" if stage == writer else " with its longest reply"
        fit = units * (own.held_tokens // max(tokens, 1))
        yield [
            stage,
            f"{units} x {own.held_tokens} tokens hold {fit} conversations of {tokens} on average{tail}; "
            f"{units * own.max_rows} answer at once",
        ]
    yield ["limits", f"max_sessions {found.deployment.limits.max_sessions}"]


def _keepers(found: Resolved, stage: str) -> int:
    """Units that keep conversations between turns: where some read and others write, both keep the same."""
    roles = Counter(unit.role for unit in found.placement.of(stage))
    return min(roles.values())


def absent(found: Resolved, machine: Machine) -> Iterator[str]:
    if missing := found.placement.absent(machine):
        has = f"has {len(machine.gpus)} GPUs" if machine.gpus else "has no GPU"
        yield f"{', '.join(missing)}: this machine {has}"


def wrong(found: Resolved, machine: Machine) -> tuple[str, ...]:
    """All of it, or that nothing is."""
    elsewhere = ", but it is for another machine" if found.placement.absent(machine) else ""
    return found.problems or (f"nothing{elsewhere}",)


def unverified(found: Resolved, model: str) -> Iterator[str]:
    """What of the deployment has not been run, or is only estimated."""
    options, placement = found.options, found.placement
    on_cuda = [there for there in placement.memory if there != "cpu"]
    if on_cuda:
        yield f"{', '.join(on_cuda)}: CUDA streams and copies have not run on an accelerator"
    if options is not None:
        yield from _unverified_options(options, has_cuda=bool(on_cuda))
    for process in dict.fromkeys(unit.process for unit in placement.units):
        places = {placement.torch_device(unit) for unit in placement.units if unit.process == process}
        if len(places) > 1:
            yield f"process {process or 'shared'}: {', '.join(sorted(places))} in one process"
    for there in on_cuda:
        here = {unit.process or "shared" for unit in placement.units if placement.torch_device(unit) == there}
        if len(here) > 1:
            yield f"{there}: processes {', '.join(sorted(here))} run on it without turns and slow each other"
    if found.memory:
        yield (
            "memory: work space and streams' state are estimates; of a model whose shape alone is known, "
            "weights are its large matrices"
        )
    if not model:
        yield "memory: no model is named"
    if options is not None and options.divided and not found.is_checked:
        yield "tensor_parallel: whether it divides the model is known once a checkpoint is named"


def _unverified_options(options: EngineOptions, *, has_cuda: bool) -> Iterator[str]:
    from antiphon.nn.backends import BACKENDS

    if options.attention in BACKENDS and not BACKENDS[options.attention].verified:
        yield f"attention: {options.attention} has not run on an accelerator"
    if options.graphs == "on":
        yield "cuda_graphs: have not run on an accelerator"
    if has_cuda and any(unit.process for unit in options.units):
        yield "stages: processes of their own have not run on CUDA"
    if has_cuda and any(stage.host_kv_tokens for stage in options.stages.values()):
        yield "host_kv_tokens: copies to the host have not run on CUDA"


def _sizes(found: Resolved, stage: str) -> Row:
    if found.options is None or stage not in found.options.stages:
        return ["", "", ""]
    chosen, own = found.options.stages[stage], found.options.of(stage)
    if not chosen.sizes:
        return ["", "", ""]
    kv = [str(own.held_tokens), str(own.step_tokens)] if _is_decoder(found, stage) else ["", ""]
    return [str(own.max_rows), *kv]


def _is_decoder(found: Resolved, stage: str) -> bool:
    """Is it there, and does it hold KV?"""
    return bool(found.placement.of(stage)) and found.graph.stage(stage).kind is StageKind.AR


def _host_tiers(found: Resolved) -> Iterator[Row]:
    if found.options is None:
        return
    for unit in found.placement.units:
        tokens = found.options.of(unit.stage).host_kv_tokens
        kv = found.memory[unit.name].get("KV")
        if tokens and kv:
            held = found.options.of(unit.stage).held_tokens
            yield ["host", unit.name, "", gib(kv * tokens // held), "", "", ""]


def _section(page: Console, title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    page.print(f"[bold]{title}[/]")
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row("", *cast("list[str]", row))
    page.print(table)
