"""Where a deployment's units are: devices, processes, and how much memory there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.assembly.deployment import Deployment, StageSpec, WrittenDevice
from antiphon.assembly.footprint import GIB
from antiphon.core.config import Unit, UnitRole
from antiphon.core.errors import nearest, no_such
from antiphon.core.graph import Stage, StageKind
from antiphon.latency.roofline import hardware_memory_gib, hardware_names

TOLERANCE = 1.02
"""Of what a datasheet says over what a driver leaves."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory of the machine at hand, in bytes: of each GPU, and the host's."""

    gpus: tuple[int, ...] = ()
    host: int | None = None

    def torch_device(self, device: str) -> str:
        """The device that a name means here."""
        if device == "auto":
            return "cuda:0" if self.gpus else "cpu"
        return "cuda:0" if device == "cuda" else device

    def bytes_of(self, torch_device: str) -> int | None:
        """None where there is no such device, or its memory is not known."""
        kind, _, index = torch_device.partition(":")
        if kind == "cpu":
            return self.host
        return self.gpus[int(index)] if int(index) < len(self.gpus) else None


@dataclass(frozen=True, slots=True)
class Placement:
    """Units with their devices (names from the file; "" where none is given), and what is wrong with that."""

    units: tuple[Unit, ...]
    devices: dict[str, str]
    """Torch devices by name."""
    memory: dict[str, int | None]
    """Bytes by torch device."""
    problems: list[str] = field(default_factory=list[str])

    def torch_device(self, unit: Unit) -> str:
        return self.devices[unit.device]

    def of(self, stage: str) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.stage == stage)

    def absent(self, machine: Machine) -> list[str]:
        """Torch devices that the machine has not."""
        return [there for there in self.memory if there != "cpu" and machine.bytes_of(there) is None]

    @property
    def is_plain(self) -> bool:
        """One unit a stage, all on one device in one process."""
        stages = {unit.stage for unit in self.units}
        places = {(unit.device, unit.process) for unit in self.units}
        return len(stages) == len(self.units) and len(places) == 1 and not self.units[0].process


def place(deployment: Deployment, held: Sequence[Stage], machine: Machine) -> Placement:
    """The units of these stages, in pipeline order."""
    stages = [stage.name for stage in held]
    problems = _strangers(deployment, stages)
    units = tuple(
        unit for stage in stages for unit in _units(deployment, stage, _devices(deployment, stage, problems))
    )
    given = {name: machine.torch_device(each.device) for name, each in deployment.devices.items()}
    devices = {"": machine.torch_device("auto"), **given}
    memory = {
        there: _memory(deployment, devices, there, machine, problems) for there in _used(units, devices)
    }
    problems += _twice(deployment, given) + _crowded(units, held) + _split(deployment, held)
    return Placement(units, devices, memory, problems)


def _strangers(deployment: Deployment, stages: Sequence[str]) -> list[str]:
    return [
        f"stages.{name}: the model has no such stage{nearest(name, stages) or '.'} It has {', '.join(stages)}"
        for name in deployment.stages
        if name not in stages
    ]


def _devices(deployment: Deployment, stage: str, problems: list[str]) -> list[str]:
    """By name, one or more."""
    spec = deployment.stage(stage)
    known = list(deployment.devices)
    names = spec.devices or ([spec.device] if spec.device is not None else [])
    if not names and len(known) > 1:
        problems.append(f"stages.{stage}: names no device; say which of {', '.join(known)}")
    strange = [name for name in names if name not in known]
    problems += [f"stages.{stage}: {no_such('device', name, known)}" for name in strange]
    return [name for name in names if name in known] or known[:1] or [""]


def _units(deployment: Deployment, stage: str, devices: list[str]) -> list[Unit]:
    spec = deployment.stage(stage)
    names = [f"{stage}.{index}" for index in range(spec.replicas)] if spec.replicas > 1 else [stage]
    return [
        Unit(name, stage, devices[index % len(devices)], _process(spec, name, index), _role(spec, index))
        for index, name in enumerate(names)
    ]


def _role(spec: StageSpec, index: int) -> UnitRole:
    if not spec.prefill:
        return "both"
    return "prefill" if index < spec.prefill else "decode"


def _process(spec: StageSpec, unit: str, index: int) -> str:
    if spec.process == "shared":
        return ""
    if spec.process == "own":
        return unit
    return f"{spec.process}.{index}" if spec.replicas > 1 else spec.process


def _used(units: Sequence[Unit], devices: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(devices[unit.device] for unit in units))


def _memory(
    deployment: Deployment, devices: dict[str, str], there: str, machine: Machine, problems: list[str]
) -> int | None:
    """The least that its names say, or what the machine has. More than it has is a problem."""
    said: list[float] = []
    has = machine.bytes_of(there)
    for name, device in deployment.devices.items():
        if devices[name] == there and (found := _written(name, device, problems)) is not None:
            said.append(found)
            if has is not None and found * GIB > has * TOLERANCE:
                key = "kind" if device.memory_gib is None else "memory_gib"
                problems.append(
                    f"devices.{name}.{key}: {found:g} GiB, and {there} of this machine has {has / GIB:.1f}; "
                    "name what it has, or serve where there is more"
                )
    return int(min(said) * GIB) if said else has


def _written(name: str, device: WrittenDevice, problems: list[str]) -> float | None:
    if device.kind is not None and device.kind not in hardware_names():
        problems.append(f"devices.{name}.kind: {no_such('datasheet of', device.kind, hardware_names())}")
        return device.memory_gib
    if device.memory_gib is not None or device.kind is None:
        return device.memory_gib
    return hardware_memory_gib(device.kind)


def _twice(deployment: Deployment, given: dict[str, str]) -> list[str]:
    """A GPU by two names would be asked for two steps at once."""
    problems: list[str] = []
    for there in dict.fromkeys(given.values()):
        names = [name for name in deployment.devices if given[name] == there]
        if there != "cpu" and len(names) > 1:
            problems.append(f"devices: {', '.join(names)} are all {there}; give it one name")
    return problems


def _split(deployment: Deployment, held: Sequence[Stage]) -> list[str]:
    """Stages that are to be split into prefill and decode and can't be, in the file's words."""
    writers = [stage.name for stage in held if stage.kind is StageKind.AR and not stage.conditioned]
    return [
        f"stages.{name}.prefill is {spec.prefill}: only {', '.join(writers)} can be split; leave it at 0"
        for name, spec in deployment.stages.items()
        if spec.prefill and name in {stage.name for stage in held} and name not in writers
    ]


def _crowded(units: Sequence[Unit], held: Sequence[Stage]) -> list[str]:
    """What `assembly.units` would refuse, in the file's words."""
    encoders = {stage.name for stage in held if stage.kind is StageKind.ENCODER}
    count = Counter((unit.stage, unit.process) for unit in units if unit.stage in encoders)
    return [
        f"stages.{stage}: {number} units in process {process or 'shared'!r}, where one is enough"
        for (stage, process), number in count.items()
        if number > 1
    ]
