"""What the attack cannot do, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_preprocessing.private import GRADIENT

#: With fewer executions than this nothing can be shown; more bins than this do not fit a trial's evidence.
_LEAST, _MOST_PER_TRIAL = 16, 20_000


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    options, block = spec.audit.options, spec.mechanism["private"]
    if spec.audit.method != "many-run":
        yield dps.Diagnostic(
            code="unsupported",
            message="pre-processing is attacked in many runs: one record changes what becomes of the others",
            path=("audit", "method"),
            help="write method: many-run; runs and repeats decide how much can be shown",
        )
    if "canary" in options:
        yield dps.Diagnostic(
            code="unsupported",
            message="the canary follows from the pipeline's first step",
            path=("audit", "canary"),
            help="leave canary out; clusters and members say how near-duplicates are planted",
        )
    if facts.digest is None:
        yield dps.Diagnostic(
            code="data-not-at-hand",
            message="data that is only declared can be bounded, not processed",
            path=("audit",),
            help="leave audit out, or name the data",
        )
    if block["kind"] in GRADIENT and "loss" not in block:
        yield dps.Diagnostic(
            code="missing-key",
            message="missing key 'loss' in mechanism.private: nothing says what is trained",
            path=("mechanism", "private"),
            help="loss: logistic or squared",
        )
    executions = spec.audit.runs * int(options.get("repeats", 1))
    if executions < _LEAST:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"runs times repeats must be at least {_LEAST}, got {executions}",
            path=("audit", "runs"),
        )
    yield from _planting(spec, facts)


def _planting(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    options, step = spec.audit.options, spec.mechanism["pipeline"][0]
    planted = [key for key in ("clusters", "members") if key in options]
    if not ("deduplicate" in step or "quantise" in step):
        for key in planted:
            yield dps.Diagnostic(
                code="unsupported", message=f"{key!r} is for near-duplicates", path=("audit", key), help="leave it out"
            )
        return
    clusters, members = int(options.get("clusters", 5)), int(options.get("members", 3))
    fits = 2 * facts.features if "deduplicate" in step else facts.features
    if clusters > fits and not (clusters == 5 and facts.features == 2 and "deduplicate" in step):
        yield dps.Diagnostic(
            code="bad-value",
            message=f"clusters must be at most {fits} in {facts.features} dimensions, got {clusters}",
            path=("audit", "clusters"),
        )
    if clusters * members >= facts.records:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"{clusters} clusters of {members} do not fit into {facts.records} records",
            path=("audit",),
        )
