"""The declared steps of a pipeline with their options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """Imputation of missing values by a feature's ``mean``, ``median`` or ``trimmed`` mean, or by a ``regression``.

    Attributes:
        by: The statistic.
        trim: Number of values dropped at each end of a feature (``trimmed``); 0 if not declared.
        same_mask: Whether neighbours have the same missing entries (``mask: same``).
    """

    by: Literal["mean", "median", "trimmed", "regression"]
    trim: int = 0
    same_mask: bool = False

    @property
    def name(self) -> str:
        """The statistic."""
        return self.by


@dataclass(frozen=True, kw_only=True)
class Merging:
    """Merging of clusters of near-duplicates within ``eta`` >= 0: the others become zero, or equal to one of them."""

    by: Literal["deduplicate", "quantise"]
    eta: float

    @property
    def name(self) -> str:
        """``deduplicate`` or ``quantise``."""
        return self.by

    @property
    def drops(self) -> bool:
        """Whether merged records become zero."""
        return self.by == "deduplicate"


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Projection onto the first ``components`` >= 1 principal directions; ``affine``: around the mean."""

    components: int
    affine: bool = False

    @property
    def name(self) -> str:
        """``pca``."""
        return "pca"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Standard scaling of features, then clipping of records to norm ``clip`` > 0 (infinite if not declared)."""

    clip: float

    @property
    def name(self) -> str:
        """``scale``."""
        return "scale"


Step: TypeAlias = Imputation | Merging | Projection | Scaling


def read_step(block: Mapping[str, Any]) -> Step:
    """Read a block of ``mechanism.pipeline``. If it names several steps (refused separately), read the first."""
    if "impute" in block:
        return Imputation(by=block["impute"], trim=int(block.get("trim", 0)), same_mask=block.get("mask") == "same")
    if "deduplicate" in block:
        return Merging(by="deduplicate", eta=float(block["deduplicate"]))
    if "quantise" in block:
        return Merging(by="quantise", eta=float(block["quantise"]))
    if "pca" in block:
        return Projection(components=int(block["pca"]), affine=bool(block.get("affine", False)))
    return Scaling(clip=float(block.get("clip", math.inf)))
