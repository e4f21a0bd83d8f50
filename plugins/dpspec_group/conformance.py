"""What trials measured of the pipeline that ran, held against what the spec declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dpspec.contract as dps
from dpspec.stats import conformance, foreseen
from dpspec_group.options import attack_of_spec
from dpspec_group.planting import looks, watched


def checks(spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Check]:
    """One check per declared property, over all trials together."""
    evidence = [trial.evidence for trial in trials]
    return conformance.checks(spec.phases, evidence, privacy=spec.data_privacy)


def foresee(spec: dps.Spec, facts: dps.Facts) -> tuple[dps.Check, ...]:
    """The checks that a run will allow, with the deviations that they would see."""
    assert spec.audit is not None
    attack = attack_of_spec(spec)
    gradient = attack.space == "gradient"
    hidden = set() if watched(attack, facts.capabilities, spec.training.options) else {"iterates"}
    run = foreseen.Run(
        phases=spec.phases,
        records=facts.records + attack.records_on_average,
        parameters=facts.parameters or 0,
        groups=dict.fromkeys(attack.sizes, attack.share) if gradient else {},
        capabilities=set(facts.capabilities) - hidden,
        trials=spec.audit.runs if attack.method == "one-run" else min(2, spec.audit.runs),
        looks=looks(attack),
    )
    return tuple(foreseen.foresee(run))
