"""Distributions of noise of third parties, which a release of ``composition`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpspec.contract.frozen import Json
from dpspec.contract.providers import TrialProvider


@dataclass(frozen=True, kw_only=True)
class NoiseKind(TrialProvider):
    """A third-party distribution of noise for releases ``{kind: noise, noise: KIND, scale: ...}`` of ``composition``.

    Attributes:
        summary: Phrase for the reference of specs, such as ``logistic noise, of standard deviation 1.814 scale``.
        code: Names a function or class ``(scale, sensitivity) -> dpspec.accounting.Pair`` as ``module:name``. The pair
            dominates the release of one number that neighbors change by at most ``sensitivity``, and two such numbers
            attain it. ``dpspec.accounting.LogConcaveNoise`` is a base class.
    """

    code: str


#: The available distributions by kind; the registry fills it.
NOISES: dict[str, NoiseKind] = {}


def offer_noises(kinds: Mapping[str, NoiseKind]) -> bool:
    """Make these distributions, and no others, available to specs; return whether anything changed."""
    if dict(kinds) == NOISES:
        return False
    NOISES.clear()
    NOISES.update(kinds)
    return True


def noises_of(mechanism: Mapping[str, Json]) -> list[str]:
    """The names of the distributions that the ``releases`` of a mechanism's block use, in order."""
    releases = mechanism.get("releases") or ()
    names = [release["noise"] for release in releases if isinstance(release, Mapping) and "noise" in release]
    return sorted({str(name) for name in names})
