"""The server's own counters, read from its Prometheus page where it has one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from antiphon.bench.target import DrivenServer, get

PREFIX = "antiphon_"


def sample(target: DrivenServer) -> dict[str, float]:
    """Values by name and labels, blocking. Raises OSError or ValueError if there is no such page."""
    text = get(f"{target.root}/metrics", target.api_key).decode()
    prefix = "" if target.all_metrics else PREFIX
    return parse(text, prefix)


def parse(text: str, prefix: str) -> dict[str, float]:
    """Samples whose name starts with `prefix`: `name{label="value"}` -> value."""
    kept = "\n".join(line for line in text.splitlines() if line.startswith(prefix) and line[:1] != "#")
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(kept + "\n"):
        for name, labels, value, *_ in family.samples:
            inner = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
            values[f"{name}{{{inner}}}" if inner else name] = value
    return values
