"""What is fixed before any coin is seen: the law of the scores, guess counts, thresholds, and what they can show."""

from __future__ import annotations

import math

import dpspec.contract as dps
from dpspec.stats import manyrun, sequential, thresholds
from dpspec_group.bounds import claimed_deltas
from dpspec_group.design import Design, Threshold, blind, design, threshold
from dpspec_group.laws import ScoreLaw, end_to_end, score_law
from dpspec_group.options import EDGES, Attack, attack_of_spec
from dpspec_group.scores import planted_pairs

DEFAULT_DELTA = 1e-6

#: Designed thresholds are looked for on every so many edges of the grid.
_COARSE = 16

#: What every lower bound rests on.
COINS = dps.Assumption(
    name="coins", status="by-construction", text="each canary group is planted by an independent fair coin"
)


def attack_delta(spec: dps.Spec, group_size: int) -> float:
    """The delta at which lower bounds for a group size are stated: the largest that its claims name."""
    deltas = claimed_deltas(spec, group_size) or claimed_deltas(spec, 1)
    return deltas[-1] if deltas else DEFAULT_DELTA


def law_of(spec: dps.Spec, records: int, group_size: int) -> ScoreLaw | None:
    """The law of the scores of one group size if the pipeline is as declared, in the units in which they are told.

    None where nothing is known beforehand: without noise, and for planted records, whose gradients are their own.
    """
    attack = attack_of_spec(spec)
    if attack.space != "gradient" or _noiseless(spec):
        return None
    pairs = planted_pairs(spec.phases, attack, records + attack.records_on_average, group_size)
    if attack.white_box:
        return score_law(pairs)
    return end_to_end(pairs, [float(phase["clip_norm"]) for phase in spec.phases]).law()


def one_run_design(spec: dps.Spec, records: int, canaries: int, group_size: int) -> Design:
    """How many of so many canaries of one size to guess."""
    assert spec.audit is not None
    delta, confidence = attack_delta(spec, group_size), spec.audit.confidence
    law = law_of(spec, records, group_size)
    if law is None:
        return blind(canaries, delta, confidence, all_only=_noiseless(spec))
    return design(law, canaries, delta, confidence)


def many_run_design(spec: dps.Spec, records: int, runs: int, group_size: int) -> Threshold | None:
    """From which score on to say "present" in so many runs, half of either kind; None where the law is not known."""
    assert spec.audit is not None
    law = law_of(spec, records, group_size)
    if law is None:
        return None
    delta = attack_delta(spec, group_size)
    return threshold(law, EDGES[::_COARSE], runs - runs // 2, runs // 2, delta, spec.audit.confidence)


def power(spec: dps.Spec, records: int) -> tuple[dps.Power, ...]:
    """For each group size what the attack could show at best, and what it should if all is as declared."""
    attack = attack_of_spec(spec)
    told = []
    for size in attack.sizes:
        what, largest, expected = _shown(spec, attack, records, size)
        told.append(
            dps.Power(
                at=dps.FrozenMap({"delta": attack_delta(spec, size), "group_size": size}),
                epsilon=largest,
                method=f"{attack.words}, {what}",
                note="how much is expected cannot be said beforehand"
                if math.isnan(expected)
                else f"about {expected:.2f} expected if the pipeline is as declared",
            )
        )
    return tuple(told)


def _shown(spec: dps.Spec, attack: Attack, records: int, size: int) -> tuple[str, float, float]:
    """In words what is compared, and the largest and the expected lower bound on epsilon."""
    assert spec.audit is not None
    runs, delta, confidence = spec.audit.runs, attack_delta(spec, size), spec.audit.confidence
    if attack.method == "many-run":
        what = f"{runs} runs with and without a group of {size}"
        if attack.sequential:
            return f"{what} at most", sequential.largest(runs, delta, confidence), math.nan
        fixed, sides = many_run_design(spec, records, runs, size), (runs - runs // 2, runs // 2)
        largest = (thresholds if fixed is None else manyrun).largest(*sides, delta, confidence)
        return what, largest, math.nan if fixed is None else fixed.expected_epsilon
    planned = one_run_design(spec, records, attack.tested(attack.share) * runs, size)
    what = f"{attack.share * runs} canary groups of {size}"
    return what, planned.largest_epsilon, planned.expected_epsilon


def _noiseless(spec: dps.Spec) -> bool:
    return any(float(phase["noise_multiplier"]) == 0.0 for phase in spec.phases)
