"""The conformance suite that every plugin author uses, on our own plugin."""

from __future__ import annotations

from dpspec.testing import MechanismSuite, decreasing, increasing


class TestPerInstance(MechanismSuite):
    kind = "per-instance"
    quantities = ("epsilon",)  # one step is the same however many there are
    monotone = {  # noqa: RUF012
        "mechanism.noise_multiplier": decreasing(0.8, 1.0, 2.0),
        "mechanism.steps": increasing(5, 20, 60),
        "mechanism.sampling.rate": increasing(0.02, 0.1, 0.4),
    }
