"""Lower bounds, measured gaps, accuracies and conformance checks from recorded trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

import dpspec.contract as dps
from dpspec import kit
from dpspec.json_records import AboveZero, Amount, Count, Positive, Record, Row, read
from dpspec.stats import utility
from dpspec.stats.attacks import guess_counts
from dpspec.stats.conformance import table
from dpspec_modelmix.options import Attack, unmet_conditions

#: Smallest number of guesses per side. Each further number is three times the previous one.
_LEAST = 4

_COINS = kit.coins("each canary is included independently with probability 1/2")
_GUESSES = dps.Assumption(
    name="guess-count", status="declared", text="the number of guesses depends only on the number of canaries"
)


@dataclass(frozen=True)
class GapsAtStep(Row):
    """Gaps at one step: minimum in units of the threshold, fraction enforced, mean square."""

    step: Positive
    least: Amount
    enforced: Amount
    mean_square: Amount


@dataclass(frozen=True, kw_only=True)
class GapsOfRun(Record):
    gaps: tuple[GapsAtStep, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeastGap(Record):
    """Minimum gap of a run in units of the threshold (None if a gap is NaN), and number of steps below 1."""

    below: Count
    least: Amount | None = None

    def problem(self) -> str | None:
        if self.least is not None and (self.least < 1.0) != (self.below > 0):
            return f"below must be {'above 0' if self.least < 1.0 else '0'} if the minimum gap is {self.least}"
        return None


@dataclass(frozen=True, kw_only=True)
class Twins(Record):
    """DP-SGD runs for comparison: noise factor and epsilon of the run with equal epsilon, and the learning rate."""

    noise_factor: AboveZero
    epsilon: Amount
    learning_rate: AboveZero


def guess_pairs(canaries: int) -> tuple[tuple[int, int], ...]:
    """Numbers of guesses among the lowest and the highest scores, fixed independently of the inclusion bits."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [_LEAST * 3**k for k in range(20) if _LEAST * 3**k < most[1]]
    return (*((half, half) for half in halves), most)


def attack_power(spec: dps.Spec) -> tuple[dps.Power, ...]:
    assert spec.audit is not None
    attack = Attack.of(spec.audit.options)
    canaries, delta = attack.count * spec.audit.runs, kit.claimed_deltas(spec)[-1]
    guesses = [sum(pair) for pair in guess_pairs(canaries)]
    largest = guess_counts.largest(canaries, guesses, delta, spec.audit.confidence)
    return (
        dps.Power(
            at=dps.FrozenMap({"delta": delta}),
            epsilon=largest,
            method=f"one-run, all-iterates, {canaries} {attack.kind} canaries",
            note="the uniform noise of mixing hides canaries: expect much less",
        ),
    )


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    yield from lower_bounds(spec, trials)
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
    yield from _accuracies(spec, trials)
    evidence = [trial.evidence for trial in trials]
    yield from table.checks(spec.phases, evidence, privacy=spec.data_privacy)
    recorded = [trial.evidence.get("internal", {}).get("gap") for trial in trials]
    if not unmet_conditions(spec) and any(gap is not None for gap in recorded):  # redacted results have none
        gaps = [
            read(
                LeastGap,
                {k: v for k, v in gap.items() if v is not None} if isinstance(gap, Mapping) else gap,
                f"evidence of trial {n}.internal.gap",
            )
            for n, gap in enumerate(recorded, start=1)
        ]
        below, known = sum(gap.below for gap in gaps), [gap.least for gap in gaps if gap.least is not None]
        if known or below:
            least = min(known, default=None)
            yield dps.Check(
                assumption="gap",
                test="minimum gap over all coordinates and steps, in units of the threshold",
                p_value=1.0 if below == 0 else 0.0,
                observed="reported",
                declared=1.0,
                measured=least,
                detectable=0.0,
                note="gaps below the threshold" if below else "every gap",
                privacy=spec.data_privacy,
            )


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    assert spec.audit is not None
    attack = Attack.of(spec.audit.options)
    outcomes = [kit.fair_coins(kit.recorded(trial, "outcome"), attack.count) for trial in trials]
    canaries, confidence = sum(map(len, outcomes)), spec.audit.confidence
    guesses, correct = guess_counts.counts(outcomes, guess_pairs(canaries))
    delta = kit.claimed_deltas(spec)[-1]
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


def _accuracies(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Finding | dps.Evidence]:
    """Mean accuracy over the trials by split: ModelMix and both DP-SGD runs."""
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
    """Number of real records; 0 if the backend logs no batches."""
    log = trial.evidence.get("sampling_log")
    return 0 if log is None else max(0, int(log["records"]) - str(trial.evidence["outcome"]).count("1"))
