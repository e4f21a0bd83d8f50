"""What the attack cannot do, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_rero.prior import candidates


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    if spec.audit.method != "many-run":
        yield dps.Diagnostic(
            code="unsupported",
            message=f"the reconstruction attack needs a run for each target: many-run, not {spec.audit.method}",
            path=("audit", "method"),
        )
    if "canary" in spec.audit.options:
        yield dps.Diagnostic(
            code="unsupported",
            message="what the reconstruction attack hides is one of the candidates",
            path=("audit", "canary"),
            help="leave it out; threat_model.prior says among how many candidates, and where they come from",
        )
    if candidates(spec.threat_model.options) is None:
        yield dps.Diagnostic(
            code="missing-key",
            message="missing key 'candidates' in threat_model.prior",
            path=("threat_model", "prior") if "prior" in spec.threat_model.options else ("threat_model",),
            help="for example prior: {candidates: 16}; or leave audit out for bounds only",
        )
    noises = [str(phase.get("noise", "gaussian")) for phase in spec.phases]
    for number, noise in enumerate(noises):
        if noise != noises[0]:
            yield dps.Diagnostic(
                code="unsupported",
                message=f"what is trained has noise of one law, and here are {noises[0]} and {noise}",
                path=dps.in_phase(spec, number, "noise"),
                help="leave audit out: the bounds hold for any sequence of phases",
            )
    iterates = spec.threat_model.access == "all-iterates"
    if iterates and (spec.training.get("optimizer") or {}).get("kind", "sgd") == "adam":
        yield dps.Diagnostic(
            code="unsupported",
            message="the attack undoes every update, and Adam's cannot be undone",
            path=("training", "optimizer"),
            help="use sgd or momentum; the bound holds for any optimizer",
        )
    needs = ["iterates"]
    if iterates and any(phase["sampling"]["scheme"] != "full" for phase in spec.phases):
        needs.append("sampling-log")
    if "laplace" in noises:
        # Gradients are scaled to an l1 norm by a part of ours.
        needs.append("parts")
    yield from dps.untrainable(spec, facts, needs)
