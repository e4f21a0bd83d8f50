"""What the attack cannot do, located and in words: no torch, no rows, no numerics."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import dpspec.contract as dps
from dpspec_modelmix.options import KINDS, attack_of, mixing_of

#: Trials embed the order of their canaries; more than this does not fit their evidence.
MAX_CANARIES = 50_000

_LEAST_CANARIES = 8

_CANARY = ("audit", "canary")


def attack_refusals(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    """Every reason why the attack of a spec with an audit cannot be made."""
    assert spec.audit is not None
    canary = spec.audit.options.get("canary")
    if canary is None or "count" not in canary:
        yield dps.Diagnostic(
            code="missing-key",
            message="missing key 'canary' in audit" if canary is None else "missing key 'count' in audit.canary",
            path=("audit",) if canary is None else _CANARY,
            help="for example canary: {space: gradient, kind: one-hot, count: 100}",
        )
        return
    if facts.digest is None:
        yield dps.Diagnostic(
            code="data-not-at-hand",
            message="data that is only declared can be bounded, not trained on",
            path=("audit",),
            help="leave audit out, or name the data",
        )
    if facts.parameters is None:
        yield dps.Diagnostic(
            code="no-model", message="an audit trains a model, and the spec names none", path=("audit",)
        )
        return
    if "parts" not in facts.capabilities:
        yield dps.Diagnostic(
            code="missing-capability",
            message=f"backend {spec.training.kind!r} lacks 'parts': it trains by a rule of its own and mixes no models",
            path=("training", "backend"),
            help="use backend: native",
        )
    yield from _options(spec, facts)


def _options(spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
    assert spec.audit is not None
    assert facts.parameters is not None
    attack, canary = attack_of(spec.document["audit"]), spec.audit.options["canary"]
    if spec.audit.method != "one-run":
        yield _unsupported("many runs are not offered here: the white-box score needs one", ("audit", "method"))
    if canary.get("space", "gradient") != "gradient":
        yield _unsupported("canaries here are gradients", (*_CANARY, "space"))
    if attack.kind not in KINDS:
        near = difflib.get_close_matches(attack.kind, KINDS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        yield _unsupported(
            f"{attack.kind!r} is not a kind of canary here{meant} (valid: {', '.join(KINDS)})", (*_CANARY, "kind")
        )
    if "spread" in canary:
        yield _unsupported("groups of near-identical members are not offered here", (*_CANARY, "spread"))
    if spec.threat_model.access != "all-iterates":
        yield _unsupported(
            "the attack reads every iterate",
            ("threat_model", "access"),
            "leave audit out: the bounds hold all the same",
        )
    if (spec.training.get("optimizer") or {}).get("kind", "sgd") != "sgd":
        yield _unsupported(
            "the attack trains ModelMix with plain descent only",
            ("training", "optimizer"),
            "leave audit out: what is bounded then is plain DP-SGD",
        )
    width = max(int(phase.get("linf_truncation", 1)) for phase in spec.phases) if attack.kind == "one-hot" else 1
    most = min(MAX_CANARIES, facts.parameters // width)
    if width <= facts.parameters and not _LEAST_CANARIES <= attack.count <= most:
        yield dps.Diagnostic(
            code="bad-value",
            message=f"count must be within {_LEAST_CANARIES}..{most}, got {attack.count}: every canary needs {width} "
            f"of {facts.parameters} coordinates",
            path=(*_CANARY, "count"),
        )
    if any(mixing_of(phase).unmixed for phase in spec.phases) and attack.kind == "spread":
        yield _unsupported("spread canaries cover all parameters, those that are mixed too", (*_CANARY, "kind"))


def _unsupported(message: str, path: dps.Path, hint: str | None = None) -> dps.Diagnostic:
    return dps.Diagnostic(code="unsupported", message=message, path=path, help=hint)
