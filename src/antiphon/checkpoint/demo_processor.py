"""Processor files of the demo checkpoint: chat template, audio and image preprocessing, merged as released.

Written by hand, because building the library's processors needs packages that serving does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.checkpoint.side_files import write_json
from antiphon.checkpoint.whisper_features import whisper_features

if TYPE_CHECKING:
    from pathlib import Path

MERGE_SIZE, TEMPORAL_PATCH_SIZE = 2, 2
MIN_TOKENS, MAX_TOKENS = 4, 64
"""Of a picture."""

CHAT_TEMPLATE = """\
{%- macro shown(content) -%}
{%- if content is string -%}
{{- content -}}
{%- else -%}
{%- for part in content or [] -%}
{%- if part.type == 'audio' or 'audio' in part or 'audio_url' in part -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}
{{- shown(messages[0].content) + '\\n\\n' -}}
{%- endif -%}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
{%- for tool in tools -%}
{{- '\\n' + (tool | tojson) -}}
{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments' -}}
{{- ' within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\\n<tool_response>\\n' + shown(message.content) + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- elif not (tools and loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + shown(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or message.content -%}
{{- '\\n' -}}
{%- endif -%}
{%- set call = call.function or call -%}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' -}}
{{- call.arguments if call.arguments is string else call.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def write_processor(
    directory: Path, processor: str = "Qwen3OmniMoeProcessor", *, patch_size: int = 16
) -> None:
    """Write chat_template.jinja, chat_template.json and preprocessor_config.json."""
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(directory / "chat_template.json", {"chat_template": CHAT_TEMPLATE})
    write_json(directory / "preprocessor_config.json", _preprocessor(processor, patch_size))


def _preprocessor(processor: str, patch_size: int) -> dict[str, Any]:
    token_pixels = (patch_size * MERGE_SIZE) ** 2
    return {
        "processor_class": processor,
        **whisper_features(128, with_mask=True, dither=0.0),
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": patch_size,
        "merge_size": MERGE_SIZE,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "min_pixels": MIN_TOKENS * token_pixels,
        "max_pixels": MAX_TOKENS * token_pixels,
        "size": {
            "shortest_edge": MIN_TOKENS * token_pixels,
            "longest_edge": MAX_TOKENS * token_pixels,
        },
    }
