"""What scripts in benchmarks/ keep of their parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.bench.provenance import once, parser


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


def test_a_script_makes_the_folder_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = parser("What it tells.\n\n    as it stands", "evaluation/parts")
    with pytest.raises(SystemExit):
        script.parse_args(["--help"])
    assert "What it tells.\n\n    as it stands" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]
    arguments = script.parse_args(["--out", "result.json"])
    assert (arguments.work, arguments.out) == (Path("evaluation/parts"), Path("result.json"))
    assert arguments.work.is_dir()
    assert script.parse_args(["--out", "it", "--work", "other"]).work == Path("other")
    assert [path.name for path in tmp_path.iterdir() if path.name != "evaluation"] == ["other"]
