"""Rounds of a federated server, recorded and checked; the recorder's plugin has the code."""

from __future__ import annotations

from dpspec.lazy_names import lazy_names

TYPE_CHECKING = False  # importing typing would take longer than the rest of this module
if TYPE_CHECKING:
    from dpspec_recording.integrations.federated import CheckedRounds, Rounds, check_rounds, record_rounds

__all__ = ["CheckedRounds", "Rounds", "check_rounds", "record_rounds"]

_HOME = "dpspec_recording.integrations.federated"
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, _HOME), __all__)
