"""The audit of ``laplace-histogram``: bounds from theory, an attack on real releases, and a check of their noise."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dpspec.contract as dps
from dpspec_laplace_histogram import theory

#: Whose releases these are; another backend trains models.
BACKENDS = ("laplace-histogram", "careless-histogram")

SOURCE = "Laplace mechanism, Dwork, McSherry, Nissim and Smith 2006"
METHOD = "log-likelihood ratio of the release"
NOISE = dps.Assumption(name="noise-scale", status="declared", text="the noise has this scale on every count")


class LaplaceHistogramAudit(dps.Audit):
    """Bounds each claim, attacks each group size, and measures the noise."""

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Say what the schema cannot: who releases, and that an attack needs rows."""
        if spec.training.kind not in BACKENDS:
            yield dps.Diagnostic(
                code="unsupported",
                message=f"backend {spec.training.kind!r} trains models; a histogram is released by 'laplace-histogram'",
                path=("training", "backend"),
                help="write training: {backend: laplace-histogram}",
            )
        if spec.audit is not None and facts.digest is None:
            yield dps.Diagnostic(
                code="data-not-at-hand",
                message="data that is only declared cannot be attacked; leave audit out for bounds only",
                path=("data", "kind"),
            )

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding]:
        """Epsilon for every group size, at 0 and at every delta that is claimed."""
        for size, delta in _conditions(spec):
            yield dps.Finding(
                quantity="epsilon",
                value=theory.epsilon(spec.mechanism["scale"], theory.moved(spec.threat_model.adjacency, size), delta),
                bound="upper",
                rigor="theorem",
                method="laplace",
                source=SOURCE,
                at=dps.FrozenMap({"delta": delta, "group_size": size}),
                scope=dps.Scope(adjacency=spec.threat_model.adjacency),
                assumptions=(NOISE,),
            )

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """One chunk per run; a release takes some ten microseconds."""
        if spec.audit is None:
            return dps.Plan(chunks=(), seconds=0.0, memory_bytes=0)
        from dpspec.stats.attacks import thresholds

        released = spec.audit.runs * spec.audit.options["releases"]
        power = dps.Power(
            at=dps.FrozenMap({"delta": 0.0}),
            epsilon=thresholds.largest(released, released, 0.0, spec.audit.confidence),
            method=METHOD,
        )
        return dps.Plan(
            chunks=tuple((index,) for index in range(spec.audit.runs)),
            seconds=6e-5 * released * len(spec.threat_model.group_size),
            memory_bytes=1 << 20,
            power=(power,),
        )

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """Release histograms with and without each group; rank the two kinds by the likelihood ratio."""
        for index in indices:
            groups = [_attacked(inputs, context, index, size) for size in inputs["threat_model"]["group_size"]]
            yield dps.Trial(index=index, evidence=dps.FrozenMap({"groups": groups}))

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterable[dps.Outcome]:
        """What the attacks show of each group size, and whether the noise has the declared scale."""
        from dpspec.stats.attacks import thresholds

        assert spec.audit is not None  # without an audit there are no trials
        attack = dps.Scope(
            adjacency=spec.threat_model.adjacency,
            access="final-model",
            adversary="record",
            data="this",
            pipeline="executed",
        )
        every = [group for trial in trials for group in trial.evidence["groups"]]
        for size in spec.threat_model.group_size:
            groups = [group for group in every if group["group_size"] == size]
            scores = [s for g in groups for side in ("absent", "present") for s in g[side]]
            coins = [side == "present" for g in groups for side in ("absent", "present") for _ in g[side]]
            outcomes = thresholds.outcomes(scores, coins)
            at = dps.FrozenMap({"delta": 0.0, "group_size": size})
            yield dps.Evidence(
                id=f"likelihood-ratio-{size}",
                kind="many-run-ranked",
                statistics=dps.FrozenMap({"outcomes": outcomes}),
                at=at,
                method=METHOD,
                source=thresholds.SOURCE,
                scope=attack,
            )
            yield dps.Finding(
                quantity="epsilon",
                value=thresholds.epsilon_lower(outcomes, 0.0, spec.audit.confidence),
                bound="lower",
                rigor="statistical",
                confidence=spec.audit.confidence,
                at=at,
                method=METHOD,
                source=thresholds.SOURCE,
                scope=attack,
            )
        yield _noise_check(
            float(spec.mechanism["scale"]), sum(g["noise"] for g in every), sum(g["counts"] for g in every)
        )


def _attacked(inputs: dps.FrozenMap, context: dps.Context, index: int, size: int) -> dict[str, dps.Json]:
    """The scores of one run's releases with and without a group, and the size of their noise."""
    import numpy as np

    from dpspec_laplace_histogram.attack import Sees, score, with_group

    labels, classes = context.data.train_y, context.facts.classes
    sides = {"absent": labels, "present": with_group(labels, inputs["threat_model"]["adjacency"], size)}
    truth = {side: np.bincount(rows, minlength=classes) for side, rows in sides.items()}
    found: dict[str, dps.Json] = {"group_size": size, "noise": 0.0, "counts": 0}
    for side, rows in sides.items():
        scores = []
        for release in range(inputs["audit"]["releases"]):
            if context.cancelled():
                raise dps.Cancelled
            sees = Sees()
            seed = context.seed(index, side, str(size), str(release))
            context.trainer.train(job(inputs, context, rows, seed, sees))
            scores.append(round(score(sees.counts, truth["present"], truth["absent"]), 9))
            found["noise"] += float(abs(sees.counts - truth[side]).sum())
            found["counts"] += classes
        found[side] = scores
    return found


def job(inputs: dps.FrozenMap, context: dps.Context, rows: Any, seed: int, sees: dps.Observer) -> dps.TrainingJob:
    """One release of the histogram of ``rows``: no features, no batches, and what the backend fills for a model."""
    from dpspec_laplace_histogram.backend import Histogram

    return dps.TrainingJob(
        x=context.data.train_x[:0],
        y=rows,
        model=Histogram(context.facts.classes),  # type: ignore[arg-type]
        phases=(dps.FrozenMap({"scale": inputs["mechanism"]["scale"]}),),
        options=dps.FrozenMap(),
        expected_batch_size=float(len(rows)),
        device="cpu",
        seed=seed,
        observers=(sees,),
    )


def _noise_check(scale: float, absolute: float, counts: int) -> dps.Check:
    """Whether the mean absolute noise is the declared scale: the sum over the scale is a Gamma(counts, 1) variable."""
    from scipy import special

    level, power = 0.5e-6, 0.99
    low, high = special.gammaincinv(counts, level), special.gammainccinv(counts, level)
    down, up = 1.0 - low / special.gammaincinv(counts, power), high / special.gammaincinv(counts, 1.0 - power) - 1.0
    total = absolute / scale
    return dps.Check(
        assumption="noise-scale",
        test="exact law of the mean absolute noise",
        p_value=float(min(1.0, 2.0 * min(special.gammainc(counts, total), special.gammaincc(counts, total)))),
        observed="measured",
        declared=scale,
        measured=absolute / counts,
        detectable=float(max(down, up)),
    )


def _conditions(spec: dps.Spec) -> Iterator[tuple[int, float]]:
    """Every group size with every delta that is claimed for it, and with 0."""
    sizes = {(size, 0.0) for size in spec.threat_model.group_size}
    claimed = {(c.group_size, d) for c in spec.claims for d in (0.0, c.options.get("delta", 0.0))}
    yield from sorted(sizes | claimed)
