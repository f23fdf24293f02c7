"""Deployments and models for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.deployment_file import read_deployment
from antiphon.assembly.footprint import GIB, ModelFacts, shape_parameters
from antiphon.assembly.placement import Machine
from antiphon.assembly.resolve import Resolved, resolve
from antiphon.graphs import find_graph
from antiphon.latency.shapes import find_shape

HOST = Machine(host=64 * GIB)


def full_size() -> ModelFacts:
    shape = find_shape("qwen3-omni-30b-a3b")
    parameters = {stage: shape_parameters(each) for stage, each in shape.stages.items()}
    return ModelFacts(shape.name, find_graph("qwen3_omni_moe"), shape, parameters)


def written(path: Path, tree: Any) -> str:
    """The tree as a YAML file; text as it is."""
    path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return str(path)


def deployed(tmp_path: Path, tree: Any, model: ModelFacts | None = None, machine: Machine = HOST) -> Resolved:
    deployment: Deployment = read_deployment(written(tmp_path / "deployment.yaml", tree))
    return resolve(deployment, model, machine)
