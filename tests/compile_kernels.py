"""Compiles the CPU kernels that most tests wait for, and keeps them: `make test` does so beside its checks.

No test needs that: a kernel that is not kept is compiled when it is first used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon import Omni, Request
from antiphon.checkpoint.demo import make_demo
from antiphon.nn.cpu import has_compiler, keeps_quantised


def main() -> None:
    """For this CPU, and for the one that `nn/test_vectors.py` takes it for."""
    from nn import test_vectors

    name, features = test_vectors.CPUS[8]
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryDirectory() as folder:
        omni = Omni(make_demo(Path(folder) / "tiny", size="tiny", seed=0), device="cpu", threads=1)
        omni.generate([Request("hello", max_tokens=4)])
        command = [sys.executable, test_vectors.__file__, str(Path(folder) / "results.pt")]
        subprocess.run(command, env=os.environ | told, check=True)
    if keeps_quantised():
        compile_products_of_quantised_weights()


def compile_products_of_quantised_weights() -> None:
    from antiphon.nn.cpu.quantised import Form, picking_loop, quantised_loop

    for form in Form:
        quantised_loop(form)
        picking_loop(form)


if __name__ == "__main__" and has_compiler():
    main()
