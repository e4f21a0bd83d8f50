"""Validates the claims: each by its kind, and all of them against the mechanism and the threat model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping

from dpspec.contract import Diagnostic, Json, Mechanism, Path, is_privacy_quantity, thaw
from dpspec.language.validating.blocks import claim_block, claim_kinds, core, known_claim_kinds
from dpspec.language.validating.problems import cast, fill, problems
from dpspec.text import closest, did_you_mean, listed, quoted, shown

#: What a claim may not widen: each value of the threat model, with the values within it.
_WITHIN = {
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
    """The claims with defaults filled in, and what is wrong with them.

    An unknown mechanism or a wrong threat model is None, and what would be held against it is left unsaid.
    """
    if claims == [] and mechanism is not None and mechanism.kind == "recorded":  # its epsilon is reported without one
        return claims, []
    found = list(problems(core("spec")["properties"]["claims"], claims, ("claims",)))
    if not isinstance(claims, list):
        return claims, found
    checked: list[Json] = []
    for i, claim in enumerate(claims):
        checked.append(claim)
        if not isinstance(claim, dict):
            continue  # told above
        named = claim if "id" in claim else {"id": f"claim-{i + 1}", **claim}
        checked[i], wrong = _remembered(named, mechanism, threat_model, ("claims", i))
        found += wrong
    found += _same_ids(checked)
    return checked, found


#: Claims that were checked before, with what came of it and the mechanism: most cells of a matrix share all of them.
_CHECKED: dict[tuple[int, str, Path], tuple[Mechanism | None, Json, list[Diagnostic]]] = {}

#: Of so many the outcome is kept.
_MOST_CHECKED = 4096


def _remembered(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    """What :func:`_one` says, worked out once for equal claims in the same place."""
    try:
        key = (id(mechanism), json.dumps([claim, thaw(threat_model)]), path)
    except (TypeError, ValueError):
        return _one(claim, mechanism, threat_model, path)
    known = _CHECKED.get(key)
    if known is None or known[0] is not mechanism:
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        known = _CHECKED[key] = (mechanism, *_one(claim, mechanism, threat_model, path))
    return copy.deepcopy(known[1]), list(known[2])


def _one(
    claim: dict[str, Json], mechanism: Mechanism | None, threat_model: Mapping[str, Json] | None, path: Path
) -> tuple[Json, list[Diagnostic]]:
    kind = claim.get("kind")
    known = known_claim_kinds(mechanism)
    judged = sorted(mechanism.claims) if mechanism is not None else known
    if not isinstance(kind, str):
        hint = f"valid: {listed(judged)}"
        if "kind" in claim:
            message = f"kind must be text, got {shown(kind)}"
            return claim, [Diagnostic(code="wrong-type", message=message, path=(*path, "kind"), help=hint)]
        message = f"missing key 'kind' in claims[{path[-1]}]"
        return claim, [Diagnostic(code="missing-key", message=message, path=path, help=hint, at_key=True)]
    if kind not in known and mechanism is None:
        return claim, []  # it may be the unknown mechanism's own
    if kind not in known:
        message = f"{quoted(kind)} is not a kind of claim" + did_you_mean(closest(kind, judged))
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
    scope = _scope(filled, threat_model, path) if threat_model is not None else []
    return filled, [
        *_no_cells(filled, path),
        *_impossible(filled, path),
        *_no_metric(filled, path),
        *_no_share(filled, path),
        *scope,
    ]


def _no_cells(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """What is said of a whole matrix is taken out of its cells before they are checked: here no matrix is left."""
    if claim.get("over") == "matrix":
        message = "over: matrix speaks of the best of a matrix's cells, and there is no matrix here"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "over"), help="leave over out")


def _impossible(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """Rates that no claim can mean: guessing at random reaches a true-positive rate equal to the false-positive one."""
    points: list[tuple[Path, Mapping[str, Json]]] = []
    if claim["kind"] == "tradeoff":
        points = [((*path, "points", i, "tpr"), point) for i, point in enumerate(claim["points"])]
    elif claim["kind"] == "membership" and "tpr" in claim:
        points = [((*path, "tpr"), claim)]
    for place, point in points:
        if point["tpr"] < point["fpr"]:
            message = f"tpr {shown(point['tpr'])} is below fpr {shown(point['fpr'])}, which random guessing reaches"
            yield Diagnostic(code="bad-value", message=message, path=place, help="claim a tpr of at least the fpr")


def _no_metric(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """A metric has no scope: what is said of privacy would be read without neighbours, adversary and data sets."""
    if claim["kind"] == "metric" and is_privacy_quantity(claim["name"]):
        message = f"{quoted(claim['name'])} is a privacy quantity, which no metric may be called"
        kinds = [kind for kind in claim_kinds() if kind != "metric"]
        hint = f"claim it with its scope, as {listed(kinds)}; a metric is a number about the trained model"
        yield Diagnostic(code="bad-value", message=message, path=(*path, "name"), help=hint)


def _no_share(claim: Mapping[str, Json], path: Path) -> Iterator[Diagnostic]:
    """An accuracy is a share, and not a percentage: beyond 1 no run could ever decide it."""
    for key in ("at_least", "at_most") if (claim["kind"], claim.get("name")) == ("metric", "accuracy") else ():
        value = claim.get(key)
        if value is not None and not 0 <= value <= 1:
            message = f"an accuracy lies between 0 and 1, got {shown(value)}"
            hint = f"write {value / 100:g} for {value:g} percent" if 1 < value <= 100 else "write a share, such as 0.8"
            yield Diagnostic(code="bad-value", message=message, path=(*path, key), help=hint)


def _scope(claim: Mapping[str, Json], threat_model: Mapping[str, Json], path: Path) -> list[Diagnostic]:
    """A claim may narrow the threat model; what it widens, nothing in the audit could decide."""
    found: list[Diagnostic] = []
    for key, within in _WITHIN.items():
        allowed = within[threat_model.get(key, "all")]
        if key in claim and claim[key] not in allowed:
            message = (
                f"the claim's {key} {quoted(claim[key])} goes beyond the threat model's {quoted(threat_model[key])}"
            )
            hint = f"narrow it to {listed(allowed)}, or widen threat_model.{key}"
            found.append(Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, key), help=hint))
    fewest = threat_model.get("min_records", 0)
    if claim.get("min_records", fewest) < fewest:
        message = f"the claim's min_records {claim['min_records']} goes beyond the threat model's {fewest}"
        hint = f"claim at least {fewest}, or lower threat_model.min_records"
        found.append(
            Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, "min_records"), help=hint)
        )
    largest = max(threat_model["group_size"])
    if claim["group_size"] > largest:
        message = f"the claim's group_size {claim['group_size']} goes beyond the threat model's {largest}"
        hint = f"add {claim['group_size']} to threat_model.group_size"
        found.append(
            Diagnostic(code="claim-outside-threat-model", message=message, path=(*path, "group_size"), help=hint)
        )
    return found


def _same_ids(claims: list[Json]) -> Iterator[Diagnostic]:
    seen: dict[str, int] = {}
    for i, claim in enumerate(claims):
        name = claim.get("id") if isinstance(claim, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            message = f"two claims are called {quoted(name)}: claims[{seen[name]}] and claims[{i}]"
            yield Diagnostic(code="duplicate-id", message=message, path=("claims", i, "id"), help="rename one of them")
        seen.setdefault(name, i)
