"""The load generator against the server it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.bench.logfile import LogWriter, read
from antiphon.bench.run import run
from antiphon.bench.target import DrivenServer, Pace, model_of
from antiphon.metrics.log import AudioDelta, ErrorSeen, ResponseEnded, ServerSampled, SessionEnded, TextDelta
from antiphon.workload.script import JobCall, JobScript, PersonScript, Script, TurnScript, Voiced
from bench.events import of
from fakes.serving import greedy, serving

pytestmark = pytest.mark.usefixtures("forked_processes")


async def test_people_and_a_job(tiny_checkpoint: Path, tmp_path: Path) -> None:
    spoken = TurnScript(0.0, (Voiced(0.5),), max_output_tokens=4)
    typed = TurnScript(0.0, text="And now?", wants="text", max_output_tokens=4)
    scripts: list[Script] = [
        PersonScript("ann", 0.0, 1, (spoken, typed)),
        PersonScript("bob", 0.0, 2, (spoken,)),
    ]
    scripts.append(JobScript("sum", 0.0, (JobCall("Sum it up.", 4),)))
    async with serving(greedy(tiny_checkpoint, tmp_path / "greedy"), tmp_path / "run.record") as url:
        target = DrivenServer(url, await model_of(url))
        with LogWriter(tmp_path / "run.jsonl") as log:
            assert await run(target, iter(scripts), Pace(concurrency=3), log) == "finished"
    events = list(read(tmp_path / "run.jsonl"))
    assert not of(ErrorSeen, events)
    assert sorted(event.session for event in of(SessionEnded, events) if event.reason == "done") == [
        "ann",
        "bob",
        "sum",
    ]
    assert {event.session for event in of(AudioDelta, events)} == {"ann", "bob"}
    assert {event.session for event in of(TextDelta, events)} == {"ann", "bob", "sum"}
    assert len(of(ResponseEnded, events)) == 4
    assert any(name.startswith("antiphon_") for name in of(ServerSampled, events)[0].values)
