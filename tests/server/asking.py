"""What clients ask in tests of the HTTP surfaces, and what the engine is told of it."""

from __future__ import annotations

from typing import Any

HI: Any = [{"role": "user", "content": "hi"}]
