"""The conformance suite that every plugin author uses, on our own plugin."""

from __future__ import annotations

from dpspec.testing import MechanismSuite, increasing


class TestPreprocessing(MechanismSuite):
    kind = "preprocessing"
    monotone = {  # noqa: RUF012
        "mechanism.private.eps_noise": increasing(0.2, 0.3, 0.6),
    }
