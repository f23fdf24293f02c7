"""What a run says of itself at its end."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from antiphon.bench.progress import RunProgress
from antiphon.metrics.log import ClientSampled, SessionRefused


def test_refusals_and_a_late_load_generator_are_warned_of() -> None:
    progress = RunProgress(Console(file=StringIO()))
    progress.saw(ClientSampled(t_s=1.0, cpu_s=0.1, lag_s=0.02))
    assert progress.warnings() == []
    for number in range(2):
        progress.saw(SessionRefused(t_s=2.0, session=f"s{number}", code="503", message=f"full {number}"))
    progress.saw(ClientSampled(t_s=2.0, cpu_s=0.2, lag_s=1.176))
    progress.saw(ClientSampled(t_s=3.0, cpu_s=0.3, lag_s=0.3))
    refused, late = progress.warnings()
    assert refused == "refused 2 times, the last one with full 1"
    assert late.startswith("the load generator was up to 1.18 s late itself (client_lag_s)")
