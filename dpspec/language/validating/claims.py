"""Validate claims by their kinds and against the mechanism and the threat model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping

from dpspec.contract import Diagnostic, Json, Mechanism, Path, is_privacy_quantity, thaw
from dpspec.language.validating.blocks import claim_block, claim_kinds, core, known_claim_kinds
from dpspec.language.validating.installed import closest_kind
from dpspec.language.validating.problems import cast, fill, problems
from dpspec.text import did_you_mean, listed, quoted, shown

#: For each value of the threat model, the values that a claim may have.
_NARROWER = {
    "access": {
        "transcript": ("transcript", "all-iterates", "final-model"),
        "all-iterates": ("all-iterates", "final-model"),
        "final-model": ("final-model",),
    },
    "direction": {"both": ("add", "remove", "both"), "add": ("add",), "remove": ("remove",)},
    "neighbours": {"all": ("all", "same-missing-values"), "same-missing-values": ("same-missing-values",)},
}


def check_claims(
    claims: Json, mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None
) -> tuple[Json, list[Diagnostic]]:
    """Fill in the defaults of claims and validate them.

    Args:
        claims: The ``claims`` block.
        mechanism: The mechanism, or None if it is unknown. Its checks are then skipped.
        threat_model: The threat model, or None if it is invalid. Its checks are then skipped.

    Returns:
        The claims with defaults, and the diagnostics.
    """
    if claims == [] and mechanism is not None and mechanism.optional_claims:
        return claims, []
    found = list(problems(core("spec")["properties"]["claims"], claims, ("claims",)))
    if not isinstance(claims, list):
        return claims, found
    checked: list[Json] = []
    for i, claim in enumerate(claims):
        checked.append(claim)
        if not isinstance(claim, dict):
            continue  # the schema reported it
        named = claim if "id" in claim else {"id": f"claim-{i + 1}", **claim}
        checked[i], wrong = _check_cached(named, mechanism, threat_model, ("claims", i))
        found += wrong
    found += _check_ids(checked)
    return checked, found


#: Results of earlier checks. Most cells of a matrix share their claims.
_CHECKED: dict[tuple[int, str, Path], tuple[Mechanism | None, Json, list[Diagnostic]]] = {}

#: Maximum size of the cache.
_MAX_CHECKED = 4096


def _check_cached(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    """Call :func:`_check_claim` once for equal claims at the same position."""
    try:
        key = (id(mechanism), json.dumps([claim, thaw(threat_model)]), path)
    except (TypeError, ValueError):
        return _check_claim(claim, mechanism, threat_model, path)
    known = _CHECKED.get(key)
    if known is None or known[0] is not mechanism:
        if len(_CHECKED) >= _MAX_CHECKED:
            _CHECKED.clear()
        known = _CHECKED[key] = (mechanism, *_check_claim(claim, mechanism, threat_model, path))
    return copy.deepcopy(known[1]), list(known[2])


def _check_claim(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    kind = claim.get("kind")
    known = known_claim_kinds(mechanism)
    judged = sorted(mechanism.claims) if mechanism is not None else known
    if not isinstance(kind, str):
        hint = f"valid: {listed(judged)}"
        if "kind" in claim:
            message = f"kind must be a string, got {shown(kind)}"
            return claim, [Diagnostic(code="wrong-type", message=message, path=(*path, "kind"), help=hint)]
        message = f"missing key 'kind' in claims[{path[-1]}]"
        return claim, [Diagnostic(code="missing-key", message=message, path=path, help=hint, at_key=True)]
    if kind not in known and mechanism is None:
        return claim, []  # the unknown mechanism may define it
    if kind not in known:
        message = f"{quoted(kind)} is not a claim kind" + did_you_mean(closest_kind(kind, judged))
        hint = f"valid: {listed(judged)}"
        return claim, [Diagnostic(code="bad-choice", message=message, path=(*path, "kind"), help=hint)]
    schema = claim_block(kind, mechanism)
    filled = fill(schema, claim)
    wrong = [d for d in problems(schema, filled, path) if mechanism is not None or d.code != "unknown-key"]
    if mechanism is not None and kind not in mechanism.claims:
        message = f"mechanism {quoted(mechanism.kind)} cannot judge claims of kind {quoted(kind)}"
        hint = f"it judges: {listed(judged)}"
        wrong.append(Diagnostic(code="claim-not-judged", message=message, path=(*path, "kind"), help=hint))
    if wrong:
        return filled, wrong
    filled = cast(schema, filled)
    if isinstance(filled["expect"], str):
        filled["expect"] = [filled["expect"]]
    scope = _check_scope(filled, threat_model, path) if threat_model is not None else []
    return filled, [
        *_check_over(filled, path),
        *_check_rates(filled, path),
        *_check_metric_name(filled, path),
        *_check_accuracy(filled, path),
        *scope,
    ]


def _check_over(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """Reject ``over: matrix``. Composition has already moved valid claims of this kind out of the cells."""
    if claim.get("over") == "matrix":
        message = "over: matrix needs a matrix, and this spec has none"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "over"), help="remove over")


def _check_rates(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """Reject true-positive rates below the false-positive rate, which random guessing reaches."""
    points: list[tuple[Path, Mapping[str, Json]]] = []
    if claim["kind"] == "tradeoff":
        points = [((*path, "points", i, "tpr"), point) for i, point in enumerate(claim["points"])]
    elif claim["kind"] == "membership" and "tpr" in claim:
        points = [((*path, "tpr"), claim)]
    for place, point in points:
        if point["tpr"] < point["fpr"]:
            message = f"tpr {shown(point['tpr'])} is below fpr {shown(point['fpr'])}, which random guessing reaches"
            yield Diagnostic(code="bad-value", message=message, path=place, help="claim a tpr at or above the fpr")


def _check_metric_name(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """Reject privacy quantities as metrics: a metric states no adjacency, adversary or datasets."""
    if claim["kind"] == "metric" and is_privacy_quantity(claim["name"]):
        message = f"{quoted(claim['name'])} is a privacy quantity and cannot be the name of a metric"
        kinds = [kind for kind in claim_kinds() if kind != "metric"]
        hint = f"use a claim with a scope: {listed(kinds)}; a metric is a number about the trained model"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "name"), help=hint)


def _check_accuracy(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """Reject accuracies outside [0, 1], such as percentages."""
    for key in ("at_least", "at_most") if (claim["kind"], claim.get("name")) == ("metric", "accuracy") else ():
        value = claim.get(key)
        if value is not None and not 0 <= value <= 1:
            message = f"accuracy must be between 0 and 1, got {shown(value)}"
            percent = f"write {value / 100:g} for {value:g} percent"
            hint = percent if 1 < value <= 100 else "write a fraction, such as 0.8"
            yield Diagnostic(code="bad-value", message=message, path=(*path, key), help=hint)


def _check_scope(claim: Mapping[str, Json], threat_model: Mapping[str, Json], path: Path) -> list[Diagnostic]:
    """Report values with which a claim exceeds the threat model, so that no finding applies to it."""
    found: list[Diagnostic] = []
    for key, within in _NARROWER.items():
        allowed = within[threat_model.get(key, "all")]
        if key in claim and claim[key] not in allowed:
            message = f"the claim's {key} {quoted(claim[key])} exceeds the threat model's {quoted(threat_model[key])}"
            hint = f"narrow it to {listed(allowed)}, or widen threat_model.{key}"
            found.append(Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, key), help=hint))
    fewest = threat_model.get("min_records", 0)
    if claim.get("min_records", fewest) < fewest:
        message = f"the claim's min_records {claim['min_records']} is below the threat model's {fewest}"
        hint = f"claim at least {fewest}, or lower threat_model.min_records"
        found.append(
            Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, "min_records"), help=hint)
        )
    largest = max(threat_model["group_size"])
    if claim["group_size"] > largest:
        message = f"the claim's group_size {claim['group_size']} exceeds the threat model's {largest}"
        hint = f"add {claim['group_size']} to threat_model.group_size"
        found.append(
            Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, "group_size"), help=hint)
        )
    return found


def _check_ids(claims: list[Json]) -> Iterator[Diagnostic]:
    seen: dict[str, int] = {}
    for i, claim in enumerate(claims):
        name = claim.get("id") if isinstance(claim, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            message = f"two claims have the id {quoted(name)}: claims[{seen[name]}] and claims[{i}]"
            yield Diagnostic(code="duplicate-id", message=message, path=("claims", i, "id"), help="rename one of them")
        seen.setdefault(name, i)
