"""Findings on a recorded run: bounds of its schedule, and of a shuffled loader, with their assumptions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpspec.accounting import Interval, certified_lower, certified_upper
from dpspec.contract import Assumption, Claim, Finding, Scope
from dpspec.decimals import exact, lower
from dpspec_recording.judge.bounds import ScheduleBounds, shuffled_epsilon
from dpspec_recording.judge.recorded_run import RecordedRun
from dpspec_recording.observers.update_rule.gradient_map import GradientMap
from dpspec_recording.observers.update_rule.noisy_gradients import NoisyGradients
from dpspec_recording.observers.update_rule.reported_gradients import ReportedGradients

#: Optimizers of torch whose updates an adversary with access to all iterates can invert.
_INVERTIBLE = frozenset({"torch.optim.sgd.SGD", "torch.optim.SGD", "SGD"})

#: The theorems of the bounds.
THEOREMS = "the executed schedule; Ganesh 2024, Theorem 3.1; Dong, Roth & Su 2022, Corollary 3.3"


def schedule_findings(
    schedule: ScheduleBounds, delta: float, size: int, adjacency: str, needed: tuple[Assumption, ...]
) -> Iterator[Finding]:
    """The bound of the recorded schedule, and its lower bound if the worst case is attained."""
    epsilon = schedule.epsilon(adjacency, delta, size)
    interval = epsilon.interval or Interval(0.0, math.inf)
    bounded = math.isfinite(interval.upper)
    bound = certified_upper(
        "epsilon",
        interval if bounded else Interval(0.0, math.inf),
        at={"delta": delta, "group_size": size},
        scope=Scope(adjacency=adjacency, access="all-iterates", adversary="gradient"),
        source=THEOREMS,
        assumptions=needed if bounded else (),
        method=epsilon.method,
    )
    yield replace(bound, charges=epsilon.charges, lower=bound.lower if epsilon.tight or not bounded else None)
    if bounded and epsilon.tight and _reveals_sums(schedule.run):
        attained = certified_lower(bound, interval, source=f"{THEOREMS}; attained: section 3.3")
        if attained is not None:
            yield attained


def _reveals_sums(run: RecordedRun) -> bool:
    """Whether an adversary with access to all iterates can compute the noisy sums.

    A map of the noisy gradient may hide a part of the sums, and a dampening of 1 hides all later gradients.
    """
    noisy, reported, maps = run.fact(NoisyGradients), run.fact(ReportedGradients), run.fact(GradientMap)
    dampening = run.options.first.get("dampening")
    is_mapped = maps is not None and maps.explained > 0
    is_mapped |= noisy is not None and noisy.changed + noisy.scaled > 0
    is_mapped |= reported is not None and reported.different > 0
    is_damped = "dampening" in run.options.unexplained or (dampening is not None and 1.0 in dampening.values)
    is_invertible = (run.header.inner or run.header.optimizer) in _INVERTIBLE and not is_mapped and not is_damped
    return is_invertible and bool((run["learning_rate"] > 0.0).all())


def hidden_sums(claims: Sequence[Claim], run: RecordedRun, findings: Sequence[Finding]) -> Iterator[str]:
    """Notes on claims below the lower end of the noisy sums, if the optimizer may hide these sums."""
    if _reveals_sums(run):
        return
    upper_bounds = [finding for finding in findings if finding.bound == "upper"]
    ends = {(f.scope.adjacency, f.at["delta"], f.at["group_size"]): f.lower for f in upper_bounds}
    for claim in claims:
        end = ends.get((claim.adjacency, claim.options.get("delta"), claim.group_size))
        claimed = claim.options.get("epsilon")
        if end is not None and isinstance(claimed, float) and claimed < end:
            yield (
                f"The noisy sums of all steps have epsilon at least {lower(end)}, above the claimed {exact(claimed)}, "
                "as `dpspec check --history` reports. SGD reveals these sums to an adversary with access to all "
                f"weights; {run.header.inner or run.header.optimizer}, or a change of its gradients, may hide a part "
                "of these sums, so this is not a lower bound for this run."
            )


def shuffled_findings(
    run: RecordedRun, delta: float, size: int, adjacency: str, needed: tuple[Assumption, ...]
) -> Iterator[Finding]:
    """The lower bound of a shuffled loader, as executed, also if the accountant assumed Poisson samples."""
    shuffled = shuffled_epsilon(run, adjacency, delta) if _reveals_sums(run) else None
    if shuffled is None:
        return
    scope = Scope(adjacency=adjacency, access="all-iterates", adversary="gradient", pipeline="executed")
    delta_and_size = {"delta": delta, "group_size": size}
    bound = certified_upper("epsilon", shuffled[0], at=delta_and_size, scope=scope, source=THEOREMS, assumptions=needed)
    source = f"{THEOREMS}; attained: proofs/shuffle.md"
    attained = certified_lower(bound, shuffled[0], source=source, min_records=shuffled[1])
    if attained is not None:
        yield attained
