"""Evidence from ranks: the number of identified targets, and conformance checks of the executed runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import dpspec.contract as dps
from dpspec import kit
from dpspec.json_records import Amount, Count, Positive, Record, read
from dpspec.stats import utility
from dpspec.stats.conformance import noise_tests, sampling, table
from dpspec.stats.conformance.measurement import check
from dpspec.training.loop.learning_rates import updates_invertible
from dpspec_rero.options import adds_laplace, read_candidates, trained_phases
from dpspec_rero.tables import picture_series, rank_series

SOURCE = "Clopper & Pearson 1934; Hayes et al. 2023"

#: Number of runs with a full log, and number of steps per run whose residuals are measured.
LOGGED, LOOKS = 2, 16

_WORDS = {"all": "candidates", "same-class": "candidates of one class", "planted": "planted candidates"}

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
    """Noise after subtracting the drawn records: a chi-square statistic and its degrees of freedom."""

    statistic: Amount
    degrees: Count


@dataclass(frozen=True, kw_only=True)
class AttackedRun(Record):
    """``included``: number of records that each phase drew, if logged."""

    records: Positive
    noise: ReadNoise
    included: tuple[Count, ...] | None = None


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    assert spec.audit is not None
    candidates = read_candidates(spec.threat_model.options)
    assert candidates is not None
    ranks = [kit.recorded_number(trial, "rank", least=0, most=candidates.count - 1) for trial in trials]
    confidence = spec.audit.confidence
    count, successes = len(ranks), sum(rank < candidates.top for rank in ranks)
    method = f"reconstruction of {candidates.count} {_WORDS[candidates.source]}, {spec.threat_model.access}"
    known = min(kit.recorded_number(trial, "records") for trial in trials) - 1  # the records that the adversary knows
    evidence = dps.Evidence(
        id=f"reconstruction/{candidates.count}/{candidates.top}",
        kind="binomial",
        quantity="gamma",
        statistics=dps.FrozenMap({"trials": count, "successes": successes}),
        scope=kit.executed_scope(spec, adversary="record", records=known),
        at=dps.FrozenMap({"kappa": candidates.kappa}),
        method=method,
        source=SOURCE,
        assumptions=_ASSUMPTIONS,
    )
    yield evidence
    yield kit.lower_from(evidence, confidence, method=f"{method}, {successes} of {count} trials")
    yield rank_series(candidates, ranks, confidence, SOURCE)
    pictures = picture_series(spec, trials, SOURCE)
    if pictures is not None:
        yield pictures
    yield from utility.accuracies(spec, trials, "canary-free run on all records")
    values = [trial.evidence for trial in trials]
    yield from table.checks(trained_phases(spec.phases), values, privacy=spec.data_privacy)
    yield from _attack_checks(spec, values)


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
    for expected in _attack_checks(spec, [dps.FrozenMap(evidence)] * runs):
        name, _, _ = expected.test.partition(", ")
        yield replace(expected, test=name, p_value=1.0, declared=None, measured=None)


def sums_are_tested(phases: Sequence[dps.FrozenMap], training: dps.FrozenMap) -> bool:
    """Whether released sums are inverted and tested: not where Adam trains, nor where noise is not Gaussian."""
    return updates_invertible(training) and not adds_laplace(phases)


def _attack_checks(spec: dps.Spec, evidence: Sequence[dps.FrozenMap]) -> Iterator[dps.Check]:
    runs: list[AttackedRun] = []
    for number, one in enumerate(evidence, start=1):
        where = f"evidence of trial {number}"
        run = read(AttackedRun, {key: value for key, value in one.items() if value is not None}, where)
        if run.included is not None and len(run.included) != len(spec.phases):
            raise ValueError(f"{where}.included must be of {len(spec.phases)} phases, got {len(run.included)}")
        if runs and run.noise.degrees != runs[0].noise.degrees:
            raise ValueError(f"{where}.noise.degrees must equal the value of the other trials")
        runs.append(run)
    degrees = sum(run.noise.degrees for run in runs)
    if degrees:
        measured = noise_tests.two_sided(sum(run.noise.statistic for run in runs), degrees)
        if adds_laplace(spec.phases):
            # Laplace noise: squares become absolute values.
            detectable = measured.detectable
            measured = replace(
                measured,
                measured=measured.measured**2,
                detectable=None if detectable is None else (1.0 + detectable) ** 2 - 1.0,
            )
        yield check("noise-scale", measured, "reported", "noise in released models after subtracting drawn records")
    if all(run.included is None for run in runs):
        return
    for number, phase in enumerate(spec.phases):
        if phase.sampling.is_poisson:
            chances = sum(run.records * phase.steps for run in runs)
            # Runs without a log count as zero drawn records.
            drawn = sum(run.included[number] for run in runs if run.included is not None)
            measured = sampling.inclusions(drawn, chances, phase.rate())
            yield check("sampling", measured, "reported", f"rate over all runs, phase {number + 1}")
