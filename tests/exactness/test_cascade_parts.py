"""A cascade's parts by name are its directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon import Omni, Request
from antiphon.core.model_source import PARTS, source_of
from exactness.cascade import GREEDY


@pytest.mark.usefixtures("forked_processes")
def test_parts_by_name_are_the_directory(cascade_checkpoint: Path):
    """The same model, whether its directory is named or each of its parts, in one process and in several."""
    source = source_of({part: str(cascade_checkpoint / part) for part in PARTS})
    question = [{"audio": np.sin(np.arange(8000, dtype=np.float32) / 20)}, "again"]
    said = []
    for model, apart in ((str(cascade_checkpoint), False), (source, False), (source, True)):
        omni = Omni(model, max_context_tokens=256, kv_tokens=1024, stages_apart=apart)
        try:
            said.append(omni.generate([Request(question, sampling=GREEDY)])[0])
        finally:
            omni.close()
    for other in said[1:]:
        assert other.text == said[0].text
        assert np.array_equal(other.audio, said[0].audio)
