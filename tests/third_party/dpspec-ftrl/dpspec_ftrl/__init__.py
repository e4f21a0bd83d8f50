"""Audits DP-FTRL: training whose noise is correlated across steps by a banded matrix."""

from collections.abc import Iterable

import dpspec.contract as dps
from dpspec import kit
from dpspec_ftrl.mechanism import Matrix

DPSPEC_API = 1

#: Whether constants of a run depend on records: none does, whichever of the backends below runs.
_CONSTANTS = dps.Assumption(
    name="data-independent-hyperparameters",
    status="by-construction",
    text="clip norm, matrix, separation and divisor are the job's, whatever the records are",
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    """The mechanism kind ``ftrl``."""
    yield Matrix.offer()


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    """Who trains: the right way, and two wrong ones for the controls."""
    yield _backend("ftrl", "Trains with correlated noise on batches in a fixed order", "Correlated")
    yield _backend("ftrl-thrifty", "Divides the noise by the matrix's sensitivity, once too often", "Thrifty")
    yield _backend("ftrl-eager", "Lets every record take part at every step, whatever is declared", "Eager")


def _backend(kind: str, summary: str, trainer: str) -> dps.Backend:
    return dps.Backend(
        kind=kind,
        summary=summary,
        schema=kit.block(),
        capabilities=frozenset({"iterates", "sampling-log", "noise-log", "norm-log", "gradient-canaries"}),
        trainer=f"dpspec_ftrl.backend:{trainer}",
        constants=_CONSTANTS,
    )
