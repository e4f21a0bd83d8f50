"""Validate claims by their kinds and against the mechanism and the threat model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping

from dpspec.contract import Diagnostic, Json, Mechanism, Path, is_privacy_quantity, thaw
from dpspec.language.validating.blocks import claim_block, core, known_claim_kinds
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
    """Checks of an unknown mechanism or an invalid threat model are skipped."""
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
    seen: dict[str, int] = {}
    for i, claim in enumerate(checked):
        name = claim.get("id") if isinstance(claim, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            message = f"two claims have the id {quoted(name)}: claims[{seen[name]}] and claims[{i}]"
            place: Path = ("claims", i, "id")
            found.append(Diagnostic(code="duplicate-id", message=message, path=place, help="rename one of them"))
        seen.setdefault(name, i)
    return checked, found


#: Results of earlier checks. Most cells of a matrix share their claims.
_CHECKED: dict[tuple[int, str, Path], tuple[Mechanism | None, Json, list[Diagnostic]]] = {}

_MAX_CHECKED = 4096


def _check_cached(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    """Most cells of a matrix share their claims."""
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
    return filled, [*_check_values(filled, path), *_check_scope(filled, threat_model, path)]


def _check_values(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    if claim.get("over") == "matrix":  # composition has already moved valid claims of this kind out of the cells
        message = "over: matrix needs a matrix, and this spec has none"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "over"), help="remove over")
    points: list[tuple[Path, Mapping[str, Json]]] = []
    if claim["kind"] == "tradeoff":
        points = [((*path, "points", i, "tpr"), point) for i, point in enumerate(claim["points"])]
    elif claim["kind"] == "membership" and "tpr" in claim:
        points = [((*path, "tpr"), claim)]
    for place, point in points:
        if point["tpr"] < point["fpr"]:
            message = f"tpr {shown(point['tpr'])} is below fpr {shown(point['fpr'])}, which random guessing reaches"
            yield Diagnostic(code="bad-value", message=message, path=place, help="claim a tpr at or above the fpr")
    if claim["kind"] != "metric":
        return
    if is_privacy_quantity(claim["name"]):  # a metric states no adjacency, adversary or datasets
        message = f"{quoted(claim['name'])} is a privacy quantity and cannot be the name of a metric"
        kinds = [kind for kind in core("claim_kinds") if kind != "metric"]
        hint = f"use a claim with a scope: {listed(kinds)}; a metric is a number about the trained model"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "name"), help=hint)
    for key in ("at_least", "at_most") if claim["name"] == "accuracy" else ():
        value = claim.get(key)
        if value is not None and not 0 <= value <= 1:
            message = f"accuracy must be between 0 and 1, got {shown(value)}"
            percent = f"write {value / 100:g} for {value:g} percent"
            hint = percent if 1 < value <= 100 else "write a fraction, such as 0.8"
            yield Diagnostic(code="bad-value", message=message, path=(*path, key), help=hint)


def _check_scope(
    claim: Mapping[str, Json], threat_model: Mapping[str, Json] | None, path: Path
) -> Iterator[Diagnostic]:
    """No finding applies to a claim that exceeds the threat model."""
    if threat_model is None:
        return

    def exceeds(key: str, message: str, hint: str) -> Diagnostic:
        return Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, key), help=hint)

    for key, within in _NARROWER.items():
        allowed = within[threat_model.get(key, "all")]
        if key in claim and claim[key] not in allowed:
            message = f"the claim's {key} {quoted(claim[key])} exceeds the threat model's {quoted(threat_model[key])}"
            yield exceeds(key, message, f"narrow it to {listed(allowed)}, or widen threat_model.{key}")
    fewest = threat_model.get("min_records", 0)
    if claim.get("min_records", fewest) < fewest:
        message = f"the claim's min_records {claim['min_records']} is below the threat model's {fewest}"
        yield exceeds("min_records", message, f"claim at least {fewest}, or lower threat_model.min_records")
    largest = max(threat_model["group_size"])
    if claim["group_size"] > largest:
        message = f"the claim's group_size {claim['group_size']} exceeds the threat model's {largest}"
        yield exceeds("group_size", message, f"add {claim['group_size']} to threat_model.group_size")
