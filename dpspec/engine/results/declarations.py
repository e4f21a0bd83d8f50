"""What an audit claims and declares, from the document that its result carries: what a later result is held against.

A claim is its whole statement: its kind, every number, and everything that says of what it speaks. Keys that an earlier
version did not know mean what they mean where they are left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TypeAlias

from dpspec.contract import Json, ThreatModel, thaw
from dpspec.contract.spec import unit_in_words
from dpspec.engine.results.result import AuditResult, Verdict

#: Values by their dotted paths.
Leaves: TypeAlias = dict[str, Json]

#: What the threat model says where a spec leaves it out, and what a claim may narrow of it.
_DEFAULTS: Leaves = {
    field.name: field.default for field in dataclasses.fields(ThreatModel) if field.default is not dataclasses.MISSING
}
_NARROWED = ("adjacency", "access", "direction", "min_records", "neighbours")

#: Of a claim: how it is called, and how it is to come out, which is told by itself.
_ASIDE = frozenset({"id", "expect"})

#: The blocks that declare the pipeline and the attack; the threat model stands in every claim.
_BLOCKS = ("mechanism", "data", "model", "training", "audit")

#: Keys of ``audit`` that are told by themselves.
_TOLD = frozenset({"audit.expect", "audit.confidence"})

_LONGEST = 80


def statement(audit: AuditResult, verdict: Verdict) -> Leaves | None:
    """All that a claim says, its scope included; None where the result's document does not hold it."""
    document = thaw(audit.document)
    claims, threat = document.get("claims"), document.get("threat_model")
    threat = threat if isinstance(threat, dict) else {}
    for claim in claims if isinstance(claims, list) else ():
        if isinstance(claim, dict) and claim.get("id") == verdict.claim:
            # Which sizes are attacked is no part of a claim, which has a size of its own.
            model = {**_DEFAULTS, **{key: value for key, value in threat.items() if key != "group_size"}}
            scope = {key: model.pop(key) for key in _NARROWED}
            model["unit"] = unit_in_words(str(model["unit"]), document.get("data") or {})
            own = {key: value for key, value in claim.items() if key not in _ASIDE}
            return leaves({"group_size": 1, **scope, **own, **_spoken_of(audit, own), "threat_model": model})
    return None


def rows(audit: AuditResult) -> str:
    """The data that was at hand, in a few words."""
    digest = audit.facts.digest
    return f"{audit.facts.records} records, {f'digest {digest[:12]}' if digest else 'declared without rows'}"


def of_data(path: str) -> bool:
    """Whether a path of a statement says which data sets the claim speaks of, where not of all."""
    return path == "rows" or path.partition(".")[0] == "collection"


def _spoken_of(audit: AuditResult, claim: Mapping[str, Json]) -> Leaves:
    """Which data sets a claim speaks of, where not of all: of others, it is another claim."""
    over, record = claim.get("over"), claim.get("record")
    own = over == "this" or (over is None and claim.get("kind") == "per-instance-dp")
    found: Leaves = {"rows": rows(audit)} if own or record not in (None, "all") else {}
    if over not in (None, "all", "this"):
        mechanism = audit.document.get("mechanism")
        limits = mechanism.get("collection") if isinstance(mechanism, Mapping) else None
        found |= {"collection": {"records": audit.facts.records, "limits": thaw(limits) if limits else None}}
    return found


def shown(verdict: Verdict) -> Leaves:
    """What a verdict itself tells of its claim, for results whose documents do not hold it."""
    return {"kind": verdict.kind, "text": verdict.text, "quantity": verdict.quantity}


def declared(audit: AuditResult) -> Leaves:
    """What the audit declares of pipeline and attack, but for what is told by itself."""
    document = thaw(audit.document)
    found = leaves({block: document[block] for block in _BLOCKS if block in document}) | {"rows": rows(audit)}
    if audit.facts.initial_weights is not None:
        found["initial weights"] = f"digest {audit.facts.initial_weights[:12]}"
    return {path: value for path, value in found.items() if path not in _TOLD}


def wanted(said: Leaves | None, verdict: Verdict) -> int:
    """Whether a larger value is better for a claim, 1, or worse, -1; 0 where the claim says neither, or both.

    Less is better of all that is claimed of privacy, and of a metric that is claimed to be at most something.
    """
    if verdict.kind != "metric":
        return -1
    sides = [side for key, side in (("at_least", 1), ("at_most", -1)) if said is not None and said.get(key) is not None]
    return sides[0] if len(sides) == 1 else 0


def confidence(audit: AuditResult) -> float | None:
    """The confidence that the audit asks for; None where its document does not say."""
    block = audit.document.get("audit")
    value = block.get("confidence") if isinstance(block, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def leaves(value: Mapping[str, Json], above: str = "") -> Leaves:
    """The values of nested mappings by their paths; lists are values."""
    found: Leaves = {}
    for key, item in value.items():
        path = f"{above}{key}"
        if isinstance(item, Mapping) and item:
            found |= leaves(item, f"{path}.")
        else:
            found[path] = item
    return found


def text(value: Json) -> str:
    """A value on one line."""
    said = value if isinstance(value, str) else json.dumps(value)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 3]}..."
