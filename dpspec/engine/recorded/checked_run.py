"""A recorded run against a claim: what ran, what it costs, what its accountant says, what its canaries show, and
whether it conforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dpspec.contract import Assumption, Check
from dpspec.contract.findings import Channel
from dpspec.engine.judging.conformance_status import CONSTANTS, conformance_of, rejected
from dpspec.engine.recorded.cautions import unscored_of
from dpspec.engine.recorded.channels import hyperparameters
from dpspec.engine.recorded.channels.assumptions import assumptions, computed_from_records, maybe_computed
from dpspec.engine.recorded.channels.table import ASSUMABLE, channel_of, channels, complete, require_known
from dpspec.engine.recorded.costs.canary_bound import CanaryBound, canary_bound, told_against
from dpspec.engine.recorded.costs.epsilons import (
    ADD_REMOVE,
    ZERO_OUT,
    Cost,
    bare_cost,
    ordered_cost,
    poisson_cost,
)
from dpspec.engine.recorded.costs.told import Told, told_of
from dpspec.engine.recorded.half_precision import norm_excess
from dpspec.engine.recorded.own_checks import UNSCORED, along_directions, own_checks
from dpspec.engine.recorded.recorded_run import RecordedRun, read_run
from dpspec.engine.recorded.run_sums import InternalSums, bare_layers, evidence, internal_sums, scaled_squares
from dpspec.engine.recorded.schedule import (
    Stretch,
    asked_multipliers,
    noise_multipliers,
    poisson_rates,
    sampling_phases,
    stretches,
)
from dpspec.engine.results.decimals import lower, upper
from dpspec.engine.results.result import Conformance
from dpspec.errors import ExitCode, NothingToRunError
from dpspec.stats.conformance import run_checks

#: Of a claim about a run: ``proved`` of the schedule that ran, ``open``, ``refuted`` by canaries, or ``contradicted``
#: where they tell against the schedule that was recorded itself.
Verdict = Literal["proved", "open", "refuted", "contradicted"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a run: at delta in (0, 1), for groups of each size, for neighbours by ``adjacency``.

    epsilon: what is claimed, for the first of the group sizes; None where nothing is. assume: names of channels and
    assumptions that the user assumes where the recording leaves them open. public: names of hyperparameters that do not
    depend on the records, as the user declares; public_constants: all of them.
    """

    delta: float
    epsilon: float | None = None
    group_sizes: tuple[int, ...] = (1,)
    adjacency: str = "zero-out"
    public_constants: bool = False
    assume: tuple[str, ...] = ()
    public: tuple[str, ...] = ()

    @property
    def public_names(self) -> tuple[str, ...]:
        """Names of all hyperparameters that the user declares public. Raises ``UsageError`` for an unknown name."""
        require_known("public", self.public, hyperparameters.NAMES)
        return hyperparameters.NAMES if self.public_constants else self.public


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """The answer; ``verdict`` and ``reason`` are None and "" where nothing is claimed.

    costs: by group size. canaries: what they show, None where none were scored. measured: epsilon of a single record at
    the noise and the norms that were measured, an estimate, where these are not what the options ask for.
    """

    run: RecordedRun
    question: Question
    phases: tuple[Stretch, ...]
    costs: dict[int, Cost]
    told: Told | None
    canaries: CanaryBound | None
    measured: float | None
    checks: tuple[Check, ...]
    conformance: Conformance
    assumptions: tuple[Assumption, ...]
    channels: tuple[Channel, ...]
    verdict: Verdict | None
    reason: str

    @property
    def fine(self) -> bool:
        """Whether the claim is proved, where there is one, what ran conforms, and no canary tells against it."""
        against = self.canaries is not None and (self.canaries.contradicts or self.canaries.above)
        return self.verdict in (None, "proved") and self.conformance.status == "conforms-within" and not against

    @property
    def infinite(self) -> bool:
        """Whether no epsilon is finite, of single records or of groups."""
        return any(cost.interval is not None and math.isinf(cost.interval.upper) for cost in self.costs.values())

    @property
    def exit_code(self) -> ExitCode:
        """0 where the claim is proved and what ran conforms; without a claim 5, as nothing is proved; otherwise 1.

        Where no claim could be proved, as no epsilon is finite, it is 1 as well.
        """
        if not self.fine or self.infinite:
            return ExitCode.UNEXPECTED
        return ExitCode.NOTHING_TO_RUN if self.verdict is None else ExitCode.OK


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A run that was read, with the checks of what it did against what its own options say."""

    run: RecordedRun
    internal: InternalSums | None
    checks: tuple[Check, ...]


def look_at(path: Path) -> Looked:
    """Read the folder of a recorded run and make all checks.

    Raises ``RecordingError`` where the folder is none or was changed, ``NothingToRunError`` where no step was recorded.
    """
    run = read_run(path)
    if run.steps == 0:
        raise NothingToRunError(f"{path}: no step was recorded: the optimizer that was given never stepped")
    phases = sampling_phases(run)
    internal = internal_sums(run, phases)
    poisson = all(rate is not None for rate in poisson_rates(run))
    found = run_checks.of_runs(phases, [evidence(run, internal, poisson=poisson)])
    return Looked(run=run, internal=internal, checks=(*map(along_directions, found), *own_checks(run, internal)))


def check_run(path: Path, question: Question) -> CheckedRun:
    """Read the folder of a recorded run and answer the question; raises as :func:`look_at`."""
    looked = look_at(path)
    run, internal, checks = looked.run, looked.internal, looked.checks
    conformance = conformance_of("conforms-within", checks, max(1, len(checks)), executed=True)
    if conformance.status == "conforms-within":
        conformance = replace(conformance, reason=_limits(checks))
    costs = {size: cost_of(run, internal, question, size) for size in question.group_sizes}
    told = told_of(run, question.delta, costs.get(1))
    canaries = canaries_of(looked, question.delta)
    require_known("assume", question.assume, ASSUMABLE)
    size = question.group_sizes[0]
    known = assumptions(run, internal, question.adjacency, public=question.public_names, group_size=size)
    rests = complete(checks, known, question.assume)
    verdict, reason = _judged(run, question, costs, conformance, checks, rests)
    if canaries is not None and question.epsilon is not None:
        counted = question.adjacency == ADD_REMOVE and (
            computed_from_records(run) or maybe_computed(run, question.public_names)
        )
        verdict, reason = told_against(canaries, question.epsilon, counted=bool(counted)) or (verdict, reason)
    return CheckedRun(
        run=run,
        question=question,
        phases=tuple(stretches(run)),
        costs=costs,
        told=told,
        canaries=canaries,
        measured=_measured(run, internal, question, checks, len(checks)),
        checks=checks,
        conformance=conformance,
        assumptions=rests,
        channels=channels(checks, rests),
        verdict=verdict,
        reason=reason,
    )


def canaries_of(looked: Looked, delta: float) -> CanaryBound | None:
    """What the canaries of a run show of one record that is put to nothing; None where none were scored."""
    return canary_bound(
        looked.run,
        delta,
        lambda at: cost_of(looked.run, looked.internal, Question(delta=at, adjacency=ZERO_OUT), 1),
    )


def cost_of(run: RecordedRun, internal: InternalSums | None, question: Question, size: int) -> Cost:
    """What groups of ``size`` lose by the schedule that ran; without an interval where nothing bounds that, and why."""
    noise = noise_multipliers(run)
    known = [sigma for sigma in noise if sigma is not None]
    if len(known) < len(noise):
        what = "what the noise multiplier is, or whether there was noise, was not seen"
        return Cost(interval=None, reason=f"{what} at {len(noise) - len(known)} of {len(noise)} steps")
    return _bounded(run, internal, question, size, known)


def _bounded(
    run: RecordedRun, internal: InternalSums | None, question: Question, size: int, noise: Sequence[float]
) -> Cost:
    """The cost of the run's steps with these noise multipliers."""
    if run.header.clipping == "adaptive":
        reason = "Opacus' adaptive clipping divides its noisy count by the real batch size, which no accountant covers"
        return Cost(interval=None, reason=reason)
    bare = bare_cost(noise)
    if bare is not None:
        return bare
    quiet = bare_layers(run)
    if quiet:
        named = ", ".join(quiet[:3]) + (f" and {len(quiet) - 3} more" if len(quiet) > 3 else "")
        reason = f"some updates of {named} got no noise: nothing bounds what these parameters show"
        return Cost(interval=None, reason=reason)
    rates = [rate for rate in poisson_rates(run) if rate is not None]
    if len(rates) == len(noise):
        return poisson_cost(noise, rates, question.delta, size)
    ordered = run.header.scheme in ("shuffled", "sequential")
    if not ordered:
        told = {"none": "were not told of", "poisson": "were not seen at every step"}
        how = told.get(run.header.scheme, f"are {run.header.scheme} ({run.header.sampler})")
        return Cost(interval=None, reason=f"how likely batches are is not known: they {how}")
    if question.adjacency == ADD_REMOVE:
        reason = f"{run.header.scheme} batches all change when a record is added: nothing bounds that"
        return Cost(interval=None, reason=reason)
    sampling = internal.sampling if internal is not None else None
    if internal is None or internal.most_often is None or sampling is None or sampling.repeats:
        return Cost(interval=None, reason="in how many batches a record is was not seen, or some are in one twice")
    return ordered_cost(noise, internal.most_often, question.delta, size)


