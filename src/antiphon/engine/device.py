"""What an operator's words for device, dtype and depth mean on this machine, and how much memory is free."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from antiphon.core.errors import ConfigError

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one. Raises ConfigError for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is not a device; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name} was asked for, but this machine (or this torch build) has no CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name} was asked for; this machine has {torch.cuda.device_count()}")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on a CPU, where a back-end may still multiply in bfloat16."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def pick_depth(depth: int | None, device: torch.device) -> int:
    """Steps in flight while the next is decided: 1 on CUDA, 0 on a CPU, unless chosen."""
    if depth is not None:
        return depth
    return 1 if device.type == "cuda" else 0


def available_bytes(device: torch.device) -> int:
    """Memory that is free now on the device; on a CPU, what the page cache holds counts as free, and what is
    left of the limit of a container's cgroup is the most."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, left_in_cgroup(CGROUPS) or free)


CGROUPS = Path("/sys/fs/cgroup")


def left_in_cgroup(root: Path) -> int | None:
    """Bytes that may still be had below the limit of the container's own cgroup (version 2), which it sees as
    the root; None without a limit."""
    try:
        limit, used = ((root / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return None if limit == "max" else max(int(limit) - int(used) + int(stat.get("inactive_file", 0)), 1)
    except (OSError, ValueError):
        return None
