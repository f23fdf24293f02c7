"""`antiphon config`: what the keys of a deployment mean, and what one comes to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from antiphon.assembly.deployment import Parts
from antiphon.assembly.deployment_file import deployment_names, read_deployment
from antiphon.assembly.keys import Key, find_key, keys
from antiphon.assembly.preset import BASELINE, is_path, preset_names, read_preset
from antiphon.assembly.registry import (
    DECISIONS,
    decides,
    find_policy,
    known_policies,
    nearest,
    options_of,
    policy_label,
)
from antiphon.cli.shared import console, fail
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.model_source import parts_in, settings_in

app = typer.Typer(no_args_is_help=True, help="Deployments as files: what their keys mean, what they come to.")
PARAGRAPH = "\n\n"
page = Console(highlight=False, markup=False, soft_wrap=True)

What = Annotated[str, typer.Argument(help=f"{', '.join(deployment_names())}, or a file.")]


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            help="A dotted key, such as stages.thinker.kv_tokens; a preset's name or path; a decision of "
            f"presets ({', '.join(DECISIONS)}); a policy's name; none: a list of all keys."
        ),
    ] = "",
) -> None:
    """Say what a key means: type, default, what is allowed, an example, which deployments use it. Of a
    preset: which policy takes each decision, what it does, its options. Of a decision: its policies. Of a
    policy: what it decides, and what its options mean."""
    try:
        for line in lines_of(key):
            page.print(line)
    except AntiphonError as error:
        fail(error)


def lines_of(key: str) -> list[str]:
    """What to say of a key, a preset, a decision or a policy; of "" every key. Raises ConfigError."""
    if not key:
        return [f"{each.path:44}{each.meaning}" for each in keys()]
    if key in DECISIONS:
        return explained_decision(key)
    if key in preset_names() or is_path(key):
        return explained_preset(key)
    if key in deployment_names():
        raise ConfigError(
            f"{key} is a deployment: `antiphon config show {key}` prints it, and `doctor` explains it"
        )
    taken = [decision for decision in DECISIONS if key in known_policies(decision) and decides(decision, key)]
    if taken:
        about = explained_policy(taken[0], key, {})
        return [f"{key}: a policy for {', '.join(taken)}", *about]
    try:
        return explained(find_key(key))
    except ConfigError as error:
        policies = (policy for decision in DECISIONS for policy in known_policies(decision))
        said = nearest(key, dict.fromkeys((*preset_names(), *DECISIONS, *policies)))
        raise ConfigError(
            f"{key}: no such preset, decision or policy{said}" if said else str(error)
        ) from None


@app.command()
def show(
    what: What,
    model: Annotated[str, typer.Option(help="Checkpoint directory or hub id; by default the file's.")] = "",
) -> None:
    """Print a deployment with its bases merged and every size resolved, as YAML that can be served."""
    from antiphon.cli.deployments import resolved

    try:
        found, named = resolved(what, model, console.print)
    except AntiphonError as error:
        fail(error)
    parts = parts_in(named)
    said: dict[str, Any] = {**parts, **settings_in(parts)}
    both = {"parts": Parts(**said)} if parts else {"model": named or None}
    deployment = found.deployment.model_copy(update=both)
    unsaid = set[str]() if deployment.is_cascade else {"parts"}
    tree = deployment.model_dump(exclude={"base", *unsaid}, exclude_none=True)
    sizes = {} if found.options is None else {name: each.sizes for name, each in found.options.stages.items()}
    for name, size in sizes.items():
        stage = deployment.stage(name).model_copy(update=size)
        tree["stages"][name] = stage.model_dump(exclude_none=True)
    page.print(yaml.safe_dump(tree, sort_keys=False, width=100).rstrip())
    for problem in found.problems:
        console.print(f"[bold red]wrong:[/] {problem}", soft_wrap=True)
    raise typer.Exit(1 if found.problems else 0)


@app.command(name="page", hidden=True)
def print_page() -> None:
    """Print every key as Markdown, for docs/deployments.md."""
    page.print(page_of_keys())


def explained(key: Key) -> list[str]:
    """What is known of a key, a line each."""
    lines = [key.path, f"  {key.meaning}", f"  type      {key.type}"]
    if key.allowed:
        lines.append(f"  allowed   {key.allowed}")
    if key.inner is None:
        lines.append(f"  default   {written(key.default)}")
    else:
        lines.append(f"  keys      {', '.join(key.inner.model_fields)}")
    if key.example is not None:
        lines.append(f"  example   {key.path.rpartition('.')[2]}: {written(key.example)}")
    used = [f"{name} ({value})" for name in deployment_names() if (value := used_in(name, key))]
    return [*lines, f"  used by   {'; '.join(used) or 'no deployment that ships'}"]


def explained_preset(preset: str) -> list[str]:
    """What each decision's policy does, and its options; per stage where a stage has its own. Of one that
    was told already, only what is another there."""
    lines, baseline = [preset], read_preset(BASELINE)
    told: dict[str, tuple[str, dict[str, str]]] = {}
    for decision, choice in read_preset(preset).items():
        for stage in ("", *choice.stages):
            policy, options = choice.of(stage)
            place = f"{decision}, {stage}" if stage else decision
            usual = baseline[decision].of(stage)[0]
            is_observed = choice.observes(stage) and policy != usual
            how = f" (observed: asked and counted, and {usual} decides)" if is_observed else ""
            lines += ["", f"{place}: {policy_label(policy)}{how}"]
            values = values_of(decision, policy, options)
            if not values or policy not in told:
                lines += explained_policy(decision, policy, options)
                told[policy] = place, values
                continue
            first, before = told[policy]
            other = ", ".join(f"{name}: {value}" for name, value in values.items() if value != before[name])
            lines.append(f"  As under `{first}`{f', with {other}' if other else ''}.")
    return lines


def explained_decision(decision: str) -> list[str]:
    """The policies that a preset may name for it."""
    lines = [f"{decision}: a decision of presets"]
    for policy in known_policies(decision):
        if decides(decision, policy):
            lines += ["", policy, *explained_policy(decision, policy, {})]
    return [*lines, "", f"or your own, as `{decision}: file.py:Class` or `package.module:Class`"]


def values_of(decision: str, policy: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What each option of a policy is with these."""
    known = options_of(find_policy(decision, policy))
    return {name: written(options.get(name, default)) for name, (_, default) in known.items()}


