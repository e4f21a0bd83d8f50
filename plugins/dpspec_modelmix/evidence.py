"""From what trials recorded to lower bounds, measured gaps, accuracies, and checks of the pipeline that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import dpspec.contract as dps
from dpspec import kit
from dpspec.stats import utility
from dpspec.stats.attacks import guess_counts
from dpspec.stats.conformance import run_checks
from dpspec.stats.conformance.evidence.json_records import AboveZero, Amount, Count, Positive, Record, Row, read
from dpspec_modelmix.options import Attack, unmet_conditions

#: The first guess count: from so many canaries on either side to all, each three times the one before.
_LEAST = 4

_COINS = kit.coins("each canary is planted by an independent fair coin")
_GUESSES = dps.Assumption(
    name="guess-count", status="declared", text="how many guesses count follows from the number of canaries alone"
)


@dataclass(frozen=True)
class GapsAtStep(Row):
    """The gaps at one step: the least in units of the threshold, the share that was enforced, the mean square."""

    step: Positive
    least: Amount
    enforced: Amount
    mean_square: Amount


@dataclass(frozen=True, kw_only=True)
class GapsOfRun(Record):
    """The gaps of a run: a few of its steps."""

    gaps: tuple[GapsAtStep, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeastGap(Record):
    """The least gap of a run in units of the threshold, None where one is no number, and how many steps are below."""

    below: Count
    least: Amount | None = None

    def problem(self) -> str | None:
        """Steps are below the threshold where the least gap is, and only then."""
        if self.least is not None and (self.least < 1.0) != (self.below > 0):
            return f"below must be {'above 0' if self.least < 1.0 else '0'} where the least gap is {self.least}"
        return None


@dataclass(frozen=True, kw_only=True)
class Twins(Record):
    """DP-SGD beside ModelMix: the noise of the twin of the same epsilon, that epsilon, and the twins' step size."""

    noise_factor: AboveZero
    epsilon: Amount
    learning_rate: AboveZero


def guess_pairs(canaries: int) -> tuple[tuple[int, int], ...]:
    """How many of the lowest and of the highest scores are guessed, fixed before any coin is seen."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [_LEAST * 3**k for k in range(20) if _LEAST * 3**k < most[1]]
    return (*((half, half) for half in halves), most)


def attack_delta(spec: dps.Spec) -> float:
    """The delta at which lower bounds are stated: the largest that a claim names."""
    return kit.claimed_deltas(spec)[-1]


def attack_power(spec: dps.Spec) -> tuple[dps.Power, ...]:
    """What the attack could show if every guess were right."""
    assert spec.audit is not None
    attack = Attack.of(spec.audit.options)
    canaries, delta = attack.count * spec.audit.runs, attack_delta(spec)
    guesses = [sum(pair) for pair in guess_pairs(canaries)]
    largest = guess_counts.largest(canaries, guesses, delta, spec.audit.confidence)
    return (
        dps.Power(
            at=dps.FrozenMap({"delta": delta}),
            epsilon=largest,
            method=f"one-run, all-iterates, {canaries} {attack.kind} canaries",
            note="mixing hides each canary among the uniform noise: much less is expected",
        ),
    )


def foreseen_checks(spec: dps.Spec, facts: dps.Facts) -> tuple[dps.Check, ...]:
    """The checks that a run will allow: what the loop tells of itself, for nothing is measured on mixed models."""
    assert spec.audit is not None
    planted = Attack.of(spec.audit.options).count // 2
    return kit.expected_checks(spec, facts, trials=spec.audit.runs, undone=False, planted=planted)


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Everything that trials say."""
    yield from lower_bounds(spec, trials)
    yield from _gaps(spec, trials)
    yield from _accuracies(spec, trials)
    evidence = [trial.evidence for trial in trials]
    yield from run_checks.checks(spec.phases, evidence, privacy=spec.data_privacy)
    if not unmet_conditions(spec):
        yield from _gap_check(spec, trials)


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """The coins in the order of the scores as evidence, and the lower bound that follows."""
    assert spec.audit is not None
    attack = Attack.of(spec.audit.options)
    outcomes = [kit.fair_coins(kit.recorded(trial, "outcome"), attack.count) for trial in trials]
    canaries, confidence = sum(map(len, outcomes)), spec.audit.confidence
    guesses, correct = guess_counts.counts(outcomes, guess_pairs(canaries))
    delta = attack_delta(spec)
    method = f"one-run, all-iterates, {attack.kind} canaries"
    evidence = dps.Evidence(
        id=f"one-run/{attack.kind}",
        kind="one-run-ladder",
        statistics=dps.FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
        # Canaries stand among each other.
        scope=kit.executed_scope(spec, adversary="gradient", data="planted", records=min(map(_records, trials))),
        at=dps.FrozenMap({"delta": delta}),
        method=method,
        source=guess_counts.SOURCE,
        power=guess_counts.largest(canaries, guesses, delta, confidence),
    )
    yield evidence
    yield kit.lower_from(evidence, confidence, method=f"{method}, {canaries} of them", assumptions=(_COINS, _GUESSES))


