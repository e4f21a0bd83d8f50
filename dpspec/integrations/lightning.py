"""A callback of Lightning's ``Trainer`` that records it; the recorder's plugin has the code."""

from __future__ import annotations

from dpspec.lazy_names import lazy_names

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from dpspec_recording.integrations.lightning import DPSpecCallback

__all__ = ["DPSpecCallback"]

_HOME = "dpspec_recording.integrations.lightning"
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, _HOME), __all__)
