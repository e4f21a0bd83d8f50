"""The mechanism ``selection`` by the suite that authors of mechanisms use."""

from __future__ import annotations

from dpspec.testing import MechanismSuite


class TestSelection(MechanismSuite):
    kind = "selection"
    overrides = ("mechanism.steps=20",)
