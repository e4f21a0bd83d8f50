"""The form of one entry in the table of diagnostic codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Who finds it: the spec language alone, the check of mechanism, data and model together, or nobody for whom a file
#: alone could show it.
Stage: TypeAlias = Literal["spec", "check", "environment"]


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
