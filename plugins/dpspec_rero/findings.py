"""Findings: membership bounds, identified targets and conformance checks.

The membership bounds are attained; gamma is not known to be (``docs/explanation/proofs/reconstruction.md``).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec.json_records import Amount, Count, Positive, Record, read
from dpspec.stats import binomial, utility
from dpspec.stats.conformance import noise_tests, sampling, table
from dpspec.stats.conformance.measurement import Abstention, Measurement
from dpspec.training.providers import iterates_reveal_sums, updates_invertible
from dpspec_rero.options import Candidates, Prior, Steps, adds_laplace, trained_phases
from dpspec_rero.theory import Leakage, gamma_source, pure_epsilon

#: False-positive rates of the membership findings if no claim names one.
FPRS = (1e-3, 1e-1)

#: Relative rounding error of a sum of a few logarithms.
_SUM_ROUNDING = 1e-12

_MEMBERSHIP = "Kaissis et al. 2023; Dong, Roth and Su 2022"
_ATTAINED = f"{_MEMBERSHIP}; attained by a record along one coordinate"

ASSUMPTIONS = kit.dp_sgd_assumptions(
    noise_scale="noise of the declared law and scale in every step",
    clipping="no record moves a step by more than the sensitivity",
    steps="training makes exactly the declared number of steps",
)


def scope_of(direction: str = "both") -> dps.Scope:
    return dps.Scope(direction=direction, access="all-iterates", adversary="gradient")


def leakage_of(phases: Sequence[dps.Phase]) -> Leakage:
    return Leakage(tuple(Steps.of(phase) for phase in phases))


#: Name of the curve of gamma against the baseline success.
GAMMA_SERIES = "gamma-by-kappa"

#: The baselines of the curve.
CURVE = tuple(float(kappa) for kappa in np.geomspace(1e-7, 1.0, 50))


def gamma_outcomes(leakage: Leakage, named: Sequence[float]) -> Iterator[dps.Finding | dps.Series]:
    """Bounds at the ``named`` baselines, and the curve over these and ``CURVE``."""
    kappas = sorted({*named, *CURVE})
    bounds = leakage.gammas(kappas)
    for index in map(kappas.index, named):
        position: dict[str, dps.Json] = {"kappa": kappas[index]}
        yield certified("gamma", bounds[index], at=position, source=gamma_source(bounds[index]))
    yield kit.series(
        GAMMA_SERIES,
        "Reconstruction: gamma by baseline success kappa, on logarithmic axes",
        {
            "kappa": kappas,
            "gamma": [bound.upper for bound in bounds],
            "gamma-lower": [bound.lower for bound in bounds],
        },
        rigor="certified",
        source=gamma_source(*bounds),
        x="kappa",
        y=["gamma"],
        log=("x", "y"),
        upper=["gamma"],
        lower=["gamma-lower"],
    )


#: Relative width of the epsilons of a profile, from which reports compute rates.
_PROFILE_WIDTH = 1e-3


def membership_findings(spec: dps.Spec, leakage: Leakage) -> Iterator[dps.Finding | dps.Series]:
    directions = sorted({claim.direction for claim in spec.claims} | {spec.threat_model.direction})
    deltas, fprs = kit.claimed_deltas(spec), kit.claimed_fprs(spec.claims) or list(FPRS)
    bounds: list[tuple[dps.Finding, Interval]] = []
    for direction in directions:
        for delta, epsilon in zip(deltas, leakage.epsilons(deltas, direction), strict=True):
            bounds.append((certified("epsilon", epsilon, at={"delta": delta}, direction=direction), epsilon))
        for fpr, tpr in zip(fprs, leakage.tprs(fprs, direction), strict=True):
            bounds.append((certified("tpr", tpr, at={"fpr": fpr}, direction=direction), tpr))
    advantage = leakage.advantage()
    bounds.append((certified("advantage", advantage), advantage))
    yield from (finding for finding, _ in bounds)
    intervals = leakage.epsilons(kit.PROFILE_DELTAS, "both", _PROFILE_WIDTH)
    rows = [(scope_of().adjacency, 1, e.upper, delta) for e, delta in zip(intervals, kit.PROFILE_DELTAS, strict=True)]
    yield kit.profile([row for row in rows if math.isfinite(row[2])], rigor="certified", source=_MEMBERSHIP)
    yield from _pure(leakage.phases, directions)
    if iterates_reveal_sums(spec.training.options, spec.steps):
        for direction in directions if pure_epsilon(leakage.phases) < math.inf else ():
            pure = pure_epsilon(leakage.phases, direction)
            pure_interval = Interval(pure * (1.0 - _SUM_ROUNDING), pure * (1.0 + _SUM_ROUNDING)).by("sum over steps")
            bounds.append((certified("epsilon", pure_interval, at={"delta": 0.0}, direction=direction), pure_interval))
        largest = max((claim.min_records for claim in spec.claims), default=0)
        for finding, interval in bounds:
            lower = certified_lower(finding, interval, source=_ATTAINED, min_records=largest)
            if lower is not None:
                yield lower


def _pure(phases: Sequence[Steps], directions: Sequence[str]) -> Iterator[dps.Finding]:
    if pure_epsilon(phases) == math.inf:
        return
    source = "Balle, Barthe and Gaboardi 2018, Theorem 9; Dwork and Roth 2014, Theorem 3.16"
    for direction in directions:
        yield kit.theorem_upper(
            "epsilon",
            pure_epsilon(phases, direction),
            at={"delta": 0.0},
            scope=scope_of(direction),
            method="sum over steps",
            source=source,
            assumptions=ASSUMPTIONS,
        )


def certified(
    quantity: str,
    interval: Interval,
    *,
    at: dict[str, dps.Json] | None = None,
    direction: str = "both",
    source: str = _MEMBERSHIP,
) -> dps.Finding:
    scope = scope_of(direction)
    return certified_upper(quantity, interval, at=at, scope=scope, source=source, assumptions=ASSUMPTIONS)


SOURCE = "Clopper & Pearson 1934; Hayes et al. 2023"

#: Number of runs with a full log, and number of steps per run whose residuals are measured.
LOGGED, LOOKS = 2, 16

_WORDS = {"all": "candidates", "same-class": "candidates of one class", "planted": "planted candidates"}

#: The note of the check of the noise that the attack reads.
_READ_NOISE = "noise in released models after subtracting drawn records"

#: The adversary's knowledge in addition to the released models.
_ASSUMPTIONS = (
    dps.Assumption(
        name="targets",
        status="by-construction",
        text="every trial draws one target by the prior and trains a separate run",
    ),
    dps.Assumption(
        name="known-draws",
        status="by-construction",
        text="the adversary knows which known records each batch drew, but not whether it drew the target",
    ),
)


@dataclass(frozen=True, kw_only=True)
class ReadNoise(Record):
    """Noise after subtracting the drawn records: a chi-square statistic and its degrees of freedom.

    ``hidden``: degrees of freedom of the steps whose noise is not tested, because rounding hides it.
    """

    statistic: Amount
    degrees: Count
    hidden: Count = 0


@dataclass(frozen=True, kw_only=True)
class AttackedRun(Record):
    """``included``: number of records that each phase drew, if logged."""

    records: Positive
    noise: ReadNoise
    included: tuple[Count, ...] | None = None


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    assert spec.audit is not None
    candidates = Prior.of(spec.threat_model.options).candidates
    assert candidates is not None
    ranks = [kit.recorded_number(trial, "rank", least=0, most=candidates.count - 1) for trial in trials]
    confidence = spec.audit.confidence
    count, successes = len(ranks), sum(rank < candidates.top for rank in ranks)
    method = f"reconstruction of {candidates.count} {_WORDS[candidates.source]}, {spec.threat_model.access}"
    # The records that the adversary knows.
    known_records = min(kit.recorded_number(trial, "records") for trial in trials) - 1
    evidence = dps.Evidence(
        id=f"reconstruction/{candidates.count}/{candidates.top}",
        kind="binomial",
        quantity="gamma",
        statistics=dps.FrozenMap({"trials": count, "successes": successes}),
        scope=kit.executed_scope(spec, adversary="record", records=known_records),
        at=dps.FrozenMap({"kappa": candidates.kappa}),
        method=method,
        source=SOURCE,
        assumptions=_ASSUMPTIONS,
    )
    yield evidence
    yield kit.lower_from(evidence, confidence, method=f"{method}, {successes} of {count} trials")
    yield rank_series(candidates, ranks, confidence)
    yield from utility.accuracies(spec, trials, "canary-free run on all records")
    values = [trial.evidence for trial in trials]
    yield from table.checks(trained_phases(spec.phases), values, privacy=spec.data_privacy)
    yield from (check for _, check in _attack_checks(spec, values))


def foreseen_checks(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Check]:
    assert spec.audit is not None
    phases, runs = trained_phases(spec.phases), spec.audit.runs
    undone = sums_are_tested(phases, spec.training.options)
    yield from kit.expected_checks(spec, facts, trials=min(LOGGED, runs), undone=undone, looks=LOOKS, phases=phases)
    noisy = sum(phase.steps for phase in phases if not phase.noiseless)
    degrees = noisy * (facts.parameters or 0) * (2 if adds_laplace(spec.phases) else 1)
    if spec.threat_model.access != "all-iterates":
        degrees = 0
    drawn = [round(phase.steps * phase.rate(facts.records) * facts.records) for phase in phases]
    evidence = {
        "records": facts.records,
        "noise": {"statistic": float(degrees), "degrees": degrees},
        "included": drawn if "sampling-log" in facts.capabilities else None,
    }
    for outcome, expected in _attack_checks(spec, [dps.FrozenMap(evidence)] * runs):
        yield outcome.promise(expected)


def sums_are_tested(phases: Sequence[dps.FrozenMap], training: dps.FrozenMap) -> bool:
    """Whether released sums are inverted and tested: not where Adam trains, nor where noise is not Gaussian."""
    return updates_invertible(training) and not adds_laplace(phases)


def _attack_checks(
    spec: dps.Spec, evidence: Sequence[dps.FrozenMap]
) -> Iterator[tuple[Measurement | Abstention, dps.Check]]:
    runs: list[AttackedRun] = []
    for number, trial_evidence in enumerate(evidence, start=1):
        where = f"evidence of trial {number}"
        run = read(AttackedRun, {key: value for key, value in trial_evidence.items() if value is not None}, where)
        if run.included is not None and len(run.included) != len(spec.phases):
            raise ValueError(f"{where}.included must be of {len(spec.phases)} phases, got {len(run.included)}")
        if runs and run.noise.degrees + run.noise.hidden != runs[0].noise.degrees + runs[0].noise.hidden:
            raise ValueError(f"{where}.noise.degrees and hidden must have the sum of the other trials")
        runs.append(run)
    degrees = sum(run.noise.degrees for run in runs)
    if degrees:
        statistic = sum(run.noise.statistic for run in runs)
        measured = noise_tests.two_sided(statistic, degrees, absolute=adds_laplace(spec.phases))
        yield measured, measured.check("noise-scale", "reported", _READ_NOISE)
    elif any(run.noise.hidden for run in runs):
        hidden = Abstention("the rounding of the parameters hides the noise of every step")
        yield hidden, hidden.check("noise-scale", "reported", _READ_NOISE, "chi-square, two-sided")
    if all(run.included is None for run in runs):
        return
    for number, phase in enumerate(spec.phases):
        if phase.sampling.is_poisson:
            chances = sum(run.records * phase.steps for run in runs)
            # Runs without a log count as zero drawn records.
            drawn = sum(run.included[number] for run in runs if run.included is not None)
            measured = sampling.inclusions(drawn, chances, phase.rate())
            yield measured, measured.check("sampling", "reported", f"rate over all runs, phase {number + 1}")


def rank_series(candidates: Candidates, ranks: Sequence[int], confidence: float) -> dps.Series:
    masses = sorted(candidates.masses or [1.0 / candidates.count] * candidates.count, reverse=True)
    rows = []
    for top in (1 << i for i in range(candidates.count.bit_length()) if 1 << i < candidates.count):
        successes = sum(rank < top for rank in ranks)
        low, high = binomial.clopper_pearson(successes, len(ranks), confidence)
        rows.append((top, min(1.0, math.fsum(masses[:top])), successes / len(ranks), low, high))
    return kit.series(
        "reconstruction-by-top",
        f"Attack: target among the first m of {candidates.count} candidates, {len(ranks)} trials",
        kit.columns_of(("top", "kappa", "success", "lower", "upper"), rows),
        rigor="statistical",
        source=SOURCE,
        units={"top": "candidates"},
        x="kappa",
        y=("success",),
        log=("x",),
        upper=("upper",),
        lower=("lower",),
    )
