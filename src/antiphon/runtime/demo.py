"""Demo checkpoints of any family: those that `checkpoint.demo` knows, and those whose module has a DEMO."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from antiphon.checkpoint.demo import MODELS, make_demo, make_text_demo
from antiphon.core.errors import CheckpointError
from antiphon.engine.family import Family, family_of
from antiphon.graphs import all_graphs, find_graph


def make_any_demo(
    directory: Path,
    *,
    model: str,
    size: str = "tiny",
    seed: int = 0,
    dtype: str = "float32",
    progress: Callable[[str], None] | None = None,
) -> Path:
    """As `make_demo`. A family that reads and writes text may name in DEMO what its config.json has beside
    the usual; the weights are those that it says it needs. Raises CheckpointError.
    """
    if model in MODELS:
        return make_demo(directory, model=model, size=size, seed=seed, dtype=dtype, progress=progress)
    families = own_demos()
    if model not in families:
        known = ", ".join((*MODELS, *families))
        raise CheckpointError(f"there is no demo model {model!r}; choose one of {known}")
    family = families[model]

    def shapes(config: dict[str, Any]) -> Iterable[tuple[str, tuple[int, ...]]]:
        (stage,) = find_graph(model).reply_stages
        return family.tensor_shapes(stage, family.read_config(config)).items()

    how: Any = {"size": size, "seed": seed, "dtype": dtype, "progress": progress}
    return make_text_demo(directory, family.demo, shapes, **how)


def own_demos() -> dict[str, Family]:
    """Families whose demo checkpoints need no writer, by their names."""
    families = {graph.family: family_of(graph) for graph in all_graphs() if graph.module}
    return {name: family for name, family in families.items() if family.demo}
