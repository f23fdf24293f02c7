"""Policies by name, by dotted path, and in files. Nothing is imported before one is made."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from math import isnan
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, get_type_hints

import msgspec

from antiphon.core.errors import ConfigError, nearest, no_such, system_words

SHIPPED: Mapping[str, tuple[str, ...]] = {
    "step": ("prefill-first", "fcfs", "urgency", "token-buffer"),
    "pace": ("unpaced", "urgency", "token-buffer"),
    "admission": ("unlimited",),
    "device": ("round-robin", "most-urgent"),
    "replica": ("sticky", "least-loaded"),
    "evict": ("lru", "next-use", "token-buffer"),
    "write": ("write-back", "next-use", "token-buffer"),
    "fetch": ("on-demand", "next-use", "token-buffer"),
}
"""Every decision, and the policies for it that ship: `most-urgent` is the class MostUrgent in
`policy/most_urgent.py`."""

NO_NEIGHBOURS = (
    "A policy's file cannot import the files beside it: put all into one, or install them as a package"
)
DECISIONS = tuple(SHIPPED)
OBSERVE = "observe"
"""The key of a preset, and of a decision in it, beside policies and their options."""
SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "step": ("view", "budget", "now"),
    "admission": ("view", "candidate", "now"),
    "device": ("heads", "last", "now"),
}
"""What `decide` takes; of all others `view` and `now`."""
FAILURES = Exception, SystemExit
"""Of code that is loaded."""
GROUP = "antiphon.policies"
"""Of entry points: a package that is installed beside this one may bring policies."""


@cache
def installed() -> dict[str, str]:
    """Where the classes are of policies that other installed packages bring, by name."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def known_policies(decision: str) -> tuple[str, ...]:
    """Names that a preset may give for a decision, those of installed packages included."""
    return tuple(sorted({*SHIPPED[decision], *installed()}))


def is_file(policy: str) -> bool:
    """Is the policy in a file of its own?"""
    return policy.rpartition(":")[0].endswith(".py")


def placed(policy: str, folder: Path) -> str:
    """With its file's whole path, where it is in one: beside the preset, unless it says otherwise. Raises
    ConfigError."""
    if not is_file(policy):
        return policy
    path, _, name = policy.rpartition(":")
    try:
        return f"{(folder / Path(path).expanduser()).resolve()}:{name}"
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"policy {policy!r}: {path!r} is not a path ({error})") from None


def is_foreign(decision: str, policy: str) -> bool:
    """Is it named by its code's place, and so neither shipped nor registered by an installed package?"""
    return policy not in known_policies(decision)


def digest(decision: str, policy: str) -> str:
    """Of the source that a policy is in; of one that ships "". Raises ConfigError."""
    if policy in SHIPPED[decision]:
        return ""
    if is_file(policy):
        return _digest(_bytes(policy))
    try:
        return _digest(Path(_source_file(decision, policy)).read_bytes())
    except OSError as error:
        raise ConfigError(f"policy {policy}: its source cannot be read ({system_words(error)})") from None


def load_policy(decision: str, policy: str) -> tuple[type, str]:
    """The class, and the digest of its source: of a file's, of what was run just now. Raises ConfigError."""
    if not is_file(policy):
        return find_policy(decision, policy), digest(decision, policy)
    source = _bytes(policy)
    return _from_file(policy, source), _digest(source)


def find_policy(decision: str, policy: str) -> type:
    """The class. Raises ConfigError for a name that does not exist, and for code that cannot be loaded."""
    if policy in SHIPPED[decision]:
        words = policy.split("-")
        return _imported(f"antiphon.policy.{'_'.join(words)}:{''.join(map(str.capitalize, words))}")
    if ":" in policy:
        return _from_file(policy, _bytes(policy)) if is_file(policy) else _imported(policy)
    if policy in installed():
        return _imported(installed()[policy])
    known = known_policies(decision)
    if policy.endswith(".py"):
        raise ConfigError(f"policy {policy!r}: say which class of that file, such as {policy}:MyPolicy")
    if others := [other for other, names in SHIPPED.items() if policy in names]:
        raise ConfigError(
            f"{policy!r} decides {', '.join(others)}, not {decision}; for that there are {', '.join(known)}"
        )
    raise ConfigError(no_such("policy", policy, known, ", file.py:Class and package.module:Class"))


def make_policy(decision: str, policy: str, options: Mapping[str, Any]) -> Any:
    """An object of the policy's class, with options as its constructor takes them. Raises ConfigError for
    options that it does not take or of another type, and if it cannot be made."""
    return make_with_digest(decision, policy, options)[0]


