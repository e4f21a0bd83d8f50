"""Two plugins that offer the same kind: neither gets it, and both are told of the other.

Choosing one in silence would let the order of installation decide what a spec means. The one exception is what
dpspec itself offers: a foreign plugin cannot take it over, so only the foreign one loses the contested kind.
A plugin in conflict keeps the kinds that nobody contests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dpspec.contract import BrokenPlugin, Catalog, Offered
from dpspec.registry.descriptors import FAMILIES, Family
from dpspec.registry.discover import Candidate, normalise

_OURS = "dpspec"


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What one plugin offers, by the name of the family."""

    candidate: Candidate
    providers: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Everything that it offers, sorted."""
        return tuple(sorted({family.key(p) for family in FAMILIES for p in self.providers.get(family.name, ())}))


def merge(offers: Sequence[Offers], broken: Sequence[BrokenPlugin] = ()) -> Catalog:
    """The catalog of all that is offered once, and ``broken`` with one entry more per loser of a conflict."""
    lost: list[BrokenPlugin] = list(broken)
    tables = {family.field: _table(family, offers, lost) for family in FAMILIES}
    lost.sort(key=lambda b: (normalise(b.distribution), b.plugin, b.reason))
    return Catalog(**tables, broken=tuple(lost))


def _table(family: Family, offers: Sequence[Offers], lost: list[BrokenPlugin]) -> Mapping[str, Offered]:
    claimants: dict[str, list[tuple[Candidate, Any]]] = {}
    for offer in offers:
        for provider in offer.providers.get(family.name, ()):
            claimants.setdefault(family.key(provider), []).append((offer.candidate, provider))
    table: dict[str, Offered] = {}
    for kind, claims in sorted(claimants.items()):
        ours = [c for c in claims if normalise(c[0].distribution) == _OURS]
        holders = claims if len(claims) == 1 else ours if len(ours) == 1 else []
        for candidate, provider in holders:
            table[kind] = Offered(
                provider=provider,
                plugin=candidate.plugin,
                distribution=candidate.distribution,
                version=candidate.version,
            )
        held = [candidate for candidate, _ in holders]
        for candidate, _ in claims:
            if candidate not in held:
                others = held or [other for other, _ in claims if other != candidate]
                lost.append(candidate.broken(_conflict(family, kind, others, bool(held)), (kind,)))
    return MappingProxyType(table)


def _conflict(family: Family, kind: str, others: Sequence[Candidate], held: bool) -> str:
    names = ", ".join(f"{c.distribution} {c.version} ({c.plugin})" for c in others)
    outcome = "which keeps it" if held else "so neither is used: uninstall one"
    return f"{family.name} {kind!r} is also offered by {names}, {outcome}"
