"""The form of one entry in the table of diagnostic codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: What it takes to find it: the spec language alone, the check of mechanism, data and model together, more than a
#: file (a plugin that is broken, say), or nothing, as it is a remark on a valid spec.
Stage: TypeAlias = Literal["spec", "check", "environment", "remark"]


@dataclass(frozen=True, kw_only=True)
class Code:
    """One diagnostic code.

    summary: a phrase. meaning: sentences. example: lines of a spec or of a shell. mend: what to write instead.
    """

    name: str
    summary: str
    meaning: str
    example: str
    mend: str
    stage: Stage = "spec"
