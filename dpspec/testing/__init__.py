"""The conformance suite: subclass the suite of what your plugin offers, and run it with pytest.

A whole test file of a plugin that audits the mechanism ``demo``::

    from dpspec.testing import MechanismSuite, decreasing

    class TestDemo(MechanismSuite):
        kind = "demo"
        monotone = {"mechanism.scale": decreasing(0.5, 1.0, 2.0)}

The plugin must be installed. Every test of a suite says in its docstring what it demands, and its failure says
what was found. :class:`ProviderSuite` alone, with its ``family``, is for a backend that does not train by DP-SGD, such
as one that releases counts. pytest is part of the extra ``dpspec[test]``.
"""

from dpspec.testing.attacks import CanarySuite, ScoreSuite
from dpspec.testing.backend import BackendSuite
from dpspec.testing.dataset import DatasetSuite
from dpspec.testing.mechanism import MechanismSuite
from dpspec.testing.model import ModelSuite
from dpspec.testing.outcomes import Trend, decreasing, increasing
from dpspec.testing.provider import ProviderSuite

__all__ = [
    "BackendSuite",
    "CanarySuite",
    "DatasetSuite",
    "MechanismSuite",
    "ModelSuite",
    "ProviderSuite",
    "ScoreSuite",
    "Trend",
    "decreasing",
    "increasing",
]
