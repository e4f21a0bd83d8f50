"""What the attack cannot do, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_preprocessing.messages import refused
from dpspec_preprocessing.private import GRADIENT

#: With fewer executions than this nothing can be shown.
_LEAST = 16


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    options, block = spec.audit.options, spec.mechanism["private"]
    if spec.audit.method != "many-run":
        message = "pre-processing is attacked in many runs: one record changes what becomes of the others"
        help = "write method: many-run; runs and repeats decide how much can be shown"
        yield refused(("audit", "method"), message, help)
    if "canary" in options:
        help = "leave canary out; clusters and members say how near-duplicates are planted"
        yield refused(("audit", "canary"), "the canary follows from the pipeline's first step", help)
    if facts.digest is None:
        message, help = "data that is only declared can be bounded, not processed", "leave audit out, or name the data"
        yield refused(("audit",), message, help, "data-not-at-hand")
    if block["kind"] in GRADIENT and "loss" not in block:
        message = "missing key 'loss' in mechanism.private: nothing says what is trained"
        help = "loss: logistic or squared, or cross-entropy with a model"
        yield refused(("mechanism", "private"), message, help, "missing-key")
    executions = spec.audit.runs * int(options.get("repeats", 1))
    if executions < _LEAST:
        message = f"runs times repeats must be at least {_LEAST}, got {executions}"
        yield refused(("audit", "runs"), message, f"repeats: {-(-_LEAST // spec.audit.runs)} or more", "bad-value")
    yield from _planting(spec, facts)


def _planting(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    options, step = spec.audit.options, spec.mechanism["pipeline"][0]
    if not ("deduplicate" in step or "quantise" in step):
        for key in ("clusters", "members"):
            if key in options:
                yield refused(("audit", key), f"{key!r} is for near-duplicates", "leave it out")
        return
    clusters, members = int(options.get("clusters", 5)), int(options.get("members", 3))
    fits = 2 * facts.features if "deduplicate" in step else facts.features
    if clusters > fits and not (clusters == 5 and facts.features == 2 and "deduplicate" in step):
        message = f"clusters must be at most {fits} in {facts.features} dimensions, got {clusters}"
        yield refused(("audit", "clusters"), message, f"clusters: {min(fits, 5)}", "bad-value")
    if clusters * members >= facts.records:
        message = f"{clusters} clusters of {members} do not fit into {facts.records} records"
        yield refused(("audit",), message, "fewer clusters, or fewer members", "bad-value")