def make_with_digest(decision: str, policy: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The object of `make_policy`, and the digest of the source that was run to make it."""
    try:
        kind, source = load_policy(decision, policy)
    except ConfigError as error:
        raise ConfigError(f"{decision}: {error}") from None
    shown = f"{decision}: {policy_label(policy)}"
    checked = _checked(shown, options_of(kind), options)
    try:
        made = kind(**checked)
        asked = decider(made, decision)
        str(getattr(made, "name", ""))  # as those call it who count what it does
    except ConfigError as error:
        raise ConfigError(f"{shown}: {error}") from None
    except FAILURES as error:
        raise ConfigError(f"{shown} cannot be made: {type(error).__name__}: {error}") from error
    if asked is None:
        raise ConfigError(f"{shown} has neither `decide` nor `decide_{decision}`, so it does not decide this")
    _check_signature(shown, asked, decision)
    return made, source


def _check_signature(shown: str, asked: Callable[..., Any], decision: str) -> None:
    """Raises ConfigError where it cannot be called as the decision's protocol calls it."""
    wanted = SIGNATURES.get(decision, ("view", "now"))
    try:
        signature = inspect.signature(asked)
    except (TypeError, ValueError):
        return  # it does not say
    try:
        signature.bind(*wanted)
    except TypeError:
        name = getattr(asked, "__name__", "decide")
        raise ConfigError(
            f"{shown}: `{name}{signature}` must take ({', '.join(('self', *wanted))}) to decide {decision}"
        ) from None


def policy_label(policy: str) -> str:
    """As people call it: a file without its folder."""
    path, _, name = policy.rpartition(":")
    return f"{Path(path).name}:{name}" if is_file(policy) else policy


def decider(policy: object, decision: str) -> Callable[..., Any] | None:
    """What a policy decides this by: `decide_step`, say, where it takes several decisions, or `decide`."""
    found = getattr(policy, f"decide_{decision}", None) or getattr(policy, "decide", None)
    return found if callable(found) else None


def teller(policy: object, decision: str) -> Callable[..., Any] | None:
    """What a policy tells people about this decision by: `tell_step`, say, or `tell`."""
    found = getattr(policy, f"tell_{decision}", None) or getattr(policy, "tell", None)
    return found if callable(found) else None


def decides(decision: str, policy: str) -> bool:
    """Can it take this decision? Raises ConfigError if it cannot be loaded."""
    kind: Any = find_policy(decision, policy)
    return decider(kind, decision) is not None


@cache
def options_of(kind: type) -> dict[str, tuple[Any, Any]]:
    """(type, default) of each option that a policy takes; the default is inspect's `empty` where it must be
    given."""
    try:
        hints = get_type_hints(kind.__init__)
        parameters = list(inspect.signature(kind).parameters.values())
    except FAILURES as error:
        raise ConfigError(f"policy {kind.__name__}: its options cannot be read ({error})") from None
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return {one.name: (hints.get(one.name, Any), one.default) for one in named}


def _checked(where: str, known: Mapping[str, tuple[Any, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    takes = ", ".join(known) or "none"
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{where}: no option {name!r}{nearest(name, known) or '.'} It takes {takes}")
        if isinstance(value, float) and isnan(value):
            raise ConfigError(f"{where}: {name} is nan, which is not a number")
        try:
            checked[name] = msgspec.convert(value, known[name][0])
        except (msgspec.ValidationError, TypeError) as error:
            raise ConfigError(f"{where}: {name} is {value!r}: {error}") from None
    needed = [name for name, (_, default) in known.items() if default is inspect.Parameter.empty]
    if lacking := [name for name in needed if name not in checked]:
        raise ConfigError(f"{where}: it needs a value for {', '.join(lacking)}")
    return checked


def _source_file(decision: str, policy: str) -> str:
    kind = find_policy(decision, policy)
    try:
        return inspect.getsourcefile(kind) or ""
    except TypeError:
        raise ConfigError(f"policy {policy}: it has no source file, so a record could not name it") from None


def source_of(policy: object) -> str:
    """The file of its class; "" where it has none."""
    return str(getattr(sys.modules.get(type(policy).__module__), "__file__", None) or "")


def raised_at(error: BaseException, file: str) -> str:
    """` (hold.py:12)`: the innermost line of this file on the way to an error, or nothing."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}:{lines[-1]})" if lines else ""


def _imported(path: str) -> type:
    module, _, name = path.rpartition(":")
    try:
        found = getattr(import_module(module), name)
    except FAILURES as error:
        raise ConfigError(f"policy {path} cannot be loaded: {type(error).__name__}: {error}") from error
    return _class(path, found)


def _digest(source: bytes) -> str:
    return hashlib.blake2b(source, digest_size=16).hexdigest()


def _bytes(policy: str) -> bytes:
    """Of a policy's file."""
    path = policy.rpartition(":")[0]
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        said = system_words(error)
        raise ConfigError(f"policy {policy_label(policy)}: cannot read {path} ({said})") from None


def _from_file(policy: str, source: bytes) -> type:
    """A file is run once for each content that it has had."""
    path, _, name = policy.rpartition(":")
    content = _digest(path.encode() + source)
    unique = f"antiphon_policy_{Path(path).stem}_{content}"
    module = sys.modules.get(unique)
    if module is None:
        module = sys.modules[unique] = ModuleType(unique)  # dataclasses look their module up
        module.__file__ = path
        try:
            exec(compile(source, path, "exec"), vars(module))
        except FAILURES as error:
            del sys.modules[unique]
            said = f"{type(error).__name__}: {error}{raised_at(error, path)}"
            if isinstance(error, ModuleNotFoundError):
                said += f". {NO_NEIGHBOURS}"
            raise ConfigError(f"policy {policy_label(policy)} cannot be loaded: {said}") from error
    found = vars(module).get(name)
    if found is None:
        kinds = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(
            f"policy {policy_label(policy)}: no {name!r} in {path}{nearest(name, kinds) or '.'}"
        )
    return _class(policy, found)


def _class(path: str, found: object) -> type:
    if not isinstance(found, type):
        raise ConfigError(f"policy {policy_label(path)} is not a class")
    return found
