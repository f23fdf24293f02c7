"""A deployment that ships, served: the real command, replicas on two devices, the stock client."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import httpx
import pytest
import yaml
from openai import AsyncOpenAI

from antiphon.core.plans import CodecStep
from antiphon.runtime.record import read_record, replay
from fakes.serving import greedy, serving

pytestmark = pytest.mark.usefixtures("forked_processes")

TURN_S = 60


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """The demo, with two thinkers on devices of their own."""
    tree = {
        "base": "demo",
        "limits": {"max_sessions": 1, "session": {"max_items": 4}},
        "devices": {"left": {"device": "cpu"}, "right": {"device": "cpu"}, "cpu": None},
        "stages": {
            "encoders": {"device": "left"},
            "thinker": {"replicas": 2, "devices": ["left", "right"], "sampling": {"max_tokens": 12}},
            "talker": {"device": "right", "max_rows": 3},
            "code2wav": {"device": "right"},
        },
        "edges": {"talker -> code2wav": {"first_chunk": 1, "chunk": 5}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


async def test_a_deployment_speaks(tiny_checkpoint: Path, deployment: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.record"
    checkpoint = greedy(tiny_checkpoint, tmp_path / "greedy")
    async with serving(checkpoint, record, "--config", str(deployment)) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        async with client.realtime.connect(model="tiny") as connection:
            part = {"type": "input_text", "text": "And now?"}
            item = {"type": "message", "role": "user", "content": [part]}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            pcm = b""
            async with asyncio.timeout(TURN_S):
                async for event in connection:
                    assert event.type != "error", event
                    if event.type == "response.output_audio.delta":
                        pcm += base64.b64decode(event.delta)
                    elif event.type == "response.done":
                        assert event.response.status in ("completed", "incomplete")
                        assert event.response.usage.output_token_details.text_tokens <= 12
                        break
            assert pcm
            async with httpx.AsyncClient() as http:
                body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
                refused = await http.post(f"{url}/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert "all 1 sessions are in use" in refused.text
    header, entries = read_record(record)
    node = header.node
    assert [(unit.name, unit.device) for unit in node.units] == [
        ("encoders", "left"),
        ("thinker.0", "left"),
        ("thinker.1", "right"),
        ("talker", "right"),
        ("code2wav", "right"),
    ]
    assert (node.ar["thinker"].sampling.max_tokens, node.ar["talker"].max_rows) == (12, 3)
    steps = [order for entry in entries for order in entry.decision.orders if isinstance(order, CodecStep)]
    assert [step.counts.tolist() for step in steps[:2]] == [[1], [5]]
    assert replay(record)[1] == []