def _measured(
    run: RecordedRun, internal: InternalSums | None, question: Question, checks: Sequence[Check], family: int
) -> float | None:
    """Epsilon with each step's noise as long as it was, over the longest contribution; None where options hold.

    A step whose noise is as long as chance allows, within four standard deviations, counts as what its options ask for.
    """
    longest = 1.0
    if internal is not None:
        longest = max([1.0, *(v for v in internal.largest.tolist() if math.isfinite(v))])
    noise_off = any(c.assumption == "noise-scale" and rejected(c, family) for c in checks)
    scaled, asked = scaled_squares(run), asked_multipliers(run)
    known = [sigma for sigma in asked if sigma is not None]
    count = run.header.parameters
    longer = longest > (1.0 + run_checks.CLIP_TOLERANCE) * (1.0 + norm_excess(run))
    if not (noise_off or longer) or scaled is None or len(known) < len(asked) or not count:
        return None
    sizes = [math.sqrt(float(one) / count) for one in scaled]
    likely = [size if abs(size - 1.0) > 4.0 / math.sqrt(2.0 * count) else 1.0 for size in sizes]
    noise = [float(f"{sigma * size / longest:.3g}") for sigma, size in zip(known, likely, strict=True)]
    cost = _bounded(run, internal, question, 1, noise)
    return None if cost.interval is None else cost.interval.upper


