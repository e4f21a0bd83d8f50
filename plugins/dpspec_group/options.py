"""The attack that a spec asks for, with its defaults: no torch, no numerics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dpspec.contract as dps

#: The kinds of canaries per space, the default first.
KINDS: dict[str, tuple[str, ...]] = {
    "gradient": ("orthogonal",),
    "input": ("mislabelled", "blank", "noise", "duplicate"),
}

#: How planted records are scored by a final model, the default first.
SCORES = ("loss-difference", "loss", "likelihood-ratio")

#: Many runs tell each score by how many of these edges it reaches, and thresholds are among them: natural logarithms
#: of likelihood ratios, or differences of losses.
EDGES = tuple(number / 64 for number in range(-768, 769))


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What is planted and how it is looked for.

    sizes: the group sizes, ascending; each gets ``share`` canary groups per run.
    sequential: whether runs end as soon as all claims are decided, and are tested accordingly.
    spread: the angle, in radians, by which each member of a gradient canary group is turned away from the others.
    """

    method: str
    access: str
    space: str
    kind: str
    score: str
    spread: float
    sizes: tuple[int, ...]
    share: int
    sequential: bool = False

    @property
    def count(self) -> int:
        """All canary groups of one run."""
        return self.share * len(self.sizes)

    @property
    def white_box(self) -> bool:
        """Whether every iterate is seen, so that canaries are scored step by step."""
        return self.access == "all-iterates"

    @property
    def records_on_average(self) -> int:
        """How many records the canaries add if half of the groups are planted."""
        return self.share * sum(self.sizes) // 2

    @property
    def words(self) -> str:
        """For reports."""
        planted = "" if self.space == "gradient" else f", {self.kind} records"
        scored = "" if self.white_box or self.space == "gradient" else f" by {self.score}"
        return f"{self.method}, {self.access}{planted}{scored}"

    @property
    def calibrated(self) -> bool:
        """Whether half of the canaries only serve to learn how scores differ."""
        return self.space == "input" and not self.white_box and self.score == "likelihood-ratio"

    def tested(self, canaries: int) -> int:
        """How many of so many canaries are guessed."""
        return canaries - canaries // 2 if self.calibrated else canaries

    def scope(self, spec: dps.Spec) -> dps.Scope:
        """What the attack speaks of: the pipeline that ran, on this data set.

        Where several groups are drawn for in one run, each stands among the others that were planted.
        """
        return dps.Scope(
            adjacency=spec.threat_model.adjacency,
            unit=spec.threat_model.unit,
            access=self.access,
            adversary="gradient" if self.space == "gradient" else "record",
            data="this" if self.method == "many-run" and len(self.sizes) == 1 else "planted",
            pipeline="executed",
        )


def attack_of(inputs: Mapping[str, Any]) -> Attack:
    """From the inputs of a trial, or a whole document: its ``audit`` and ``threat_model``."""
    audit, threat = inputs["audit"], inputs["threat_model"]
    canary = audit.get("canary") or {}
    space = str(canary.get("space", "gradient"))
    sizes = tuple(sorted({int(size) for size in threat["group_size"]}))
    return Attack(
        method=str(audit["method"]),
        access=str(threat["access"]),
        space=space,
        kind=str(canary.get("kind", KINDS[space][0])),
        score=str(audit.get("score", SCORES[0])),
        spread=float(canary.get("spread", 0.0)),
        sizes=sizes,
        share=int(canary.get("count", len(sizes))) // len(sizes),
        sequential=audit.get("stop") == "settled",
    )


def attack_of_spec(spec: dps.Spec) -> Attack:
    """The attack of a spec that has an audit."""
    return attack_of(spec.document)
