"""Without transformers' advice: it knows neither what these checkpoints are for, nor who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Of a configuration it takes text ids in a talker's section for codes, and keys of a rotary embedding
    that its own models read for unknown ones."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
