"""Antiphon serves realtime omni-modal models: people speak to it, it speaks back, and they interrupt it.

    from antiphon import Omni, Request

See `antiphon.runtime.omni` for the Python entry and `antiphon --help` for the server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# GNU's OpenMP reads this when it is loaded, with torch. Unasked, threads spin for milliseconds when they have
# nothing to do: where others want the cores too, they have spent their share when there is work again.
os.environ.setdefault("GOMP_SPINCOUNT", "300")

if TYPE_CHECKING:
    from antiphon.core.sampling import Sampling
    from antiphon.runtime.omni import Omni, Reply, Request

__all__ = ["Omni", "Reply", "Request", "Sampling"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loaded when first used, so that `import antiphon.core` stays free of torch."""
    if name == "Sampling":
        from antiphon.core.sampling import Sampling

        return Sampling
    if name in __all__:
        from antiphon.runtime import omni

        return getattr(omni, name)
    raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
