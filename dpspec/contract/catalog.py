"""Providers of the installed plugins, and plugins that failed to load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PROJECT_HINT", "BrokenPlugin", "Catalog", "Offered"]

#: The fix for an unknown kind of a family that files of projects may define.
PROJECT_HINT = (
    'if a file of your project defines it, pass --plugin FILE.py, or write plugins = ["FILE.py"] below [tool.dpspec] '
    "in pyproject.toml"
)


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A provider with the distribution that offers it.

    For a provider of a project's file ``plugin`` and ``distribution`` are the path of the file, and ``code`` is the
    SHA-256 of its code; otherwise it is empty. ``signed_off``: whether the user vouches for the distribution's bounds.
    ``comparisons``: those that extend a mechanism, whose descriptor then has their keys and assumptions.
    """

    provider: Any
    plugin: str
    distribution: str
    version: str
    code: str = ""
    signed_off: bool = False
    comparisons: tuple[Offered, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether a third party offers it."""
        return self.distribution != "dpspec"

    @property
    def origin(self) -> str:
        """Distribution and version."""
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, kw_only=True)
class BrokenPlugin:
    """A plugin that failed to load, the reason, and its known ``kinds``, if any."""

    plugin: str
    distribution: str
    version: str
    reason: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All providers of the installed plugins, by kind."""

    mechanisms: Mapping[str, Offered] = field(default_factory=dict)
    datasets: Mapping[str, Offered] = field(default_factory=dict)
    models: Mapping[str, Offered] = field(default_factory=dict)
    backends: Mapping[str, Offered] = field(default_factory=dict)
    reporters: Mapping[str, Offered] = field(default_factory=dict)
    executors: Mapping[str, Offered] = field(default_factory=dict)
    canaries: Mapping[str, Offered] = field(default_factory=dict)
    scores: Mapping[str, Offered] = field(default_factory=dict)
    losses: Mapping[str, Offered] = field(default_factory=dict)
    attack_methods: Mapping[str, Offered] = field(default_factory=dict)
    rules: Mapping[str, Offered] = field(default_factory=dict)
    sampling_schemes: Mapping[str, Offered] = field(default_factory=dict)
    noises: Mapping[str, Offered] = field(default_factory=dict)
    comparisons: Mapping[str, Offered] = field(default_factory=dict)
    commands: Mapping[str, Offered] = field(default_factory=dict)
    broken: tuple[BrokenPlugin, ...] = ()
