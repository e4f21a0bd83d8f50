"""The plugin keeps the promises of the plugin contract; each test of the suites says which one."""

from typing import ClassVar

from dpspec.testing import MechanismSuite, ProviderSuite, decreasing, increasing


class TestMechanism(MechanismSuite):
    kind = "ftrl"
    overrides: ClassVar = ("audit.releases=16", "mechanism.steps=8", "claims.one-epoch-counted.expect=[refuted, open]")
    monotone: ClassVar = {
        "mechanism.noise_multiplier": decreasing(1.0, 2.0, 4.0),
        "mechanism.steps": increasing(4, 12, 24),
        "mechanism.bands": increasing(1, 2, 4, 8),
        "mechanism.separation": decreasing(1, 2, 4, 12),
    }


class TestTrainer(ProviderSuite):
    family = "backend"
    kind = "ftrl"


class TestThrifty(ProviderSuite):
    family = "backend"
    kind = "ftrl-thrifty"


class TestEager(ProviderSuite):
    family = "backend"
    kind = "ftrl-eager"