def _gaps(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Series]:
    run = kit.recorded_part(trials[0], GapsOfRun, "internal")
    if run is not None and run.gaps:
        names = ("step", "least gap", "share enforced", "mean square gap")
        yield kit.series(
            "gaps",
            "Gaps of the first run, in units of the threshold",
            kit.columns_of(names, map(astuple, run.gaps)),
            rigor="approximate",
            source="measured",
            units={"step": "steps"},
            x="step",
            y=names[1:],
            privacy=spec.data_privacy,
        )


def _gap_check(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Whether every coordinate had its gap at every step. Float64 keeps it exactly."""
    gaps = _least_gaps(trials)
    below, known = sum(gap.below for gap in gaps), [gap.least for gap in gaps if gap.least is not None]
    if known or below:
        least = min(known, default=None)
        yield dps.Check(
            assumption="gap",
            test="least gap over all coordinates and steps, in units of the threshold",
            p_value=1.0 if below == 0 else 0.0,
            observed="reported",
            declared=1.0,
            measured=least,
            detectable=0.0,
            note="gaps below the threshold" if below else "every gap",
            privacy=spec.data_privacy,
        )


def _least_gaps(trials: Sequence[dps.Trial]) -> list[LeastGap]:
    """The least gaps of all runs; empty where they were left out. Raises ``ValueError`` where a run has none."""
    told = [trial.evidence.get("internal", {}).get("gap") for trial in trials]
    if all(gap is None for gap in told):
        return []
    known = [{k: v for k, v in gap.items() if v is not None} if isinstance(gap, Mapping) else gap for gap in told]
    return [read(LeastGap, gap, f"evidence of trial {n}.internal.gap") for n, gap in enumerate(known, start=1)]


def _accuracies(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Finding | dps.Evidence]:
    """Accuracy by split of ModelMix and of both twins, the mean over the trials."""
    measured = [t.evidence.get("internal", {}).get("accuracy") for t in trials]
    measured = [m for m in measured if m is not None]
    if not measured:
        return
    about = next(twins for trial in trials if (twins := kit.recorded_part(trial, Twins, "twins")) is not None)
    noise, rate = f"{about.noise_factor:.4g}", f"{about.learning_rate:.4g}"
    words = {
        "modelmix": "ModelMix",
        "same-noise": f"DP-SGD with the same noise, learning rate {rate}",
        "same-epsilon": f"DP-SGD with {noise} times the noise, epsilon {about.epsilon:.4g} like ModelMix, "
        f"learning rate {rate}",
    }
    for name, text in words.items():
        quantity = "accuracy" if name == "modelmix" else f"accuracy-{name}"
        counts = [m[name] for m in measured]
        yield from utility.from_counts(
            spec, counts, f"{text}, without canaries", kit.executed_scope(spec, adversary="none"), quantity
        )


def _records(trial: dps.Trial) -> int:
    """How many records there were without any canary; 0 where the backend told of no batches."""
    log = trial.evidence.get("sampling_log")
    return 0 if log is None else max(0, int(log["records"]) - str(trial.evidence["outcome"]).count("1"))
