"""Compiles the kernels for GPUs that need not be there; prints what each takes of shared memory, in bytes."""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from antiphon.nn import triton_attention as kernels

POINTERS = dict.fromkeys(("cu", "starts", "tables", "tile_rows", "tile_firsts"), "*i64")
STRIDES = ("table_stride", "block_stride", "token_stride", "head_stride")
NUMBERS = dict.fromkeys((*STRIDES, "num_tokens", "capacity"), "i32")
SIZES = {"dim_stride": 1, "HEADS": 32, "GROUP": 8, "BLOCK_SIZE": 16}
VARIANTS = [("fp32", 256, 32, 64), ("fp32", 8, 64, 16), ("bf16", 128, 64, 64), ("fp16", 256, 32, 16)]


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> int:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    built = triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", capability, 32))
    assert built.asm["cubin"]
    return built.metadata.shared


def main() -> None:
    taken = {}
    for dtype, dim, width, entries in VARIANTS:
        for split in (False, True):
            pages = dict.fromkeys(("q", "k_pages", "v_pages"), f"*{dtype}")
            outs = dict.fromkeys(("out", "logs"), "*fp32" if split else f"*{dtype}")
            sizes = {
                "DIM": dim,
                "PADDED_DIM": max(16, dim),
                "ENTRIES": entries,
                "WIDTH": width,
                "SPLIT": split,
            }
            types = {**pages, **outs, **POINTERS, **NUMBERS, "scale": "fp32"}
            for capability in (80, 90):
                name = f"{dtype} {dim} {split} sm_{capability}"
                taken[name] = compiled(kernels.attend_kernel, types, {**SIZES, **sizes}, capability)
    types = {**POINTERS, "parts": "*fp32", "logs": "*fp32", "out": "*bf16"}
    types |= dict.fromkeys(("num_tokens", "num_heads", "num_splits"), "i32")
    sizes = {"DIM": 128, "PADDED_SPLITS": 8}
    taken["combine"] = compiled(kernels.combine_kernel, types, sizes, 90)
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
