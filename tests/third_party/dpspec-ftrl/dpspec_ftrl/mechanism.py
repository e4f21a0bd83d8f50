"""The mechanism ``ftrl``: its keys, its bound, the trainings that are attacked, and what is checked of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar

import dpspec.contract as dps
from dpspec import kit
from dpspec_ftrl.encoders import effect, encoder_of

if TYPE_CHECKING:
    import numpy as np

    from dpspec.accounting import Interval

#: Backends whose noise is independent from step to step.
_INDEPENDENT = ("native", "opacus", "recorded")

#: Beyond so many steps sensitivities take too long, and the dense matrix of the attack too much memory.
_MOST_STEPS, _MOST_ATTACKED = 100_000, 2_000

_SOURCE = (
    "Denisov, McMahan, Rush, Smith and Thakurta 2022, Theorem 2.1; sensitivity: Choquette-Choo et al. 2023; "
    "profile: Balle and Wang 2018"
)

_ATTAINED = "a record in the worst slot whose gradient has the clip norm and one direction at all its steps, or is zero"

_ASSUMPTIONS = kit.dp_sgd_assumptions(
    noise_scale="the noise is C^-1 Z, with Gaussian Z of the declared scale",
    independent_noise="the rows of Z are independent",
    sampling="batches are cyclic: a record takes part once in every separation steps",
)


class Matrix(kit.AttackedMechanism):
    """DP-FTRL: clipped gradients of cyclic batches, with noise correlated by a banded matrix."""

    kind = "ftrl"
    schema: ClassVar = {
        "bands": kit.integer(
            "How many bands C has: the first of the square root of the prefix sums, the diagonal among them.",
            least=1,
            most=64,
            default=4,
        ),
        "separation": kit.integer("A record takes part once in every so many steps.", least=1, most=10**5),
        "noise_multiplier": kit.number(
            "Standard deviation of Z in units of the clip norm, whatever the sensitivity of C.", least=1e-3, most=1e6
        ),
        "clip_norm": kit.number("To which l2 norm each gradient is clipped.", above=0, most=1e6, default=1.0),
    }
    source = _SOURCE
    method = "Gaussian pair of the encoder's sensitivity"
    rigor = "certified"
    scope = dps.Scope(adjacency="zero-out")
    assumptions = _ASSUMPTIONS
    example = files(__package__).joinpath("example.yaml").read_text(encoding="utf-8")
    iterative = True
    noise = "gaussian"
    adversary = "gradient"
    access = "all-iterates"
    attack = "likelihood ratio of the decorrelated sums"

    @classmethod
    def offer(cls) -> dps.Mechanism:
        """The descriptor, with claims about mu too: all that such a mechanism leaks is one Gaussian pair."""
        return replace(super().offer(), claims=frozenset({"approx-dp", "pure-dp", "gdp"}))

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterable[dps.Diagnostic]:
        """Say what the schema cannot: what an attack needs, and what neither theory nor attack covers."""
        if spec.mechanism.get("phases") is not None:
            yield kit.unsupported("one matrix spans all steps: give steps, no phases", ("mechanism", "phases"))
        most = _MOST_STEPS if spec.audit is None else _MOST_ATTACKED
        if spec.steps > most:
            why = "sensitivities are summed" if spec.audit is None else "the attack decodes all steps at once"
            yield kit.bad_value(f"steps must be at most {most}, as {why}, got {spec.steps}", ("mechanism", "steps"))
        if spec.audit is None:
            return
        yield from super().check(spec, facts)
        yield from kit.requires_model(facts)
        needs = ("iterates", "noise-log", "sampling-log", "gradient-canaries")
        yield from kit.requires_capabilities(spec, facts, dict.fromkeys(needs))
        if spec.training.kind in _INDEPENDENT:
            message = f"backend {spec.training.kind!r} has no correlated noise; 'ftrl' has"
            yield kit.unsupported(message, ("training", "backend"))
        for key in ("optimizer", "schedule"):
            if spec.training.get(key) is not None:
                message = f"this attack undoes plain descent at one rate: leave {key} out"
                yield kit.unsupported(message, ("training", key), "without audit the bound alone holds for any")

    def epsilon(self, spec: dps.Spec, delta: float, group_size: int) -> Interval | float:
        """The epsilon of N(0, 1) against N(mu, 1) at ``delta``; none at 0."""
        from dpspec.accounting import Interval, PrivacyLoss

        if delta == 0.0:
            return math.inf
        low, high = self.mu(spec, group_size)
        least = PrivacyLoss.gaussian(1.0, low).epsilon(delta)
        most = least if low == high else PrivacyLoss.gaussian(1.0, high).epsilon(delta)
        return Interval(least.lower, most.upper, most.method, least.lower_method)

    def mu(self, spec: dps.Spec, group_size: int) -> tuple[float, float]:
        """The mechanism's mu, from below and from above; see :func:`~dpspec_ftrl.encoders.effect`."""
        options = spec.phases[0]
        return effect(encoder_of(options), int(options["separation"]), options.noise_multiplier, group_size)

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterable[dps.Finding]:
        """Epsilon and mu of every group size; also from below, where they are attained.

        That is where models show all noisy sums: with plain descent.
        """
        from dpspec.accounting import Interval, certified_lower, certified_upper

        attained = spec.training.get("optimizer") is None
        found = [one for one in super().bound(spec, context) if isinstance(one, dps.Finding)]
        for size in sorted({*spec.threat_model.group_size, *(claim.group_size for claim in spec.claims)}):
            between = Interval(*self.mu(spec, size)).by("exact whole numbers, square root rounded outward")
            found.append(
                certified_upper(
                    "mu",
                    between,
                    scope=self.scope,
                    source=_SOURCE,
                    at={"group_size": size},
                    assumptions=self.assumptions,
                )
            )
        for upper in found:
            yield upper
            if attained and upper.lower is not None:
                between = Interval(upper.lower, upper.value).by(upper.method)
                lower = certified_lower(upper, between, source=_ATTAINED)
                yield from () if lower is None else (lower,)

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """What core plans, with the cost of training, and the epsilon that this attack can be expected to show."""
        plan = super().plan(spec, facts)
        if spec.audit is None:
            return plan
        from dpspec_ftrl.decoding import LOOKS

        options = spec.phases[0]
        moved = math.sqrt(encoder_of(options).moved(int(options["separation"])))
        each, made = options.noise_multiplier, spec.audit.runs * int(spec.audit.options["releases"])
        power = []
        for size in spec.threat_model.group_size:
            mu = size * moved / each
            for delta in kit.claimed_deltas(spec, size):
                shown = _expected(made - made // 2, made // 2, mu, delta, spec.audit.confidence)
                at = dps.FrozenMap({"delta": delta, "group_size": size})
                power.append(dps.Power(at=at, epsilon=shown, method=f"many-run, {made} trainings, mu {mu:.3g}"))
        batch = facts.records / int(options["separation"])
        parameters = facts.parameters or 0
        seconds = kit.training_seconds(parameters, batch * options.steps, options.steps)
        kept = 8 * made * options.steps * min(LOOKS, parameters) + 24 * options.steps**2
        return replace(
            plan,
            seconds=seconds * made * len(spec.threat_model.group_size),
            memory_bytes=plan.memory_bytes + kit.training_bytes(facts) + kept,
            power=tuple(power),
        )

    def release(
        self, inputs: dps.FrozenMap, context: dps.Context, index: int, group_size: int, coins: np.ndarray[Any, Any]
    ) -> kit.Releases:
        """Train once per coin, with the worst record or with it zeroed out; score what is seen along its gradient."""
        import numpy as np

        from dpspec_ftrl.attack import Watch, direction_of, looks_of, plant
        from dpspec_ftrl.decoding import expected, whitener

        phase = dps.Phase.all_of(inputs["mechanism"])[0]
        encoder, separation = encoder_of(phase), int(phase["separation"])
        white = whitener(encoder)
        added = expected(white, 0, separation)
        scores, noises, told = [], [], {"astray": 0, "drawn": 0}
        base = self.job(inputs, context, index, phase)
        scale = float(base.options["learning_rate"])
        scale /= 1.0 if base.options.get("reduction") == "sum" else base.expected_batch_size
        direction = direction_of(base.model, context.facts.classes)
        looks = looks_of(len(direction), context.seed(index, "looks"), base.device)
        weights = {name: value.clone() for name, value in base.model.state_dict().items()}
        for number, coin in enumerate(coins):
            watch = Watch(direction, scale, separation, looks)
            base.model.load_state_dict(weights)
            job = replace(
                base,
                seed=context.seed(index, "training", str(group_size), str(number)),
                canaries=plant(direction, bool(coin), 0, len(base.x), group_size, phase),
                observers=(watch,),
            )
            context.trainer.train(job)
            seen = white @ np.array(watch.sums) / phase.clip_norm
            scores.append(group_size * float(seen @ added) / phase.noise_multiplier**2)
            noises.append((white @ np.array(watch.noises) / phase.deviation).ravel())
            told = {"astray": told["astray"] + watch.astray, "drawn": told["drawn"] + watch.drawn}
        return kit.Releases(scores=np.array(scores), noise=np.concatenate(noises), told=told)

    def job(self, inputs: dps.FrozenMap, context: dps.Context, index: int, phase: dps.Phase) -> dps.TrainingJob:
        """A run of trial ``index``. Cyclic batches are none of core's schemes; ``fixed`` of their size stands in."""
        batch = max(1, context.facts.records // int(phase["separation"]))
        stood_in = phase.replace(sampling={"scheme": "fixed", "batch_size": batch})
        return kit.training_job(inputs, context, index, "training", phases=[stood_in], resumable=False)

    def noise_numbers(self, spec: dps.Spec, facts: dps.Facts) -> int:
        """One for each step and direction that is looked at."""
        from dpspec_ftrl.decoding import LOOKS

        return spec.steps * min(LOOKS, facts.parameters or 0)

    def further_checks(self, spec: dps.Spec, told: Mapping[str, float] | None) -> Iterable[dps.Check]:
        """Whether any record took part at other steps than is declared: exact, as the backend tells of its batches."""
        if told is not None and "astray" not in told:
            raise ValueError("told.astray is missing: how often records took part out of turn")
        astray = 0.0 if told is None else told["astray"]
        yield dps.Check(
            assumption="sampling",
            test="steps between a record's batches, exact",
            p_value=1.0 if astray == 0 else 0.0,
            observed="reported",
            declared=0.0,
            measured=None if told is None else astray,
            detectable=0.0,
            note="records that took part again at other than separation steps after their last time",
        )


def _expected(present: int, absent: int, mu: float, delta: float, confidence: float) -> float:
    """The lower bound on epsilon if the scores are the quantiles of N(mu, 1) and N(0, 1)."""
    import numpy as np
    from scipy import special

    from dpspec.stats.attacks import thresholds

    none, some = (special.ndtri((np.arange(n) + 0.5) / max(1, n)) for n in (absent, present))
    coins = np.arange(absent + present) >= absent
    return thresholds.epsilon_lower(thresholds.outcomes(np.concatenate((none, mu + some)), coins), delta, confidence)
