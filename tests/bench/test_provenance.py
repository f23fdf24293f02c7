"""What scripts in benchmarks/ keep of their parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.bench.provenance import once


def test_a_part_whose_file_is_there_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[int] = []

    def part() -> dict[str, int]:
        runs.append(1)
        return {"runs": len(runs)}

    path = tmp_path / "fcfs-0.5-1.json"
    assert [once(path, part) for _ in range(2)] == [{"runs": 1}] * 2
    assert capsys.readouterr().err == "fcfs-0.5-1\n", "told once"
    path.unlink()
    assert once(path, part) == {"runs": 2}
