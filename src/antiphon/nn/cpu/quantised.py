"""Products of fp32 rows with a weight in quantised blocks, kept in as many bits as it has in its file.

A panel is 16 outputs, as in `panels`, block by block: scales, then the numbers input by input. A few rows
are multiplied by tiles that make fp32 of the numbers in registers. For more, a panel's numbers are written
down as fp32 first, in a cache, and multiplied as `panels` does. A row has the same bits either way, those of
the dequantised weight's fp32 panels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.quantised import Groups, Quantised
from antiphon.nn.cpu.compiler import compiled, has_feature
from antiphon.nn.cpu.large_pages import on_large_pages
from antiphon.nn.cpu.openmp import Loop, floats, integers, take
from antiphon.nn.cpu.panels import BLOCK_ROWS, Job, can_lay_out, panels_times, share_of
from antiphon.nn.cpu.quantised_tiles import Form, quantised_tile, widening
from antiphon.nn.cpu.tiles import LANES, LINE_BYTES, UNROLLED

TILES = {4: 4, 3: 4, 2: 4, 1: 4} if has_feature("avx512f") else {4: 1, 3: 1, 2: 1, 1: 2}
"""Panels that a tile of so many rows reads side by side: sums enough that none waits for the one before, and
no more than there are registers for."""

TOGETHER = max(TILES.values())

FEW_ROWS = 8
"""Up to so many rows are multiplied in registers. Each tile widens the weight again; more rows share one."""

PANELS_LAID_OUT = 256
"""At once, or the numbers of a large weight would be in memory a byte each beside it."""

GROUPS_OF = {Form.Q8_0: (32, 1), Form.Q4_0: (32, 1), Form.Q4_1: (32, 1), Form.Q4_K: (32, 8)}
"""Inputs that share scales, and how many times a block has them. I8 has any."""


def can_lay_out_quantised(weight: Quantised) -> bool:
    """Whether this CPU has the vectors, and the weight a form and the sizes."""
    (out, depth), form = weight.shape, form_for(weight)
    fits = depth % (weight.group * form.groups) == 0 and weight.group % UNROLLED == 0
    return fits and can_lay_out(torch.empty(out, UNROLLED, device="meta"))


def form_for(weight: Quantised) -> Form:
    """Of its panels: its own, or I8 where an encoding has none."""
    return Form.__members__.get(weight.encoding, Form.I8)


def lay_out_quantised(weight: Quantised) -> Tensor:
    """[out, in] -> panels, bytes [out / 16, blocks, bytes of a block]: int8 for I8, uint8 for the other
    forms, each of which has blocks of another size.

    That the tiles' one rounding is dequantising's: a scale times a number has at most 24 bits in all forms
    but I8, and there the lowest number is 0 or that product exact.
    """
    (out, depth), form = weight.shape, form_for(weight)
    size = form.block_bytes(weight.group)
    blocks, count = depth // (weight.group * form.groups), out // LANES
    panels = on_large_pages(-(-count * blocks * size // 4)).view(torch.uint8)[: count * blocks * size]
    panels = panels.view(count, blocks, size)
    for first in range(0, count, PANELS_LAID_OUT):
        part = panels[first : first + PANELS_LAID_OUT]
        rows = weight.data[LANES * first : LANES * (first + len(part))]
        part.copy_(torch.from_numpy(blocks_of(form, weight.split(rows)).reshape(part.shape)))
    quantised_loop(form)  # now, so that the first step doesn't wait for it
    return panels.view(torch.int8) if form is Form.I8 else panels


def blocks_of(form: Form, groups: Groups) -> NDArray[np.uint8]:
    """The bytes of whole panels' blocks, [panels, blocks, bytes]."""
    count, size = groups.quants.shape[1:]
    quants = groups.quants.view(np.uint8).reshape(-1, LANES, count, size).transpose(0, 2, 3, 1)
    if form.per_byte == 2:
        quants = np.bitwise_or(quants[:, :, 0::2], quants[:, :, 1::2] << 4, dtype=np.uint8)
    lines = np.ascontiguousarray(quants).reshape(len(quants), count, -1)
    if form is Form.Q4_K:
        assert groups.parts is not None
        d, least, steps, bases = groups.parts
        whole = np.concatenate([side_by_side(steps, bases), lines], 2)
        whole = whole.reshape(len(whole), count // form.groups, -1)
        return np.concatenate([side_by_side(d, least), whole], 2)
    wide = "<f4" if form is Form.I8 else "<f2"
    heads = [groups.scales.astype(wide)]
    if form in (Form.Q4_1, Form.I8):
        heads.append(groups.lowest.astype(wide))
    return np.concatenate([side_by_side(*heads), lines], 2)


def side_by_side(*columns: np.ndarray) -> NDArray[np.uint8]:
    """Arrays [out, n] -> bytes [out / 16, n, ...]: of each array the entries of 16 outputs, one array behind
    the other."""
    parts = [
        np.ascontiguousarray(column.reshape(-1, LANES, column.shape[1]).swapaxes(1, 2)).view(np.uint8)
        for column in columns
    ]
    return np.concatenate(parts, 2)


def in_half_panels(weight: Tensor) -> Tensor | None:
    """weight fp32 [out, in] -> its panels fp16 [out / 16, in, 16]; None where that loses anything."""
    halves = weight.half()
    if not torch.equal(halves.float(), weight):
        return None
    count, depth = len(weight) // LANES, weight.shape[1]
    panels = on_large_pages(weight.numel() // 2).view(torch.float16).view(count, depth, LANES)
    panels.copy_(halves.view(count, LANES, depth).transpose(1, 2))
    quantised_loop(Form.F16)  # now, so that the first step doesn't wait for it
    return panels


def form_of(panels: Tensor) -> tuple[Form, int]:
    """In which form these panels are, and how many inputs share scales."""
    if panels.dtype is torch.float16:
        return Form.F16, panels.shape[1]
    if panels.dtype is torch.int8:
        return Form.I8, (panels.shape[2] - Form.I8.head_bytes) // LANES
    found = {form.block_bytes(group): (form, group) for form, (group, _) in GROUPS_OF.items()}
    return found[panels.shape[2]]


def is_quantised(panels: Tensor) -> bool:
    """Panels are of bytes or fp16, and not of fp32 or bf16."""
    return panels.dtype.itemsize == 1 or panels.dtype is torch.float16


def depth_of(panels: Tensor) -> int:
    """Inputs of a weight in such panels."""
    form, group = form_of(panels)
    return group if form is Form.F16 else panels.shape[1] * group * form.groups


# -- the loops -------------------------------------------------------------------------------------------


def shares_of(form: Form) -> Callable[..., None]:
    """The loop's body over panels of a form: an item is a share of the panels for a block of rows."""
    by4, by3, by2, by1 = (quantised_tile(rows, panels, form) for rows, panels in TILES.items())
    panels4, panels3, panels2, panels1 = TILES.values()
    widen = widening(form)
    size, head, whole_head = form.line_bytes, form.head_bytes, form.whole_head_bytes
    groups = form.groups

    @compiled
    def few(job: Any, x: int, rows: int, weight: int, each: int, out: int) -> None:
        """Rows of TOGETHER panels, `each` bytes apart."""
        while rows >= 4:
            for i in range(0, TOGETHER, panels4):
                by4(x, weight + each * i, job.depth, job.form, out + LINE_BYTES * i, job.width)
            rows, x, out = rows - 4, x + 16 * job.depth, out + 16 * job.width
        if rows == 3:
            for i in range(0, TOGETHER, panels3):
                by3(x, weight + each * i, job.depth, job.form, out + LINE_BYTES * i, job.width)
        elif rows == 2:
            for i in range(0, TOGETHER, panels2):
                by2(x, weight + each * i, job.depth, job.form, out + LINE_BYTES * i, job.width)
        elif rows:
            for i in range(0, TOGETHER, panels1):
                by1(x, weight + each * i, job.depth, job.form, out + LINE_BYTES * i, job.width)

    @compiled
    def share(job: Any, row: int, panel: int, wide: int) -> None:
        """Panels from `panel` on for a block of rows from `row` on. wide: room for two panels in fp32."""
        rows, last = min(BLOCK_ROWS, job.rows - row), min(panel + job.share, job.panels)
        x, out = job.x + 4 * row * job.depth, job.out + 4 * row * job.width + LINE_BYTES * panel
        each = job.depth // (job.form * groups) * (whole_head + groups * (head + job.form * size))
        weight = job.weight + each * panel
        while panel < last:
            if rows <= FEW_ROWS and panel + TOGETHER <= last:
                few(job, x, rows, weight, each, out)
                count = TOGETHER
            else:
                count = min(2, last - panel)
                for i in range(count):
                    widen(weight + each * i, job.depth, job.form, wide + LINE_BYTES * job.depth * i)
                panels_times(x, rows, wide, job.depth, count, out, job.width)
            panel, weight, out = panel + count, weight + each * count, out + LINE_BYTES * count

    @compiled
    def shares(pointer: Any) -> None:
        job = carray(pointer, 1)[0]
        items = (job.rows + BLOCK_ROWS - 1) // BLOCK_ROWS * job.shares
        few_alone = job.rows <= FEW_ROWS and job.panels % TOGETHER == 0
        room = np.empty(1 if few_alone else 2 * LANES * job.depth + LANES, np.float32)
        wide = (room.ctypes.data + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
        item = take(pointer, 1)
        while item < items:
            share(job, item // job.shares * BLOCK_ROWS, item % job.shares * job.share, wide)
            item = take(pointer, 1)
        room[0] = 0  # an address keeps nothing alive

    return shares


def picking(form: Form) -> Callable[..., None]:
    """The loop's body that picks rows of panels of a form: an item is a row."""
    widen = widening(form)
    head, whole_head, size, groups = (
        form.head_bytes,
        form.whole_head_bytes,
        form.line_bytes,
        form.groups,
    )

    @compiled
    def pick(pointer: Any) -> None:
        job = carray(pointer, 1)[0]
        chosen, out = integers(job.x, 1, job.rows)[0], floats(job.out, job.rows, job.depth)
        each = job.depth // (job.form * groups) * (whole_head + groups * (head + job.form * size))
        room = np.empty(LANES * job.depth + LANES, np.float32)
        start = (-room.ctypes.data % LINE_BYTES) // 4
        wide = room[start : start + LANES * job.depth].reshape(job.depth, LANES)
        item = take(pointer, 1)
        while item < job.rows:
            panel, lane = chosen[item] // LANES, chosen[item] % LANES
            widen(job.weight + each * panel, job.depth, job.form, wide.ctypes.data)
            for i in range(job.depth):
                out[item, i] = wide[i, lane]
            item = take(pointer, 1)

    return pick


shares_of_q8_0, shares_of_q4_0, shares_of_q4_1, shares_of_q4_k, shares_of_i8, shares_of_f16 = map(
    shares_of, Form
)
pick_q8_0, pick_q4_0, pick_q4_1, pick_q4_k, pick_i8, pick_f16 = map(picking, Form)


def multiply_q8_0(pointer: Any) -> None:
    shares_of_q8_0(pointer)


def rows_of_q8_0(pointer: Any) -> None:
    pick_q8_0(pointer)


def multiply_q4_0(pointer: Any) -> None:
    shares_of_q4_0(pointer)


def rows_of_q4_0(pointer: Any) -> None:
    pick_q4_0(pointer)


def multiply_q4_1(pointer: Any) -> None:
    shares_of_q4_1(pointer)


def rows_of_q4_1(pointer: Any) -> None:
    pick_q4_1(pointer)


def multiply_q4_k(pointer: Any) -> None:
    shares_of_q4_k(pointer)


def rows_of_q4_k(pointer: Any) -> None:
    pick_q4_k(pointer)


def multiply_i8(pointer: Any) -> None:
    shares_of_i8(pointer)


def rows_of_i8(pointer: Any) -> None:
    pick_i8(pointer)


def multiply_f16(pointer: Any) -> None:
    shares_of_f16(pointer)


def rows_of_f16(pointer: Any) -> None:
    pick_f16(pointer)


BODIES = {
    Form.Q8_0: (multiply_q8_0, rows_of_q8_0),
    Form.Q4_0: (multiply_q4_0, rows_of_q4_0),
    Form.Q4_1: (multiply_q4_1, rows_of_q4_1),
    Form.Q4_K: (multiply_q4_k, rows_of_q4_k),
    Form.I8: (multiply_i8, rows_of_i8),
    Form.F16: (multiply_f16, rows_of_f16),
}
"""Machine code is kept between runs of what a module has by name, not of what a function made."""


@cache
def quantised_loop(form: Form) -> Loop:
    """Compiled when it is first asked for: a model has one form, or two."""
    return Loop(Job, BODIES[form][0])


@cache
def picking_loop(form: Form) -> Loop:
    """The loop of `rows_of_panels`, compiled when it is first asked for."""
    return Loop(Job, BODIES[form][1])


def quantised_job(x: Tensor, panels: Tensor, out: Tensor, threads: int) -> Any:
    """As `panels.product_job`; the job's `form` is how many inputs share scales."""
    count, (_, group) = len(panels), form_of(panels)
    share = -(-share_of(count, threads) // TOGETHER) * TOGETHER
    job = Job(x=x.data_ptr(), weight=panels.data_ptr(), out=out.data_ptr(), depth=depth_of(panels))
    job.form, job.panels, job.width = group, count, count * LANES
    job.share, job.shares = share, -(-count // share)
    return job


def times_quantised(x: Tensor, panels: Tensor) -> Tensor:
    """x fp32 [..., in] times a weight in quantised panels -> [..., out]."""
    depth, width, threads = depth_of(panels), len(panels) * LANES, torch.get_num_threads()
    flat = x.reshape(-1, depth).contiguous()
    out = flat.new_empty(len(flat), width)
    job = quantised_job(flat, panels, out, threads)
    job.rows = len(flat)
    quantised_loop(form_of(panels)[0]).run(job, threads)
    return out.view(*x.shape[:-1], width)


def rows_of_panels(panels: Tensor, rows: Tensor) -> Tensor:
    """Rows int64 [n] of a weight in quantised panels -> fp32 [n, in]. Raises IndexError."""
    (form, group), depth = form_of(panels), depth_of(panels)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(panels) * LANES:
        raise IndexError(f"rows are 0 to {len(panels) * LANES - 1}")
    rows = rows.contiguous()
    out = torch.empty(len(rows), depth)
    job = Job(x=rows.data_ptr(), weight=panels.data_ptr(), out=out.data_ptr(), depth=depth)
    job.form, job.rows = group, len(rows)
    picking_loop(form).run(job, torch.get_num_threads())
    return out
