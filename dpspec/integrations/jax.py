"""Steps of jax-privacy or optax, recorded; the recorder's plugin has the code."""

from __future__ import annotations

from dpspec.lazy_names import lazy_names

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from dpspec_recording.integrations.jax import Steps, differences, record_steps

__all__ = ["Steps", "differences", "record_steps"]

_HOME = "dpspec_recording.integrations.jax"
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, _HOME), __all__)
