"""The one list of diagnostic codes: what each means, an example, and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dpspec.spec.codes import composition, meaning, reading, structure
from dpspec.spec.codes.code import Code

__all__ = ["CODES", "Code"]

#: Every code that dpspec itself emits, by name. A new one goes into the module of its stage.
CODES: Mapping[str, Code] = MappingProxyType(
    {code.name: code for module in (reading, composition, structure, meaning) for code in module.CODES}
)
