"""Traces in their public formats, and what is wrong with a row, by file and line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.errors import ConfigError
from antiphon.workload.spec import Trace
from antiphon.workload.trace_rows import TraceSession, TraceTurn
from antiphon.workload.traces import format_of, rows, sessions_of
from workload.shapes import TRACES, needs_traces, people, workload

BURSTGPT_3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,aa,4,ChatGPT,100,50,150,Conversation log
6,,2,GPT-4,70,30,100,API log
25,aa,3,ChatGPT,180,20,200,Conversation log
60,aa,9,ChatGPT,90,0,90,Conversation log
95,aa,3,ChatGPT,120,10,130,Conversation log
"""
BURSTGPT_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
SHAREGPT = [
    {
        "id": "x_0",
        "conversations": [{"from": "human", "value": "how are\nyou"}, {"from": "gpt", "value": "fine"}],
    },
    {"id": "y", "conversations": []},
    {
        "id": "z",
        "conversations": [
            {"from": "gpt", "value": "before anybody asked"},
            {"from": "human", "value": "one two"},
            {"from": "gpt", "value": "a b c d e f g h i j"},
            {"from": "human", "value": "three"},
            {"from": "gpt", "value": "k"},
            {"from": "human", "value": "never answered"},
        ],
    },
]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def sessions(path: Path, **options: Any) -> tuple[TraceSession, ...]:
    return sessions_of(Trace(file=str(path), **options))


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    """Thinking is a gap less the reply before it; failed requests are left out."""
    path = written(tmp_path / "b.csv", BURSTGPT_3)
    assert format_of(path) == "burstgpt"
    first, api = sessions(path)
    assert first.arrival_s == 0
    assert first.turns == (TraceTurn(None, 100, 50), TraceTurn(16, 30, 20), TraceTurn(67, None, 10))
    assert api == TraceSession(1, (TraceTurn(None, 70, 30),))


def test_burstgpt_without_sessions(tmp_path: Path) -> None:
    alone = sessions(written(tmp_path / "b.csv", BURSTGPT_1))
    assert [(session.arrival_s, len(session.turns)) for session in alone] == [(0, 1), (40, 1)]


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_azure(tmp_path: Path, zone: str) -> None:
    text = AZURE.replace("0,374", f"0{zone},374").replace("0,396", f"0{zone},396")
    first, second = rows(written(tmp_path / "a.csv", text))
    assert first.arrival_s == 0
    assert second.arrival_s == pytest.approx(4.314579)
    assert (second.input_tokens, second.output_tokens, second.session) == (396, 109, None)


def test_mooncake_finds_conversations(tmp_path: Path) -> None:
    requests = [
        (0, 1100, 10, [0, 1, 2]),
        (3000, 700, 9, [0, 3]),
        (6000, 1700, 20, [0, 1, 4, 5]),
        (6000, 1100, 10, [0, 1, 2]),
        (9000, 2500, 7, [0, 1, 4, 6, 7]),
    ]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    text = "\n".join(json.dumps(dict(zip(names, request, strict=True))) for request in requests)
    path = written(tmp_path / "m.jsonl", text)
    assert format_of(path) == "mooncake"
    found = [row.session for row in rows(path)]
    assert found == ["0", "1", "0", "2", "0"]
    chat = sessions(path)[0]
    assert [turn.user_tokens for turn in chat.turns] == [1100, 590, 780]
    assert [turn.think_s for turn in chat.turns] == [None, 6, 3]


def test_sharegpt(tmp_path: Path) -> None:
    path = written(tmp_path / "s.json", json.dumps(SHAREGPT, indent=1))
    assert format_of(path) == "sharegpt"
    first, second = sessions(path)
    assert first.turns == (TraceTurn(None, 4, 1, None, "how are you"),)
    assert [(turn.text, turn.user_tokens, turn.output_tokens) for turn in second.turns] == [
        ("one two", 3, 13),
        ("three", 1, 1),
    ]


