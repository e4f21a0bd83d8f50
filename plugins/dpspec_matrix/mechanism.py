"""The mechanism ``matrix``: its bounds, its attacked trainings, and their checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import dpspec.contract as dps
from dpspec import kit
from dpspec.contract.fragments import untrainable
from dpspec_matrix.options import BANDS, FIXED, NOISE_DIRECTIONS, SCHEMA, Schedule, refusals

if TYPE_CHECKING:
    import numpy as np

    from dpspec.accounting import Interval

_SOURCE = "Denisov, McMahan, Rush, Smith and Thakurta 2022, Theorem 2.1; docs/explanation/proofs/matrix.md"

#: Of schemes that draw steps.
_AMPLIFIED = {
    "cyclic-poisson": "Choquette-Choo et al. 2023, Theorem 4; docs/explanation/proofs/matrix.md, Theorems M3 and M7",
    "random-allocation": "docs/explanation/proofs/matrix.md, Theorems M4 and M8",
    "balls-in-bins": "docs/explanation/proofs/matrix.md, Theorems M4 and M8",
}

_ATTAINED = "gradients of the clip norm in the worst steps, along one direction or orthogonal, and 0 otherwise"

_ASSUMPTIONS = kit.dp_sgd_assumptions(
    noise_scale="the noise of all steps is C^-1 Z, with Gaussian Z of the declared scale",
    independent_noise="the rows of Z are independent",
    sampling="records take part as declared, in steps that depend on no other record",
)


class Matrix(kit.AttackedMechanism):
    """DP-FTRL: clipped gradients with noise that a matrix correlates across steps."""

    kind = "matrix"
    schema: ClassVar = SCHEMA
    source = _SOURCE
    rigor = "certified"
    scope = dps.Scope(adjacency="zero-out")
    assumptions = _ASSUMPTIONS
    example = Path(__file__).with_name("example.yaml").read_text(encoding="utf-8")
    iterative = True
    noise = "gaussian"
    adversary = "gradient"
    access = "all-iterates"
    attack = "likelihood ratio of the whitened sums"

    @classmethod
    def offer(cls) -> dps.Mechanism:
        return replace(super().offer(), claims=frozenset({"approx-dp", "pure-dp", "gdp"}))

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        yield from refusals(spec)
        if spec.audit is not None:
            yield from untrainable(spec, facts, ("iterates", "noise-log", "sampling-log", "gradient-canaries"))

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
        from dpspec_matrix.theory import epsilons

        if delta == 0.0:
            return math.inf
        return epsilons(Schedule.of(spec.mechanism.options), group_size, [delta])[0]

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        from dpspec_matrix import theory

        schedule, parameters = Schedule.of(spec.mechanism.options), context.facts.parameters
        directions = math.inf if parameters is None else parameters
        rows: list[tuple[str, int, float, float]] = []
        sizes = sorted({*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)})
        for done, size in enumerate(sizes):
            context.progress(done, len(sizes), "accounting")
            deltas = kit.claimed_deltas(spec, size)
            intervals = theory.epsilons(schedule, size, deltas, directions=directions)
            gap = theory.reduction(schedule, size, directions).reason
            for delta, epsilon in zip(deltas, intervals, strict=True):
                yield from self._findings(spec, "epsilon", {"delta": delta, "group_size": size}, epsilon, gap)
            if schedule.participation.scheme in FIXED:
                yield from self._findings(spec, "mu", {"group_size": size}, theory.mu_interval(schedule, size), gap)
            curve = theory.upper_epsilons(schedule, size, kit.PROFILE_DELTAS, directions)
            rows += [("zero-out", size, *point) for point in zip(curve, kit.PROFILE_DELTAS, strict=True)]
        context.progress(len(sizes), len(sizes), "accounting")
        yield kit.profile(rows, rigor="certified", source=self._source(schedule))

    def _findings(
        self, spec: dps.Spec, quantity: str, arguments: dict[str, dps.Json], interval: Interval, gap: str
    ) -> Iterator[dps.Finding]:
        """The upper end, and the lower one if models show all noisy sums: with plain descent."""
        from dpspec.accounting import certified_lower, certified_upper

        source = self._source(Schedule.of(spec.mechanism.options))
        upper = certified_upper(
            quantity,
            interval,
            at=arguments,
            scope=self.scope,
            source=f"{source}; the ends differ by {gap}" if gap else source,
            assumptions=self.assumptions,
        )
        yield upper
        if spec.training.get("optimizer") is None:
            lower = certified_lower(upper, interval, source=_ATTAINED)
            yield from () if lower is None else (lower,)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        plan = super().plan(spec, facts)
        if spec.audit is None:
            return plan
        schedule, parameters = Schedule.of(spec.mechanism.options), facts.parameters or 0
        trainings = spec.audit.runs * int(spec.audit.options["releases"])
        batch = facts.records * schedule.participation.rate / schedule.slots
        seconds = kit.training_seconds(parameters, batch * schedule.steps, schedule.steps)
        stored = 8 * trainings * schedule.steps * min(NOISE_DIRECTIONS, parameters) + 24 * schedule.steps**2
        return replace(
            plan,
            seconds=seconds * trainings * len(spec.threat_model.group_size),
            memory_bytes=plan.memory_bytes + kit.training_bytes(facts) + stored,
        )

    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: np.ndarray[Any, Any]
    ) -> kit.Releases:
        """Train once per coin, with the worst group or with it zeroed out."""
        import numpy as np

        from dpspec_matrix import attack
        from dpspec_matrix.encoders import encoder_of

        phase = dps.Phase.all_of(inputs["mechanism"])[0]
        schedule = Schedule.of(inputs["mechanism"])
        # the sampler replaces this scheme, which has the same expected batch size
        rate = schedule.participation.rate / schedule.slots
        phases = [phase.replace(sampling={"scheme": "poisson", "rate": rate})]
        base = kit.training_job(inputs, context, index, "training", phases=phases, resumable=False)
        matrix = encoder_of(schedule.encoder, schedule.steps).matrix()
        choices = list(attack.changes(schedule, group_size))
        is_sum = base.options.get("reduction") == "sum"
        scale = float(base.options["learning_rate"]) / (1.0 if is_sum else base.expected_batch_size)
        direction = attack.direction_of(base.model, context.facts.classes)
        noise_directions = attack.noise_directions_of(len(direction), context.seed(index, "noise"), base.device)
        weights = {name: value.clone() for name, value in base.model.state_dict().items()}
        scores, noises = [], []
        sums: dict[str, float] = {}
        for number, coin in enumerate(coins):
            canaries = attack.canaries(direction, bool(coin), schedule, len(base.x), group_size, phase.clip_norm)
            watch = attack.Watch(direction, scale, noise_directions, schedule, len(base.x) + canaries.count)
            base.model.load_state_dict(weights)
            seed = context.seed(index, "training", str(group_size), str(number))
            context.trainer.train(replace(base, seed=seed, canaries=canaries, observers=(watch,)))
            outputs = matrix @ np.array(watch.sums) / phase.clip_norm
            scores.append(attack.score(outputs, choices, phase.noise_multiplier))
            white = matrix @ np.array(watch.noises) / phase.deviation
            noises.append(white.ravel())
            counts = {"misplaced": watch.misplaced, "draws": watch.draws, "first_half": watch.first_half}
            for name, value in {**attack.band_energies(white), **counts, "numbers": white.size}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        return kit.Releases(scores=np.array(scores), noise=np.concatenate(noises), told=sums)

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        return spec.steps * min(NOISE_DIRECTIONS, facts.parameters or 0)

    def further_checks(self, spec: dps.Spec, told: Mapping[str, float] | None) -> Iterator[dps.Check]:
        """Correlation of the noise, by its frequencies after whitening; places of the records; their random draws."""
        from dpspec.stats import binomial
        from dpspec.stats.conformance import noise_tests

        schedule = Schedule.of(spec.mechanism.options)
        bands = min(BANDS, schedule.steps)
        names = {"numbers", "misplaced", "draws", "first_half", *(f"band{i}" for i in range(bands))}
        if told is not None and names - told.keys():
            raise ValueError(f"told.{min(names - told.keys())} is missing")
        worst = None
        for i in range(bands if told else 0):
            assert told is not None  # checked by the range
            rows = schedule.steps // bands + (i < schedule.steps % bands)
            band = noise_tests.two_sided(told[f"band{i}"], round(told["numbers"] / schedule.steps * rows))
            worst = band if worst is None or band.p_value < worst.p_value else worst
        yield dps.Check(
            assumption="independent-noise",
            test=f"chi-square of {bands} bands of frequencies of the whitened noise, Bonferroni",
            p_value=1.0 if worst is None else min(1.0, bands * worst.p_value),
            observed="reported",
            declared=1.0,
            measured=None if worst is None else worst.measured,
            detectable=None if worst is None else worst.detectable,
            note="standard deviation of C times the noise in the worst band of frequencies over the steps",
        )
        misplaced = None if told is None else told["misplaced"]
        yield dps.Check(
            assumption="sampling",
            test="places of the records, exact",
            p_value=0.0 if misplaced else 1.0,
            observed="reported",
            declared=0.0,
            measured=misplaced,
            detectable=0.0,
            note="records outside their declared steps, or missing from them",
        )
        if schedule.participation.scheme in FIXED:
            return
        slots = schedule.slots
        is_poisson = schedule.participation.scheme == "cyclic-poisson"
        rate = schedule.participation.rate if is_poisson else (slots + 1) // 2 / slots
        p_value, drawn, draws = 1.0, 0, 0
        if told is not None:
            drawn, draws = round(told["first_half"]), round(told["draws"])
            p_value = 0.0  # more records than there are draws
            if drawn <= draws:
                tails = binomial.at_least(drawn, draws, rate), binomial.at_most(drawn, draws, rate)
                p_value = min(1.0, 2.0 * min(tails))
        yield dps.Check(
            assumption="sampling",
            test="binomial, two-sided",
            p_value=p_value,
            observed="reported",
            declared=rate,
            measured=None if told is None else drawn / max(1, draws),
            detectable=None,
            note="share of drawn records" if is_poisson else "share of records in the first half of their epoch",
        )

    def _source(self, schedule: Schedule) -> str:
        return _AMPLIFIED.get(schedule.participation.scheme, _SOURCE)
