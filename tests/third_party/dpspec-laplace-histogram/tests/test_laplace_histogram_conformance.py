"""The plugin keeps the promises of the plugin contract; each test of the suites says which one."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dpspec.contract import Spec
from dpspec.testing import MechanismSuite, Neighbors, ProviderSuite, decreasing


class TestMechanism(MechanismSuite):
    kind = "laplace-histogram"
    overrides: ClassVar = ("audit.releases=200", "claims.sensitivity-forgotten.expect=[refuted, open]")
    monotone: ClassVar = {"mechanism.scale": decreasing(0.5, 1.0, 2.0, 4.0)}

    def neighbors(self, spec: Spec, group_size: int) -> Iterator[Neighbors]:
        """Two of the counts move by the size of the group: its records go from one class to another."""
        scale = float(spec.mechanism["scale"])
        change = np.array([-group_size, group_size])
        yield Neighbors(
            absent=lambda rng, n: rng.laplace(0.0, scale, (n, 2)),
            present=lambda rng, n: change + rng.laplace(0.0, scale, (n, 2)),
            log_ratio=lambda y: (np.abs(y) - np.abs(y - change)).sum(axis=1) / scale,
        )


class TestBackend(ProviderSuite):
    family = "backend"
    kind = "laplace-histogram"


class TestCarelessBackend(ProviderSuite):
    family = "backend"
    kind = "careless-histogram"
