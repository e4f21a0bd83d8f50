"""From ranks to evidence: how often the target was named, against what the bound allows; and checks of what ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dpspec.contract as dps
from dpspec.stats import binomial, noise, sampling, utility
from dpspec.stats.measurement import Measurement
from dpspec_rero import pictures
from dpspec_rero.executed import laplace
from dpspec_rero.prior import Candidates, candidates

SOURCE = "Clopper & Pearson 1934; Hayes et al. 2023"

_WORDS = {"all": "candidates", "same-class": "candidates of one class", "planted": "planted candidates"}

#: What the adversary knows beside the release.
_ASSUMPTIONS = (
    dps.Assumption(
        name="targets",
        status="by-construction",
        text="every trial hides one candidate, drawn by the prior, in a training run of its own",
    ),
    dps.Assumption(
        name="known-draws",
        status="by-construction",
        text="the adversary is told which known records each batch drew, never whether the target was among them",
    ),
)


def successes(trials: Sequence[dps.Trial], top: int) -> int:
    """How many trials have the target among the ``top`` best candidates."""
    return sum(int(trial.evidence["rank"]) < top for trial in trials)


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """The success count as evidence and the exact lower bound on gamma that follows from it; a table by rank, pictures
    of what was named, and the accuracy of a twin that hides nothing."""
    assert spec.audit is not None
    chosen = candidates(spec.threat_model.options)
    assert chosen is not None
    count, right, confidence = len(trials), successes(trials, chosen.top), spec.audit.confidence
    at = dps.FrozenMap({"kappa": chosen.kappa})
    scope = dps.Scope(
        adjacency=spec.threat_model.adjacency,
        unit=spec.threat_model.unit,
        access=spec.threat_model.access,
        adversary="record",
        data="this",
        pipeline="executed",
    )
    method = f"reconstruction of {chosen.count} {_WORDS[chosen.source]}, {spec.threat_model.access}"
    yield dps.Evidence(
        id=f"reconstruction/{chosen.count}/{chosen.top}",
        kind="binomial",
        quantity="gamma",
        statistics=dps.FrozenMap({"trials": count, "successes": right}),
        scope=scope,
        at=at,
        method=method,
        source=SOURCE,
        assumptions=_ASSUMPTIONS,
    )
    yield dps.Finding(
        quantity="gamma",
        value=binomial.lower(right, count, confidence),
        bound="lower",
        rigor="statistical",
        confidence=confidence,
        at=at,
        scope=scope,
        method=f"{method}, {right} of {count} trials",
        source=SOURCE,
        assumptions=_ASSUMPTIONS,
    )
    yield by_rank(chosen, trials, confidence)
    shown = pictures.series(spec, trials, SOURCE)
    if shown is not None:
        yield shown
    yield from utility.accuracies(spec, trials, "twin on all records")


def by_rank(chosen: Candidates, trials: Sequence[dps.Trial], confidence: float) -> dps.Series:
    """Success among the first m candidates for m = 1, 2, 4, ..., each with its exact two-sided interval."""
    tops = [1 << i for i in range(chosen.count.bit_length()) if 1 << i < chosen.count]
    counts = [successes(trials, top) for top in tops]
    intervals = [binomial.clopper_pearson(right, len(trials), confidence) for right in counts]
    masses = sorted(chosen.masses or [1.0 / chosen.count] * chosen.count, reverse=True)
    columns: dict[str, list[dps.Json]] = {
        "top": list(tops),
        "kappa": [min(1.0, math.fsum(masses[:top])) for top in tops],
        "success": [right / len(trials) for right in counts],
        "lower": [low for low, _ in intervals],
        "upper": [high for _, high in intervals],
    }
    return dps.Series(
        name="reconstruction-by-top",
        title=f"Attack: target among the first m of {chosen.count} candidates, {len(trials)} trials",
        columns=dps.FrozenMap(columns),
        units=dps.FrozenMap({name: "candidates" if name == "top" else "" for name in columns}),
        rigor="statistical",
        source=SOURCE,
        plot=dps.FrozenMap(
            {"x": "kappa", "y": ["success"], "band": ["lower", "upper"], "log": ["x"], "identity": True}
        ),
    )


def checks(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Steps, noise and sampling over all trials, held against what is declared."""
    evidence = [trial.evidence for trial in trials]
    wrong = next((int(e["steps"]) for e in evidence if int(e["steps"]) != spec.steps), spec.steps)
    yield dps.Check(
        assumption="steps",
        test="count of released states",
        p_value=1.0 if wrong == spec.steps else 0.0,
        observed="measured",
        declared=float(spec.steps),
        measured=float(wrong),
        detectable=0.0,
    )
    degrees = sum(int(e["noise"]["degrees"]) for e in evidence)
    if degrees:
        total = sum(float(e["noise"]["statistic"]) for e in evidence)
        measured = noise.two_sided(total, 1.0, degrees)
        if laplace(spec.phases):
            measured = _absolute(measured)
        yield _check("noise-scale", measured, "what released models show beside the records drawn")
    for number, phase in enumerate(spec.phases):
        if phase["sampling"]["scheme"] == "poisson":
            chances = sum(int(e["records"]) * int(phase["steps"]) for e in evidence)
            included = sum(int(e["included"][number]) for e in evidence)
            rate = float(phase["sampling"]["rate"])
            yield _check("sampling", sampling.inclusions(included, chances, rate), f"rate, phase {number + 1}")


def _absolute(squares: Measurement) -> Measurement:
    """What a test of chi-square numbers says of a scale where they are absolute values and not squares."""
    seen = squares.detectable
    return replace(
        squares,
        measured=squares.measured**2,
        detectable=None if seen is None else (1.0 + seen) ** 2 - 1.0,
    )


def _check(assumption: str, measured: Measurement, note: str) -> dps.Check:
    return dps.Check(
        assumption=assumption,
        test=measured.test,
        p_value=measured.p_value,
        observed="reported",
        declared=measured.declared,
        measured=measured.measured,
        detectable=measured.detectable,
        note=note,
    )