def test_utterances_and_transitions(tmp_path: Path) -> None:
    said = written(tmp_path / "u.csv", "slurp_id,words,sentence\n1,3,play some music\n")
    assert sessions(said)[0].turns == (TraceTurn(None, 4, None, None, "play some music"),)
    text = "meeting,t_s,offset_s,prev_turn_s,next_segment_s\nm,5,1.5,9,0.4\nm,8,-0.3,1,2.5\n"
    (talk,) = sessions(written(tmp_path / "a.csv", text))
    assert [(turn.think_s, turn.speech_s) for turn in talk.turns] == [(1.5, 0.4), (0, 2.5)]
    (script, *_) = people(workload(trace={"file": str(tmp_path / "a.csv")}))
    assert [turn.speech_s for turn in script.turns] == [0.4, 2.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            BURSTGPT_3.replace("180,20", "180,many"),
            "t:4: Response tokens is 'many'; expected a number of 0 or more",
        ),
        (BURSTGPT_3.replace("180,20", "18.5,20"), "t:4: Request tokens is '18.5'; expected a whole number"),
        (BURSTGPT_3.replace("25,aa", "-25,aa"), "t:4: Timestamp is '-25'; expected a number of 0 or more"),
        (BURSTGPT_3.replace("25,aa", "nan,aa"), "t:4: Timestamp is 'nan'; expected a number"),
        (BURSTGPT_3.replace("GPT-4,", ""), r"t:3: 7 columns; expected 8 \(Timestamp, Session ID"),
        (
            AZURE.replace("2023-11-16 18:15:50", "yesterday"),
            "t:3: TIMESTAMP is 'yesterday.9951690'; expected a time",
        ),
        (AZURE.replace("2023-11-16 18:15:50.9951690", ""), "t:3: TIMESTAMP is ''; expected a time"),
        ("colour,shape\nred,round\n", "t:1: unknown columns: colour, shape; expected BurstGPT"),
        ("", "t:1: unknown columns: nothing; expected"),
        ("t_s,input_tokens,output_tokens\n", "t: the trace has no requests"),
        ("t_ms,input_tokens,output_tokens\nx,1,1\n", "t:2: t_ms is 'x'; expected a number"),
        ('{"timestamp": 0, "input_length": 5}\n', "t:1: no 'output_length' in"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n[1]\n', r"t:2: no 'timestamp' in '\[1\]'"),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": true}\n',
            "t:1: output_length is True; expected",
        ),
        (
            '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": 3}\n',
            "t:1: hash_ids is 3; expected a",
        ),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"time\n', "t:2: no JSON"),
        (
            '[\n{"id": 1, "conversations": []},\n{"id": 2}\n]',
            r"t:3: an entry that is .*expected .*conversations",
        ),
        ('[\n{"conversations": [{"from": "human"}]}]', "t:2: a message that is .*expected"),
        ('[\n{"conversations": []}\n{"conversations": []}]', "t:3: .*expected `,` or `]`"),
        ('[\n{"conversations": []},\n{"conv', "t:3: no JSON"),
        ('[{"conversations": []}', "t:1: ''; expected `,` or `]`"),
    ],
)
def test_what_is_wrong_and_where(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path / "t", text)
    with pytest.raises(ConfigError, match=words) as caught:
        sessions(path)
    assert str(caught.value).startswith(str(path))


def test_a_format_that_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", AZURE)
    assert len(sessions(path, format="azure")) == 2
    with pytest.raises(ConfigError, match="the header is that of format 'azure', not 'burstgpt'"):
        sessions(path, format="burstgpt")
    with pytest.raises(ConfigError, match="a JSON list of conversations"):
        sessions(path, format="sharegpt")


