"""A cascade's prompts: its thinker answers at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from antiphon.checkpoint.files import open_directory
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.models.cascade.family import FAMILY

AS_QWEN3_HAS_IT = """
{%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""


WITHOUT_TOOLS = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""As SmolLM2 has it."""


def test_whether_its_template_shows_tools(cascade_checkpoint: Path, tmp_path: Path):
    path = shutil.copytree(cascade_checkpoint, tmp_path / "copy")
    config = open_directory(str(path)).config
    assert FAMILY.load_prompter(path, config, 1000).takes_tools
    assert FAMILY.load_prompter(path, config, 20).takes_tools, "however short prompts must be"
    (path / "thinker" / "chat_template.jinja").write_text(WITHOUT_TOOLS)
    assert not FAMILY.load_prompter(path, config, 1000).takes_tools


def test_a_template_that_fails_without_tools_too_is_not_taken_to_have_none(
    cascade_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = shutil.copytree(cascade_checkpoint, tmp_path / "copy")
    config = open_directory(str(path)).config
    (path / "thinker" / "chat_template.jinja").write_text("{{ raise_exception('say who you are') }}")
    assert FAMILY.load_prompter(path, config, 1000).takes_tools
    assert "say who you are" in caplog.text


def test_a_thinker_that_could_reason_is_told_not_to(cascade_checkpoint: Path, tmp_path: Path):
    path = shutil.copytree(cascade_checkpoint, tmp_path / "copy")
    with (path / "thinker" / "chat_template.jinja").open("a") as template:
        template.write(AS_QWEN3_HAS_IT)
    prompter = FAMILY.load_prompter(path, open_directory(str(path)).config, 1000)
    ready = prompter.render(RenderPrompt(1, (Item("q", "user", (TextPart("How are you?"),)),), True))
    assert isinstance(ready, PromptReady), ready
    tokenizer: Any = AutoTokenizer.from_pretrained(path / "thinker")
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "How are you?"}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    assert "<think>" in rendered
    expected = tokenizer(rendered, add_special_tokens=False).input_ids
    assert ready.prompts["thinker"].token_ids.tolist() == expected
