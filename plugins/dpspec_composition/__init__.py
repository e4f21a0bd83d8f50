"""Audit of several releases on the same data, composed into one certified curve."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import NAMED_NOISE, string
from dpspec_composition.options import KINDS, refusals

DPSPEC_API = 1

_KEYS: dict[str, dps.Json] = {
    "sigma": kit.number("Standard deviation of the noise, in units of the query.", least=1e-9, most=1e12),
    "scale": kit.number(
        "Scale b of the Laplace noise, or the factor of a noise by name, in units of the query.", least=1e-9, most=1e12
    ),
    "noise": NAMED_NOISE,
    "sensitivity": kit.number(
        "Largest change of the query by one record: in the l2 norm for gaussian, in the l1 norm for laplace, an "
        "integer for discrete-gaussian, of one number for noise. Default 1.",
        least=1e-9,
        most=1e9,
    ),
    "rate": kit.number(
        "Probability with which each record enters the Poisson sample that a run reads, a public constant. Default 1, "
        "all records. Each run of each release draws its own sample, which stays secret: releases that read one drawn "
        "sample have the same `sample`. Of a guarantee (approx-dp, zcdp, gdp, exponential), epsilon, rho or mu is of "
        "the release on its sample, for added and removed records.",
        least=1e-30,
        most=1,
    ),
    "batch_size": kit.integer(
        "Number of records of a sample of fixed size without replacement, which a run reads in place of a Poisson "
        "sample. For gaussian a record that is added displaces another one; for approx-dp the guarantee is on the "
        "sample, for replaced records. Each run draws its own sample, unless `sample` names one.",
        least=1,
        most=10**12,
    ),
    "records": kit.integer(
        "Number of records from which a sample of fixed size, or one with a cap, is drawn, the group included.",
        least=2,
        most=10**12,
    ),
    "max_batch": kit.integer(
        "Cap of a Poisson sample of `records` at `rate`: of more drawn records a random subset of this size is kept.",
        least=1,
        most=10**12,
    ),
    "sample": string(
        "Name of the one drawn sample that all releases with this name read, in all their runs, with equal rate, or "
        "equal batch_size and records. Their joint outputs are composed before the sampling. gaussian and gdp are one "
        "query of the sample; all others count by their guarantees, gaussian and gdp among them as zcdp."
    ),
    "shifts": kit.array(
        "Distances by which one record may move the query, with `probabilities`: Gaussian noise against the mixture of "
        "moved noise, both ways.",
        kit.number("A distance.", least=0, most=1e9),
        least=1,
        most=10000,
    ),
    "probabilities": kit.array(
        "Probability of each shift.", kit.number("A probability.", least=0, most=1), least=1, most=10000
    ),
    "epsilon": kit.number(
        "Epsilon of one run: of the guarantee (approx-dp), the log-ratio of the probabilities of the right and of "
        "another answer (randomized-response), or the largest range of the privacy loss (exponential: epsilon of a "
        "choice with probability in proportion to e^(epsilon score / (2 sensitivity)), or of noisy max with Gumbel "
        "noise of scale 2 sensitivity / epsilon).",
        least=1e-15,
        most=1e6,
    ),
    "delta": kit.number("Delta of the guarantee. Default 0.", least=0, most=1),
    "answers": kit.integer("Number of possible answers. Default 2.", least=2, most=10**9),
    "rho": kit.number("Rho of the zCDP guarantee.", least=1e-30, most=1e12),
    "mu": kit.number("Mu of the Gaussian DP guarantee.", least=1e-15, most=1e6),
}

_CONDITIONS: list[dps.Json] = [
    {
        "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
        "then": {
            "required": [*needs],
            "properties": dict.fromkeys((key for key in _KEYS if key not in (*needs, *may)), False),
        },
    }
    for kind, (needs, may) in KINDS.items()
]

_RELEASE: dict[str, dps.Json] = {
    **kit.block(
        "One release, or several of the same kind.",
        ["kind"],
        name=string("Name of the release, for readers."),
        kind=kit.choice(
            "The mechanism. Known pairs of outputs: gaussian, gaussian-mixture, laplace, discrete-gaussian, "
            "randomized-response, noise (a distribution of a plugin, by name). Guarantees with an upper bound only: "
            "exponential, approx-dp, zcdp, gdp. exponential is the exponential mechanism, by its bounded range: rho of "
            "a choice is epsilon^2 / 8. Noisy max with Gumbel noise is the same mechanism. Permute-and-flip and noisy "
            "max with exponential or Laplace noise have no such range: use approx-dp with their epsilon and delta 0, "
            "of rho epsilon^2 / 2.",
            *KINDS,
        ),
        times=kit.integer(
            "Number of runs with independent noise, and samples unless `sample` names one, possibly chosen after "
            "earlier releases. Default 1.",
            least=1,
            most=10**9,
        ),
        origin=kit.block(
            "Where an entry of a ledger comes from, written by `dpspec ledger add`; bounds do not depend on it.",
            ["evidence", "file", "digest", "added"],
            evidence=kit.choice(
                "The basis of the entry: a recorded training, the trainings of a run, or a spec alone.",
                "recorded",
                "run",
                "declared",
            ),
            file=string("The recording, result or spec that was entered."),
            digest=string("SHA-256 of the recording, or of the result's spec."),
            data=string("Digest of the dataset, if it is known."),
            certified_by=string("Third-party distributions that computed the bound."),
            assumes=kit.array(
                "Names of channels that the user assumed, and of cautions that the user accepted.",
                string("A name."),
                least=1,
                most=100,
            ),
            added=string("Date of the entry, in UTC."),
        ),
        scope=kit.block(
            "The datasets and adversaries that its guarantee covers, if fewer than all: the composition covers no "
            "more. Written by `dpspec ledger add`.",
            data=kit.choice("The datasets, of these the declared one with its neighbors only.", "this", "collection"),
            min_records=kit.integer("Smallest number of records of both datasets.", least=1, most=10**12),
            access=kit.choice("The access of the adversary.", "final-model"),
            adversary=kit.choice("The strongest adversary.", "record", "none"),
            neighbours=kit.choice("The pairs of neighboring datasets.", "same-missing-values"),
        ),
        **_KEYS,
    ),
    "allOf": _CONDITIONS,
}

COMPOSITION = dps.Mechanism(
    kind="composition",
    summary="Several releases on the same data (queries, choices, trainings), composed into one curve",
    assumptions=("dpspec_composition.bounds",),
    description="several differentially private releases on the same data",
    schemas=dps.Schemas(
        mechanism=kit.block(
            None,
            ["releases"],
            releases=kit.array("The releases, in any order.", _RELEASE, least=1, most=1000),
            delta=kit.number("Delta of the reported epsilon if no claim has one.", above=0, below=1, default=1e-5),
        ),
        audit=kit.block(None),
    ),
    claims=frozenset({"approx-dp", "pure-dp", "renyi-dp", "zcdp", "membership", "tradeoff"}),
    audit="dpspec_composition:CompositionAudit",
    example=Path(__file__).with_name("example.yaml").read_text(encoding="utf-8"),
    steps=False,
)


class CompositionAudit(dps.Audit):
    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        return refusals(spec, facts.records)

    def notes(self, bounds: Sequence[dps.Finding | dps.Series]) -> Iterable[str]:
        from dpspec_composition.bounds import noted

        return noted(bounds)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_composition.bounds import outcomes

        return outcomes(spec, context)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    yield COMPOSITION
