"""From what trials recorded to lower bounds, measured gaps, accuracies, and checks of the pipeline that ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec_modelmix.options import attack_of, lost

#: The first guess count of a ladder: from so many canaries on either side to all, each three times the one before.
_LEAST = 4

_COINS = dps.Assumption(
    name="coins", status="by-construction", text="each canary is planted by an independent fair coin"
)
_GUESSES = dps.Assumption(
    name="guess-count", status="declared", text="how many guesses count follows from the number of canaries alone"
)


def rungs(canaries: int) -> tuple[tuple[int, int], ...]:
    """How many of the lowest and of the highest scores are guessed, fixed before any coin is seen."""
    most = (canaries - canaries // 2, canaries // 2)
    halves = [_LEAST * 3**k for k in range(20) if _LEAST * 3**k < most[1]]
    return (*((half, half) for half in halves), most)


def attack_delta(spec: dps.Spec) -> float:
    """The delta at which lower bounds are stated: the largest that a claim names."""
    return max((float(c["delta"]) for c in spec.claims if c.kind == "approx-dp"), default=1e-5)


def power(spec: dps.Spec) -> tuple[dps.Power, ...]:
    """What the attack could show if every guess were right."""
    from dpspec.stats import ladder

    assert spec.audit is not None
    attack = attack_of(spec.document["audit"])
    canaries, delta = attack.count * spec.audit.runs, attack_delta(spec)
    guesses = [sum(rung) for rung in rungs(canaries)]
    largest = ladder.largest(canaries, guesses, delta, spec.audit.confidence)
    return (
        dps.Power(
            at=dps.FrozenMap({"delta": delta}),
            epsilon=largest,
            method=f"one-run, all-iterates, {canaries} {attack.kind} canaries",
            note="mixing hides each canary among the uniform noise: much less is expected",
        ),
    )


def outcomes(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
    """Everything that trials say."""
    from dpspec.stats import conformance

    yield from lower_bounds(spec, trials)
    yield from _gaps(spec, trials)
    yield from _accuracies(spec, trials)
    evidence = [trial.evidence for trial in trials]
    yield from conformance.checks(spec.phases, evidence, privacy=spec.data_privacy)
    if not lost(spec):
        yield from _gap_check(spec, trials)


def lower_bounds(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Evidence | dps.Finding]:
    """The coins in the order of the scores as evidence, and the lower bound that follows."""
    from dpspec.stats import ladder

    assert spec.audit is not None
    attack, told = attack_of(spec.document["audit"]), [str(trial.evidence["outcome"]) for trial in trials]
    canaries, confidence = sum(map(len, told)), spec.audit.confidence
    guesses, correct = ladder.counts(told, rungs(canaries))
    at, scope = dps.FrozenMap({"delta": attack_delta(spec)}), _scope(spec, "gradient")
    method = f"one-run, all-iterates, {attack.kind} canaries"
    yield dps.Evidence(
        id=f"one-run/{attack.kind}",
        kind="one-run-ladder",
        statistics=dps.FrozenMap({"canaries": canaries, "guesses": guesses, "correct": correct}),
        scope=scope,
        at=at,
        method=method,
        source=ladder.SOURCE,
        power=ladder.largest(canaries, guesses, at["delta"], confidence),
    )
    yield dps.Finding(
        quantity="epsilon",
        value=ladder.epsilon_lower(canaries, guesses, correct, at["delta"], confidence),
        bound="lower",
        rigor="statistical",
        at=at,
        scope=scope,
        method=f"{method}, {canaries} of them",
        source=ladder.SOURCE,
        confidence=confidence,
        assumptions=(_COINS, _GUESSES),
    )


def _gaps(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Series]:
    rows = trials[0].evidence.get("internal", {}).get("gaps")
    if rows:
        names = ("step", "least gap", "share enforced", "mean square gap")
        columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        yield dps.Series(
            name="gaps",
            title="Gaps of the first run, in units of the threshold",
            columns=dps.FrozenMap(columns),
            units=dps.FrozenMap({name: "steps" if name == "step" else "" for name in names}),
            rigor="approximate",
            source="measured",
            privacy=spec.data_privacy,
            plot=dps.FrozenMap({"x": "step", "y": list(names[1:])}),
        )


def _gap_check(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """Whether every coordinate had its gap at every step. Float64 keeps it exactly."""
    kept = [trial.evidence.get("internal", {}).get("gap") for trial in trials]
    told = [gap for gap in kept if gap is not None and gap["least"] is not None]
    if told:
        below, least = sum(int(t["below"]) for t in told), min(float(t["least"]) for t in told)
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


def _accuracies(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Finding | dps.Evidence]:
    """Accuracy by split of ModelMix and of both twins, the mean over the trials."""
    from dpspec.stats import utility

    measured = [t.evidence.get("internal", {}).get("accuracy") for t in trials]
    measured = [m for m in measured if m is not None]
    if not measured:
        return
    about = next(t.evidence["twins"] for t in trials if "twins" in t.evidence)
    noise, rate = f"{about['noise_factor']:.4g}", f"{about['learning_rate']:.4g}"
    words = {
        "modelmix": "ModelMix",
        "same-noise": f"DP-SGD with the same noise, learning rate {rate}",
        "same-epsilon": f"DP-SGD with {noise} times the noise, epsilon {about['epsilon']:.4g} like ModelMix, "
        f"learning rate {rate}",
    }
    for name, text in words.items():
        quantity = "accuracy" if name == "modelmix" else f"accuracy-{name}"
        counts = [m[name] for m in measured]
        yield from utility.from_counts(spec, counts, f"{text}, without canaries", _scope(spec, "none"), quantity)


def _scope(spec: dps.Spec, adversary: str) -> dps.Scope:
    return dps.Scope(
        adjacency=spec.threat_model.adjacency,
        unit=spec.threat_model.unit,
        access=spec.threat_model.access,
        adversary=adversary,
        # An attack's canaries stand among each other; accuracy is of models trained without them.
        data="this" if adversary == "none" else "planted",
        pipeline="executed",
    )
