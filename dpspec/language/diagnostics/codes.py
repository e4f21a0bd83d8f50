"""The one list of diagnostic codes, ``codes.yaml``, and ``dpspec explain CODE``: what one means and how to mend it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypeAlias

import yaml

from dpspec.language.diagnostics.render import WIDTH

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


def _read() -> Mapping[str, Code]:
    entries = yaml.safe_load(files(__package__).joinpath("codes.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: Code(name=name, **entry) for name, entry in entries.items()})


#: Every code that dpspec itself emits, by name.
CODES: Mapping[str, Code] = _read()


def explain(code: str) -> str | None:
    """The explanation of a diagnostic's code.

    None where the table does not have it: a plugin may emit codes of its own, which its documentation explains.
    """
    found = CODES.get(code)
    if found is None:
        return None
    example = "\n".join(f"    {line}".rstrip() for line in found.example.strip("\n").splitlines())
    meaning = textwrap.fill(found.meaning, WIDTH, break_on_hyphens=False)
    mend = textwrap.fill(f"To mend it: {found.mend}", WIDTH, break_on_hyphens=False)
    return f"{code}: {found.summary}\n\n{meaning}\n\nFor example:\n\n{example}\n\n{mend}\n"