def explained_policy(decision: str, policy: str, options: Mapping[str, Any]) -> list[str]:
    """What it does, and each option with value, type, default and, where its class says so, meaning."""
    kind = find_policy(decision, policy)
    words = inspect.getdoc(kind) or "It does not say what it does."
    lines = [f"  {' '.join(words.partition(PARAGRAPH)[0].split())}"]
    for name, (hint, default) in options_of(kind).items():
        is_needed = default is inspect.Parameter.empty
        of = f"{hint.__name__ if isinstance(hint, type) else hint}"
        usual = "needed" if is_needed else f"default {written(default)}"
        value = written(options[name]) if name in options else "" if is_needed else written(default)
        lines.append(f"  {name:14}{value}  ({of}, {usual})  {meaning_of(name, words)}".rstrip())
    return lines


def meaning_of(option: str, words: str) -> str:
    """What a class's documentation says of an option: a line that begins with its name, two spaces or more,
    and the indented lines below. "" where it says nothing."""
    found = re.search(rf"^{re.escape(option)} {{2,}}(.*(?:\n +.*)*)", words, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def page_of_keys() -> str:
    """Every key as Markdown, for the documentation."""
    lines: list[str] = []
    for key in keys():
        facts = [key.type, *([key.bounds] if key.bounds else [])]
        if key.inner is None:
            facts.append(f"default {written(key.default)}")
        shown = "; ".join(facts)
        lines.append(f"- `{key.path}` ({shown}): {key.meaning}")
    return "\n".join(lines)


def used_in(deployment: str, key: Key) -> str:
    """What a deployment that ships says there; a mapping only that it does."""
    parts = key.path.split(".")
    found = list(dict.fromkeys(_at(read_deployment(deployment).model_dump(exclude_unset=True), parts)))
    return "yes" if found and key.inner is not None else ", ".join(found)


def _at(tree: Any, parts: list[str]) -> list[str]:
    """Values under a key; NAME is every name."""
    if not parts:
        return [written(tree)]
    if not isinstance(tree, dict):
        return []
    name, *rest = parts
    below = list(tree.values()) if name == "NAME" else [tree[name]] if name in tree else []
    return [value for each in below for value in _at(each, rest)]


def written(value: Any) -> str:
    """As YAML would have it on one line; what YAML has no form for, as Python."""
    if value is None:
        return "none"
    try:
        return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    except yaml.YAMLError:
        return repr(value)
