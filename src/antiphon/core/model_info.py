"""What a loaded model tells the wire about itself."""

from __future__ import annotations

from math import inf

import msgspec

from antiphon.core.sampling import Sampling


class ModelInfo(msgspec.Struct, frozen=True, tag=True):
    """Facts about the served model that a server may show or check against.

    name         as clients ask for it
    path         local checkpoint directory (the tokenizer is read from it)
    voices       speaker names, lower case; the first is the default
    max_context_tokens  prompt plus reply
    sampling     each decoder's own way to draw, by stage of a reply; the first stage writes the text
    max_recording_s     the longest recording that it hears; inf: any
    transcriber_path    where the tokenizer of its transcriber is read from; "": it has no transcriber
    languages    codes of those that its transcriber hears, its own first
    reads_ahead  the server tells of turns before they are over: instructions when the first one begins, and
                 what was said in every pause
    vocab_size   token ids of the text are below it; 0: not known
    inputs       what its prompts may show beside text: "audio", "image" (clips included)
    takes_tools  its prompts show the tools that a reply may call
    json_calls   it writes calls as bare JSON with "parameters", as Llama 3 does; else in <tool_call> tags
    latin_only   its voice says no letters of another script
    """

    name: str
    path: str
    family: str
    voices: tuple[str, ...]
    max_context_tokens: int
    device: str
    dtype: str
    sampling: dict[str, Sampling] = {}
    max_recording_s: float = inf
    transcriber_path: str = ""
    languages: tuple[str, ...] = ()
    reads_ahead: bool = False
    vocab_size: int = 0
    inputs: tuple[str, ...] = ("audio", "image")
    takes_tools: bool = True
    json_calls: bool = False
    latin_only: bool = False

    @property
    def has_transcriber(self) -> bool:
        """A stage of its own writes down what is said."""
        return bool(self.languages)
