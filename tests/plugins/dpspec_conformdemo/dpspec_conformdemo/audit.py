"""The audit of ``conformdemo``: bounds from theory, an attack on real releases, and a check of their noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random

import dpspec.contract as dps
from dpspec_conformdemo import theory
from dpspec_conformdemo.mechanism import release

#: The bounds hold for every data set, and for whoever knows all of it but the group.
EVERYONE = dps.Scope(adjacency="add-remove")

#: The attack knows the data and chooses which records to add; it sees one release.
ATTACK = dps.Scope(adjacency="add-remove", access="final-model", adversary="record", data="this", pipeline="executed")

COUNTS = ("present", "absent", "true_positives", "false_positives")
METHOD = "threshold on the release"
SOURCE = "Laplace mechanism, Dwork, McSherry, Nissim and Smith 2006"


class ConformdemoAudit(dps.Audit):
    """Bounds each claim, attacks each group size, and measures the noise."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Say what the schema cannot: the label must exist, and an attack needs rows."""
        label = spec.mechanism["label"]
        if label >= facts.classes:
            yield dps.Diagnostic(
                code="bad-value",
                message=f"label must be below {facts.classes}, the number of classes, got {label}",
                path=("mechanism", "label"),
            )
        if spec.audit is not None and facts.digest is None:
            yield dps.Diagnostic(
                code="data-not-at-hand",
                message="data that is only declared cannot be attacked; leave audit out for bounds only",
                path=("data", "kind"),
            )

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding]:
        """The exact epsilon at every delta that is claimed, and at 0, for every group size."""
        for size, delta in _conditions(spec):
            yield dps.Finding(
                quantity="epsilon",
                value=theory.epsilon(spec.mechanism["scale"], size, delta),
                bound="upper",
                rigor="theorem",
                method="laplace",
                source=SOURCE,
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                scope=EVERYONE,
                assumptions=(dps.Assumption(name="noise-scale", status="declared", text="the noise has this scale"),),
            )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One chunk per run; a release takes about a microsecond."""
        if spec.audit is None:
            return dps.Plan(chunks=(), seconds=0.0, memory_bytes=0)
        from dpspec.stats.attacks import thresholds

        released = spec.audit.runs * spec.audit.options["releases"]
        confidence, power = spec.audit.confidence, []
        for size in spec.threat_model.group_size:
            right, wrong = released // 2, round(0.5 * math.exp(-size / spec.mechanism["scale"]) * released)
            expected = thresholds.fixed_epsilon_lower(released, released, right, wrong, 0.0, confidence)
            power.append(
                dps.Power(
                    at=dps.FrozenMap({"delta": 0.0, "group_size": size}),
                    epsilon=thresholds.fixed_largest(released, released, 0.0, confidence),
                    method="many-run",
                    note=f"about {expected:.2f} expected if the pipeline is as declared",
                )
            )
        return dps.Plan(
            chunks=tuple((index,) for index in range(spec.audit.runs)),
            seconds=2e-6 * released * len(spec.threat_model.group_size),
            memory_bytes=1 << 20,
            power=tuple(power),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """Release the count with and without each group, and guess which it was.

        The guess is "present" at or above the count with the group: fixed beforehand, and the best there is, since
        there the two densities differ by the factor exp(epsilon).
        """
        mechanism, releases = inputs["mechanism"], inputs["audit"]["releases"]
        count = int((context.data.train_y == mechanism["label"]).sum())
        scale = mechanism["scale"]
        for index in indices:
            if context.cancelled():
                raise dps.Cancelled
            groups = []
            for size in inputs["threat_model"]["group_size"]:
                random = Random(context.seed(index, "noise", str(size)))
                present = [release(count + size, scale, random) for _ in range(releases)]
                absent = [release(count, scale, random) for _ in range(releases)]
                noise = [abs(r - count - size) for r in present] + [abs(r - count) for r in absent]
                groups.append(
                    {
                        "group_size": size,
                        "present": releases,
                        "absent": releases,
                        "true_positives": sum(r >= count + size for r in present),
                        "false_positives": sum(r >= count + size for r in absent),
                        "noise": math.fsum(noise),
                    }
                )
            yield dps.Trial(index=index, evidence=dps.FrozenMap({"groups": groups}))

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        """What the attacks show of each group size, and whether the noise has the declared scale."""
        from dpspec.stats.attacks import thresholds

        assert spec.audit is not None  # without an audit there are no trials
        for size in spec.threat_model.group_size:
            groups = [g for trial in trials for g in trial.evidence["groups"] if g["group_size"] == size]
            counts = {name: sum(g[name] for g in groups) for name in COUNTS}
            yield dps.Evidence(
                id=f"threshold-{size}",
                kind="many-run",
                statistics=dps.FrozenMap(counts),
                at=dps.FrozenMap({"group_size": size}),
                method=METHOD,
                source=SOURCE,
                scope=ATTACK,
            )
            for delta in [delta for attacked, delta in _conditions(spec) if attacked == size]:
                yield dps.Finding(
                    quantity="epsilon",
                    value=thresholds.fixed_epsilon_lower(**counts, delta=delta, confidence=spec.audit.confidence),
                    bound="lower",
                    rigor="statistical",
                    confidence=spec.audit.confidence,
                    at=dps.FrozenMap({"delta": delta, "group_size": size}),
                    method=METHOD,
                    source=SOURCE,
                    scope=ATTACK,
                )
        yield _noise_check(spec.mechanism["scale"], [g for trial in trials for g in trial.evidence["groups"]])


def _conditions(spec: dps.Spec) -> list[tuple[int, float]]:
    """Every group size with every delta that is claimed for it, and with 0."""
    sizes = {(size, 0.0) for size in spec.threat_model.group_size}
    claimed = {(c.group_size, d) for c in spec.claims for d in (0.0, c.options.get("delta", 0.0))}
    return sorted(sizes | claimed)


def _noise_check(scale: float, groups: Sequence[dps.FrozenMap]) -> dps.Check:
    """Whether the mean absolute noise is the declared scale.

    The sum of n absolute values over the scale is Gamma(n, 1), for which P[mean beyond r] <= exp(-n (r - 1 - ln r)) on
    either side of 1 (Chernoff), so that twice this is a p-value. It is at most 1e-6 where the mean deviates by a + a^2,
    a = sqrt(2 ln(2e6) / n), which a pipeline with the deviation ``detectable`` does with probability 0.99.
    """
    n = sum(group["present"] + group["absent"] for group in groups)
    measured = math.fsum(group["noise"] for group in groups) / n
    ratio = measured / scale
    needed = math.sqrt(2.0 * math.log(2e6) / n)
    spread = 2.33 / math.sqrt(n)
    exponent = n * (ratio - 1.0 - math.log(ratio)) if ratio > 0 else math.inf
    return dps.Check(
        assumption="noise-scale",
        test="Chernoff bound on the mean absolute noise",
        p_value=min(1.0, 2.0 * math.exp(-exponent)),
        observed="measured",
        declared=scale,
        measured=measured,
        detectable=(needed + needed**2 + spread) / (1.0 - spread) if spread < 1.0 else None,
    )
