"""The suite that the author of the votes writes, and the registry of one variant."""

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpspec.contract import Spec
from dpspec.registry.loader import Candidate, Registry, build
from dpspec.testing import MechanismSuite, Neighbors, decreasing

OURS = Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")


def registry(audit: type[Any]) -> Registry:
    """A registry with a plugin that offers this mechanism, in a module that another process can import."""
    name = f"votes_{audit.__name__.lower()}"
    if name not in sys.modules:
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / f"{name}.py").write_text(
            f"import dpspec.contract as dps\n{getattr(audit, 'imports', '')}\n"
            f"from {audit.__module__} import {audit.__name__} as Audit\n\nDPSPEC_API = 1\n\n\n"
            "@dps.hookimpl\ndef dpspec_mechanisms():\n    yield Audit.offer()\n"
        )
        sys.path.append(str(folder))
    plugin = Candidate(distribution="dpspec-votes", version="1.0", plugin="votes", value=name)
    return build([OURS, plugin])


class VotesSuite(MechanismSuite):
    kind = "votes"
    monotone: ClassVar = {"mechanism.sigma": decreasing(1.0, 2.0, 4.0)}

    def neighbors(self, spec: Spec, group_size: int) -> Iterator[Neighbors]:
        """The counts of both neighbors, from the definition: a changed vote moves both counts by one."""
        sigma = float(spec.mechanism["sigma"])
        change = np.array([-group_size, group_size])
        yield Neighbors(
            absent=lambda rng, n: sigma * rng.normal(size=(n, 2)),
            present=lambda rng, n: change + sigma * rng.normal(size=(n, 2)),
            log_ratio=lambda y: (y @ change - (change @ change) / 2) / sigma**2,
            tails=change * np.linspace(-30.0, 30.0, 61)[:, None] * sigma,
            name="a changed vote",
        )


class LaplaceSuite(VotesSuite):
    def neighbors(self, spec: Spec, group_size: int) -> Iterator[Neighbors]:
        scale = float(spec.mechanism["sigma"])
        change = np.array([-group_size, group_size])
        yield Neighbors(
            absent=lambda rng, n: rng.laplace(scale=scale, size=(n, 2)),
            present=lambda rng, n: change + rng.laplace(scale=scale, size=(n, 2)),
            log_ratio=lambda y: (abs(y) - abs(y - change)).sum(axis=1) / scale,
            name="a changed vote",
        )


class AnswersSuite(MechanismSuite):
    kind = "answers"
    monotone: ClassVar = {"mechanism.flip": decreasing(0.1, 0.25, 0.4)}

    def neighbors(self, spec: Spec, group_size: int) -> Iterator[Neighbors]:
        """Each answer of the group is 1 in one dataset and 0 in the other, and flipped with the probability."""
        flip = float(spec.mechanism["flip"])
        yield Neighbors(
            absent=lambda rng, n: (rng.random((n, group_size)) < flip).astype(float),
            present=lambda rng, n: (rng.random((n, group_size)) >= flip).astype(float),
            log_ratio=lambda y: (2.0 * y - 1.0).sum(axis=1) * np.log((1.0 - flip) / flip),
            name="the group's answers",
        )


class SampledVotesSuite(VotesSuite):
    """The same without densities."""

    def neighbors(self, spec: Spec, group_size: int) -> Iterator[Neighbors]:
        for pair in super().neighbors(spec, group_size):
            yield Neighbors(absent=pair.absent, present=pair.present, name=pair.name)


def suite(audit: type[Any], base: type[MechanismSuite] = VotesSuite, **attributes: Any) -> Any:
    """A suite on one variant; every call makes a new class, and so a new first run."""
    found = registry(audit)
    kind = audit.kind
    return type("Suite", (base,), {"kind": kind, "registry": classmethod(lambda cls: found), **attributes})()
