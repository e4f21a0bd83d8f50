"""Which plugins are installed: the entry points of the group ``dpspec``, read without importing anything.

pluggy's own entry-point loader ends at the first plugin that fails; here a distribution whose metadata cannot be
read is one broken plugin among others.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dpspec.contract.catalog import BrokenPlugin
from dpspec.registry.foreign_code import Failed, attempt

GROUP = "dpspec"


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """An entry point: ``value`` names a module, or ``module:attribute``. Candidates sort by distribution, then name."""

    distribution: str
    version: str
    plugin: str
    value: str

    @property
    def id(self) -> str:
        """The name under which the plugin manager knows it."""
        return f"{normalise(self.distribution)}:{self.plugin}"

    def broken(self, reason: str, kinds: tuple[str, ...] = ()) -> BrokenPlugin:
        """This candidate, listed as broken."""
        return BrokenPlugin(
            plugin=self.plugin, distribution=self.distribution, version=self.version, reason=reason, kinds=kinds
        )


def normalise(distribution: str) -> str:
    """The spelling under which distributions are compared: ``My_Plugin`` is ``my-plugin``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover() -> tuple[tuple[Candidate, ...], tuple[BrokenPlugin, ...]]:
    """All candidates of the current ``sys.path``, sorted, and the distributions whose entry points cannot be read.

    Of two copies of a distribution the first on the path counts, as it does for imports.
    """
    candidates: list[Candidate] = []
    broken: list[BrokenPlugin] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            declared = attempt(lambda d=distribution: d.read_text("entry_points.txt")) or ""  # type: ignore[misc]
        except Failed:
            continue  # a distribution without readable entry points offers nothing
        if f"[{GROUP}]" not in declared:
            continue
        name, version = _identity(distribution)
        if normalise(name) in seen:
            continue
        seen.add(normalise(name))
        try:
            candidates.extend(attempt(lambda d=distribution, n=name, v=version: list(_candidates(d, n, v))))  # type: ignore[misc]
        except Failed as failure:
            reason = f"its entry points cannot be read: {failure}"
            broken.append(BrokenPlugin(plugin="", distribution=name, version=version, reason=reason))
    return tuple(sorted(candidates)), tuple(broken)


def _candidates(distribution: importlib.metadata.Distribution, name: str, version: str) -> Iterator[Candidate]:
    for entry in distribution.entry_points:
        if entry.group == GROUP:
            yield Candidate(distribution=name, version=version, plugin=entry.name, value=entry.value)


def _identity(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version; a question mark stands for what damaged metadata does not say."""

    def field(key: str) -> str:
        try:
            return attempt(lambda: str(distribution.metadata[key] or "?"))
        except Failed:
            return "?"

    return field("Name"), field("Version")
