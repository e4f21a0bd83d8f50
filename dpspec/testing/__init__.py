"""The conformance suite for plugins: subclass the suite of your kind of provider and run it with pytest.

A whole test file of a plugin that audits the mechanism ``demo``::

    from dpspec.testing import MechanismSuite, decreasing

    class TestDemo(MechanismSuite):
        kind = "demo"
        monotone = {"mechanism.scale": decreasing(0.5, 1.0, 2.0)}

The plugin must be installed. The docstring of every test states a requirement. Use :class:`ProviderSuite` with its
``family`` for a backend that does not train by DP-SGD, for example a release of counts. pytest is part of the extra
``dpspec[test]``.

The suites also serve alone: a bound on a curve is compared with the laws of explicit neighbors, here a release with
half of the noise for which epsilon 1 at delta 0.02 is claimed.

>>> from dpspec.testing import Neighbors
>>> from dpspec.testing.attained import exceeded
>>> neighbors = Neighbors(
...     absent=lambda generator, n: generator.normal(0.0, 0.5, n),
...     present=lambda generator, n: generator.normal(1.0, 0.5, n),
...     log_ratio=lambda outputs: 4.0 * outputs - 2.0,
... )
>>> [found.direction for found in exceeded(neighbors, [(1.0, 0.02)], ["remove", "add"])]
['remove', 'add']
>>> list(exceeded(neighbors, [(5.0, 0.5)], ["remove", "add"]))
[]
"""

from dpspec.renames import old_names
from dpspec.testing.attack_method import AttackMethodSuite
from dpspec.testing.attained import Neighbors
from dpspec.testing.backend import BackendSuite
from dpspec.testing.command import CommandSuite
from dpspec.testing.example import Trend, constant, decreasing, increasing
from dpspec.testing.inputs import CanarySuite, DatasetSuite, LossSuite, ModelSuite, ScoreSuite
from dpspec.testing.mechanism import MechanismSuite
from dpspec.testing.noise import NoiseSuite
from dpspec.testing.provider import ProviderSuite
from dpspec.testing.reporter import ReporterSuite
from dpspec.testing.sampling_scheme import SamplingSchemeSuite

__all__ = [
    "AttackMethodSuite",
    "BackendSuite",
    "CanarySuite",
    "CommandSuite",
    "DatasetSuite",
    "LossSuite",
    "MechanismSuite",
    "ModelSuite",
    "Neighbors",
    "NoiseSuite",
    "ProviderSuite",
    "ReporterSuite",
    "SamplingSchemeSuite",
    "ScoreSuite",
    "Trend",
    "constant",
    "decreasing",
    "increasing",
]

#: Old names work for two minor versions.
__getattr__ = old_names(__name__)
