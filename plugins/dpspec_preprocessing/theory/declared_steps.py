"""The steps of a pipeline as a spec declares them, each with its own options and no others; read once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Imputation:
    """Missing values are replaced by a feature's ``mean``, ``median`` or ``trimmed`` mean, or by a ``regression``.

    trim: how many values are left out at each end of a feature, at least 1 (``trimmed``); 0 where none is declared.
    same_mask: whether neighbours miss the same entries (``mask: same``).
    """

    by: Literal["mean", "median", "trimmed", "regression"]
    trim: int = 0
    same_mask: bool = False

    @property
    def name(self) -> str:
        """What the step imputes by."""
        return self.by


@dataclass(frozen=True, kw_only=True)
class Merging:
    """Near-duplicates within ``eta`` >= 0 of one another: all but one become zero, or all become equal to that one."""

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
    """Records on their first ``components`` >= 1 principal directions; ``affine``: around their mean."""

    components: int
    affine: bool = False

    @property
    def name(self) -> str:
        """``pca``."""
        return "pca"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Features less their mean over their deviation, cut back to norm ``clip`` > 0; infinite where none is declared."""

    clip: float

    @property
    def name(self) -> str:
        """``scale``."""
        return "scale"


Step: TypeAlias = Imputation | Merging | Projection | Scaling


def read_step(block: Mapping[str, Any]) -> Step:
    """A step from its block in ``mechanism.pipeline``; of a block that names several, which is refused, the first."""
    if "impute" in block:
        return Imputation(by=block["impute"], trim=int(block.get("trim", 0)), same_mask=block.get("mask") == "same")
    if "deduplicate" in block:
        return Merging(by="deduplicate", eta=float(block["deduplicate"]))
    if "quantise" in block:
        return Merging(by="quantise", eta=float(block["quantise"]))
    if "pca" in block:
        return Projection(components=int(block["pca"]), affine=bool(block.get("affine", False)))
    return Scaling(clip=float(block.get("clip", math.inf)))
