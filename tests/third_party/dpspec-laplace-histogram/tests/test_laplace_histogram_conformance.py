"""The plugin keeps the promises of the plugin contract; each test of the suites says which one."""

from typing import ClassVar

from dpspec.testing import MechanismSuite, ProviderSuite, decreasing


class TestMechanism(MechanismSuite):
    kind = "laplace-histogram"
    overrides: ClassVar = ("audit.releases=200", "claims.sensitivity-forgotten.expect=[refuted, open]")
    monotone: ClassVar = {"mechanism.scale": decreasing(0.5, 1.0, 2.0, 4.0)}


class TestBackend(ProviderSuite):
    family = "backend"
    kind = "laplace-histogram"


class TestCarelessBackend(ProviderSuite):
    family = "backend"
    kind = "careless-histogram"