def _judged(
    run: RecordedRun,
    question: Question,
    costs: dict[int, Cost],
    conformance: Conformance,
    checks: Sequence[Check],
    rests: Sequence[Assumption],
) -> tuple[Verdict | None, str]:
    if question.epsilon is None:
        return None, ""
    cost = costs[question.group_sizes[0]]
    if run.end is None:
        return "open", f"the recording has no end: what came after step {run.steps} is not known"
    if cost.interval is None:
        return "open", cost.reason
    claimed, low, high = question.epsilon, cost.interval.lower, cost.interval.upper
    if high > claimed:
        bounded = f"epsilon of the {_steps(run)} is bounded by {upper(high, against=claimed)} only"
        at_least = f"whoever sees every noisy sum learns {lower(low, against=claimed)} of the worst data"
        true = f"; {at_least}, which is more than the claim" if cost.tight and low > claimed else ""
        return "open", cost.reason or f"{bounded}{true}"
    if conformance.status != "conforms-within" and _only_unscored(checks):
        return "open", f"the attack that was planted is missing: {unscored_of(run)}"
    if conformance.status != "conforms-within":
        return "open", "what ran is not what its options and its accountant say: see Conformance"
    why, maybe = computed_from_records(run), maybe_computed(run, question.public_names)
    if why:
        return "open", f"{why}: that shows how large each batch was, whatever the noise, and no accountant counts it"
    constants = next(one for one in rests if one.name == CONSTANTS)
    doubts = any(run.options.doubts(question.public_names, private=True))
    if question.adjacency == ADD_REMOVE and maybe and constants.status == "unchecked" and not doubts:
        shows = "a number that is computed from the records shows how many there are, whatever the noise"
        return "open", f"{maybe}: {shows}. If it does not depend on them, declare so with --public-constants"
    doubted = next((one for one in rests if one.status in ("unchecked", "false")), None)
    if doubted is not None:
        how = "violated" if doubted.status == "false" else "open"
        channel = channel_of(doubted.name) or doubted.name
        return "open", f"the channel {channel} is {how}: {doubted.name}: {doubted.text}"
    return "proved", f"epsilon of the {_steps(run)} is at most {upper(high, against=claimed)}"


def _only_unscored(checks: Sequence[Check]) -> bool:
    """Whether all that is wrong with a run is that its canaries were not scored, or their scores were kept back."""
    bad = [check for check in checks if rejected(check, len(checks))]
    return bool(bad) and all(check.test.startswith(UNSCORED) for check in bad)


def _steps(run: RecordedRun) -> str:
    return f"{run.steps} steps that were recorded" if run.steps > 1 else "one step that was recorded"


def _limits(checks: Sequence[Check]) -> str:
    """What no check saw: by the sharpest test of each assumption, the deviation from which on it would have."""
    sharpest: dict[str, float] = {}
    for check in checks:
        if check.detectable is not None and 0.0 < check.detectable < math.inf:
            sharpest[check.assumption] = min(check.detectable, sharpest.get(check.assumption, math.inf))
    exact = dict.fromkeys(check.assumption for check in checks if check.detectable == 0.0)
    said = "No check is rejected."
    if sharpest:
        sizes = ", ".join(f"{name} {upper(100.0 * size, digits=2)}%" for name, size in sharpest.items())
        said += f" The sharpest test of each sees a deviation from this size on: {sizes}."
    return f"{said} Exact checks were made of {', '.join(exact)}." if exact else said