def test_a_workload_that_replays(tmp_path: Path) -> None:
    path = written(tmp_path / "b.csv", BURSTGPT_3)
    load = {"open": {"arrivals": {"replay": {"speed": 0.5}}}}
    trace = {"file": str(path), "speed": 2, "max_think_s": 20}
    first, api = people(workload(load, trace=trace, people={"a": {"think_s": 1}}))
    assert (first.arrival_s, api.arrival_s) == (0, 2)
    assert [turn.think_s for turn in first.turns] == [0, 8, 20]
    assert [turn.max_output_tokens for turn in first.turns] == [50, 20, 10]
    assert first.turns[0].speech_s == pytest.approx(77 / 4)  # 100 tokens at 1.3 a word, 4 words a second
    typed = people(workload(load, trace=trace, people={"a": {"typed": 1}}))
    assert [len(turn.text.split()) for turn in typed[0].turns[:2]] == [77, 23]


def test_a_trace_without_times_can_t_be_replayed(tmp_path: Path) -> None:
    path = written(tmp_path / "s.json", json.dumps(SHAREGPT))
    with pytest.raises(ConfigError, match="the workload's trace has no times"):
        people(workload({"open": {"arrivals": {"replay": {}}}}, trace={"file": str(path)}))
    typed = people(workload(trace={"file": str(path)}, people={"a": {"typed": 1}}))
    assert [[turn.text for turn in script.turns] for script in typed[:2]] == [
        ["how are you"],
        ["one two", "three"],
    ]


def test_what_is_used_of_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path / "b.csv", BURSTGPT_3)
    trace = {"file": str(path), "use": ["think"], "sessions": 1}
    laws = {"turns": 2, "think_s": 1, "speech": {"seconds": 3}}
    scripts = people(workload(trace=trace, people={"a": laws}))
    assert len(scripts) == 5  # the trace's one session again and again
    for script in scripts:
        assert [turn.think_s for turn in script.turns] == [0, 16]
        assert [turn.speech_s for turn in script.turns] == [3, 3]
        assert [turn.max_output_tokens for turn in script.turns] == [None, None]
    trace["use"] = ["lengths"]
    (longer, *_) = people(workload(trace=trace, people={"a": {**laws, "turns": 5}}))
    assert [turn.max_output_tokens for turn in longer.turns] == [50, 20, 10, None, None]


@needs_traces
@pytest.mark.parametrize(
    ("file", "requests", "num_sessions"),
    [
        ("azure2023_conv.csv", 19_366, 19_366),
        ("azure2023_code.csv", 8_819, 8_819),
        ("mooncake_conversation.csv", 12_031, 8_354),
        ("burstgpt3_first400.csv", 400, 141),
        ("sharegpt_lengths.csv", 30_731, 6_633),
        ("slurp_utterances.csv", 5_007, 5_007),
        ("streamingbench_questions.csv", 4_500, None),
        ("ami_turn_transitions.csv", 6_920, None),
    ],
)
def test_extracts(file: str, requests: int, num_sessions: int | None) -> None:
    found = sessions(TRACES / file)
    assert sum(len(session.turns) for session in found) == requests
    assert num_sessions is None or len(found) == num_sessions


@needs_traces
def test_mooncake_s_conversations_are_those_of_the_extract(tmp_path: Path) -> None:
    """The extract's tree of blocks, written out as the public format has it."""
    lines, blocks, num_blocks, expected = list[str](), list[list[int]](), 0, list[str]()
    with (TRACES / "mooncake_conversation.csv").open(newline="") as file:
        for cells in csv.DictReader(file):
            length, shared = int(cells["input_tokens"]), int(cells["prefix_blocks"])
            own = -(-length // 512) - shared
            kept = blocks[int(cells["prefix_of"])][:shared] if shared else []
            blocks.append([*kept, *range(num_blocks, num_blocks + own)])
            num_blocks += own
            fields = {"timestamp": int(cells["t_ms"]), "input_length": length}
            lines.append(
                json.dumps({**fields, "output_length": int(cells["output_tokens"]), "hash_ids": blocks[-1]})
            )
            expected.append(cells["session"])
    found = [row.session for row in rows(written(tmp_path / "m.jsonl", "\n".join(lines)))]
    assert found == expected
