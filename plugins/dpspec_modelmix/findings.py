"""Epsilon with mixing, by the repaired theorem, and without; lower bounds, gaps, accuracies and checks from trials."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import dpspec.contract as dps
from dpspec import kit
from dpspec.accounting import Interval, certified_upper
from dpspec.json_records import AboveZero, Amount, Count, Record, read
from dpspec.stats import utility
from dpspec.stats.attacks import guess_counts
from dpspec.stats.conformance import table
from dpspec_modelmix import theory
from dpspec_modelmix.options import Attack, PhaseOptions, Segment, segments_of, unmet_conditions
from dpspec_modelmix.theory import LAPLACE_SOURCE, SCOPE, SOURCE

#: Assumptions of every bound.
BASE = kit.dp_sgd_assumptions(
    noise_scale="noise of the declared distribution and scale in every step",
    data_independent_hyperparameters="rate, divisor, learning rate, threshold and the first two models do not depend "
    "on rows",
)

#: Additional assumptions of the amplification.
MIXED = tuple(
    dps.Assumption(name=name, status="declared", text=text)
    for name, text in (
        ("mixing-weights", "every coordinate is mixed with an independent weight, uniform on [0, 1]"),
        ("gap", "the gap is at least the threshold in every coordinate and step"),
        ("hidden-weights", "neither weights nor noisy gradients nor their seeds are released"),
    )
)

#: Additional assumption of a gradient embedding.
SUBSPACE = dps.Assumption(
    name="public-subspace", status="declared", text="the subspace depends only on public records and released models"
)

_ONE_HOT = dps.Assumption(
    name="one-hot-worst",
    status="unchecked",
    text="the paper asserts without proof that the one-hot gradient is the worst",
)


def findings(spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
    segments = segments_of(spec.phases, spec.training.options, context.facts)
    deltas = kit.claimed_deltas(spec)
    if segments is None:
        yield from (_theorem(delta, math.inf, "without noise", "no noise, no bound", BASE) for delta in deltas)
        return
    base = BASE if PhaseOptions.of(spec.phases[0]).embedding is None else (*BASE, SUBSPACE)
    reasons = [reason for _, reason in unmet_conditions(spec)]
    curve = kit.CURVE_DELTAS if spec.audit is not None else ()
    deltas_of_curve = tuple(sorted({*deltas, *curve}))
    # DP-SGD with the same noise also bounds ModelMix. No pair attains it: mixing adds noise to the output of DP-SGD.
    plain = dict(zip(deltas_of_curve, _plain(tuple(theory.without_mixing(segments)), deltas_of_curve), strict=True))
    remark = f" ({'; '.join(reasons)})" if reasons else ""
    for delta, interval in plain.items():
        method = f"without mixing, {interval.method}{remark}"
        yield certified_upper(
            "epsilon", interval, at={"delta": delta}, scope=SCOPE, source="Ganesh 2024", assumptions=base, method=method
        )
    intervals = _plain(tuple(theory.without_mixing(segments)), kit.PROFILE_DELTAS)
    rows = [(SCOPE.adjacency, 1, e.upper, delta) for e, delta in zip(intervals, kit.PROFILE_DELTAS, strict=True)]
    yield kit.profile([row for row in rows if math.isfinite(row[2])], rigor="certified", source="Ganesh 2024")
    by_mean = any(PhaseOptions.of(phase).by_mean for phase in spec.phases)
    scopes: tuple[dps.Scope, ...] = (SCOPE,)
    if by_mean and "expected_batch_size" not in spec.training.options:
        # The divisor of an update is public and equal for both neighbors. Datasets with at least the declared number of
        # records have an equal or larger divisor, an equal or wider gap, and equal or smaller divergences (the noise
        # has a log-concave density). The bound does not cover smaller datasets.
        scopes = replace(SCOPE, min_records=context.facts.records), replace(SCOPE, data="this")
    for done, delta in enumerate(deltas):
        context.progress(done, len(deltas), "accounting")
        yield from _with_mixing(segments, delta, base, not reasons, scopes)


@lru_cache(maxsize=8)
def _plain(segments: tuple[Segment, ...], deltas: tuple[float, ...]) -> list[Interval]:
    """Epsilon of DP-SGD at each delta, cached for the cells of a matrix."""
    return theory.plain_epsilons(segments, deltas)


def _with_mixing(
    segments: Sequence[Segment],
    delta: float,
    base: tuple[dps.Assumption, ...],
    is_mixed: bool,
    scopes: Sequence[dps.Scope],
) -> Iterator[dps.Finding]:
    """Epsilon of integer orders without mixing, and epsilon with mixing if its conditions hold."""
    laplace = segments[0].noise == "laplace"
    if not laplace:
        plain = theory.gaussian_epsilon(theory.without_mixing(segments), delta).epsilon
        yield _theorem(delta, plain, "without mixing, rdp/integer-orders", "Mironov et al. 2019", base)
    if not is_mixed:
        return
    assumptions = (*base, *MIXED)
    if laplace:
        mixed, method = theory.freedman_epsilon(segments, delta), "Freedman, corrected Lemma D.2, any cut"
        for scope in scopes:
            yield _theorem(delta, mixed, method, LAPLACE_SOURCE, assumptions, scope)
        return
    repaired = theory.repaired_bound(tuple(segments), delta)
    text = f"A numerical check of 16 smaller shifts is not a proof: their largest ratio to it is {repaired.ratio:.6f}"
    one_hot = replace(_ONE_HOT, text=f"{_ONE_HOT.text}. {text}")
    method, source = "rdp/integer-orders, improved conversion", f"{SOURCE}; Canonne, Kamath & Steinke 2020"
    for scope in scopes:
        yield _theorem(delta, repaired.best.epsilon, "rdp/integer-orders", SOURCE, (*assumptions, one_hot), scope)
        yield _theorem(delta, repaired.improved.epsilon, method, source, (*assumptions, one_hot), scope)
    if theory.has_fractional_orders(segments):
        real = theory.real_epsilon(segments, delta)
        yield dps.Finding(
            quantity="epsilon",
            value=real.epsilon,
            bound="estimate",
            rigor="approximate",
            at=dps.FrozenMap({"delta": delta}),
            scope=SCOPE,
            method=f"rdp/fractional-orders, best at {real.order:g}",
            source=f"{SOURCE}; {theory.FRACTIONAL}",
            assumptions=(*assumptions, replace(_ONE_HOT, text=theory.FRACTIONAL)),
        )


def _theorem(
    delta: float,
    value: float,
    method: str,
    source: str,
    assumptions: tuple[dps.Assumption, ...],
    scope: dps.Scope = SCOPE,
) -> dps.Finding:
    position = {"delta": delta}
    return kit.theorem_upper(
        "epsilon", value, at=position, scope=scope, method=method, source=source, assumptions=assumptions
    )


#: Smallest number of guesses per side.
LEAST_GUESSES = 4

_COINS = kit.coins("each canary is included independently with probability 1/2")
_GUESSES = dps.Assumption(
    name="guess-count", status="declared", text="the number of guesses depends only on the number of canaries"
)


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


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    yield from lower_bounds(spec, trials)
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
        below, least_gaps = sum(gap.below for gap in gaps), [gap.least for gap in gaps if gap.least is not None]
        if least_gaps or below:
            least = min(least_gaps, default=None)
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
    guesses, correct = guess_counts.counts(outcomes, guess_counts.blind(canaries, least=LEAST_GUESSES))
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
    titles = {
        "modelmix": "ModelMix",
        "same-noise": f"DP-SGD with the same noise, learning rate {rate}",
        "same-epsilon": f"DP-SGD with {noise} times the noise, epsilon {about.epsilon:.4g} like ModelMix, "
        f"learning rate {rate}",
    }
    for name, text in titles.items():
        quantity = "accuracy" if name == "modelmix" else f"accuracy-{name}"
        counts = [m[name] for m in measured]
        yield from utility.from_counts(
            spec, counts, f"{text}, without canaries", kit.executed_scope(spec, adversary="none"), quantity
        )


def _records(trial: dps.Trial) -> int:
    """Number of real records; 0 if the backend logs no batches."""
    log = trial.evidence.get("sampling_log")
    return 0 if log is None else max(0, int(log["records"]) - str(trial.evidence["outcome"]).count("1"))
