"""A validated document as the :class:`~dpspec.contract.Spec` that plugins see."""

from __future__ import annotations

from collections.abc import Mapping

from dpspec.contract import (
    AuditOptions,
    Claim,
    FrozenMap,
    Json,
    Path,
    Section,
    Span,
    Spec,
    ThreatModel,
)
from dpspec.contract.canonical import digest

#: Keys that change nothing about an audit, or are used up by the time a document is resolved.
OUTSIDE_DIGEST = frozenset({"name", "description", "requires", "extends", "matrix"})

_THREAT_MODEL = ("adjacency", "unit", "access", "direction")
_AUDIT = ("method", "runs", "confidence", "seed", "expect")
_CLAIM = ("id", "kind", "adjacency", "access", "direction", "group_size", "record", "over", "expect")


def build(
    document: Mapping[str, Json],
    *,
    name: str,
    cell: FrozenMap,
    origin: Mapping[Path, Span],
    directory: str,
) -> Spec:
    """The spec of a valid document with its defaults filled in."""
    threat_model = _threat_model(document["threat_model"])
    return Spec(
        name=name,
        description=document["description"],
        mechanism=_section(document["mechanism"], "kind"),
        data=_section(document["data"], "kind"),
        model=_section(document["model"], "kind") if "model" in document else None,
        training=_section(document["training"], "backend"),
        threat_model=threat_model,
        claims=tuple(_claim(claim, threat_model) for claim in document["claims"]),
        audit=_audit(document["audit"]) if "audit" in document else None,
        cell=cell,
        document=FrozenMap(document),
        digest=digest_of(document),
        origin=origin,
        directory=directory,
    )


def digest_of(document: Mapping[str, Json]) -> str:
    """The SHA-256 of what a resolved document decides: all but its names, texts, requirements and composition."""
    return digest({key: value for key, value in document.items() if key not in OUTSIDE_DIGEST})


def _section(block: Mapping[str, Json], key: str) -> Section:
    kind = block.get(key, "native")
    return Section(kind=kind, options=_without(block, (key,)))


def _threat_model(block: Mapping[str, Json]) -> ThreatModel:
    known = {key: block[key] for key in _THREAT_MODEL}
    further = _without(block, (*_THREAT_MODEL, "group_size"))
    return ThreatModel(**known, group_size=tuple(block["group_size"]), options=further)


def _claim(claim: Mapping[str, Json], threat_model: ThreatModel) -> Claim:
    return Claim(
        id=claim["id"],
        kind=claim["kind"],
        options=_without(claim, _CLAIM),
        adjacency=claim.get("adjacency", threat_model.adjacency),
        access=claim.get("access", threat_model.access),
        direction=claim.get("direction", threat_model.direction),
        group_size=claim["group_size"],
        record=claim.get("record"),
        over=claim.get("over"),
        expect=tuple(claim["expect"]),
    )


def _audit(block: Mapping[str, Json]) -> AuditOptions:
    known = {key: block[key] for key in _AUDIT}
    return AuditOptions(**known, options=_without(block, _AUDIT))


def _without(block: Mapping[str, Json], keys: tuple[str, ...]) -> FrozenMap:
    return FrozenMap({key: value for key, value in block.items() if key not in keys})
