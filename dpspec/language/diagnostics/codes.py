"""The list of diagnostic codes in ``codes.yaml``, and their explanations for ``dpspec explain CODE``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypeAlias

import yaml

from dpspec.language.diagnostics.render import WIDTH

#: Origin of a diagnostic: validation of the spec, the check of mechanism, data and model together, the environment
#: (such as a broken plugin), or a remark on a valid spec.
Stage: TypeAlias = Literal["spec", "check", "environment", "remark"]


@dataclass(frozen=True, kw_only=True)
class Code:
    """One diagnostic code.

    Attributes:
        name: The code.
        summary: A phrase.
        meaning: One or more sentences.
        example: Lines of a spec or of a shell session.
        fix: The correction.
        stage: The origin of the diagnostic.
    """

    name: str
    summary: str
    meaning: str
    example: str
    fix: str
    stage: Stage = "spec"


def _read() -> Mapping[str, Code]:
    entries = yaml.safe_load(files(__package__).joinpath("codes.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: Code(name=name, **entry) for name, entry in entries.items()})


#: All codes that dpspec emits, by name. Plugins may emit others.
CODES: Mapping[str, Code] = _read()


def explain(code: str) -> str | None:
    """Return the explanation of a code, or None if dpspec does not define it."""
    found = CODES.get(code)
    if found is None:
        return None
    example = "\n".join(f"    {line}".rstrip() for line in found.example.strip("\n").splitlines())
    meaning = textwrap.fill(found.meaning, WIDTH, break_on_hyphens=False)
    fix = textwrap.fill(f"Fix: {found.fix}", WIDTH, break_on_hyphens=False)
    return f"{code}: {found.summary}\n\n{meaning}\n\nExample:\n\n{example}\n\n{fix}\n"
