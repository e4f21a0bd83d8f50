"""Audit of DP-FTRL: training with noise that a matrix correlates across steps."""

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec import kit
from dpspec_matrix.mechanism import Matrix

DPSPEC_API = 1


_CONSTANTS = dps.Assumption(
    name="data-independent-hyperparameters",
    status="by-construction",
    text="clip norm, matrix, participation and divisor come from the job and do not depend on records",
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield Matrix.offer()


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    yield _backend("matrix", "Trains with correlated noise and the declared participation", "Correlated")
    yield _backend("matrix-independent", "A control: noise that is independent across steps", "Independent")


def _backend(kind: str, summary: str, trainer: str) -> dps.Backend:
    return dps.Backend(
        kind=kind,
        summary=summary,
        schema=kit.block(),
        capabilities=frozenset({"iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries"}),
        trainer=f"dpspec_matrix.training:{trainer}",
        schemes=frozenset(),  # the mechanism's participation replaces the sampling
        constants=_CONSTANTS,
    )
