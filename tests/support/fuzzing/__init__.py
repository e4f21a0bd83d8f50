"""Inputs of the fuzz campaign, one module per kind.

``warm(folder)`` does all imports of its cases, ``case(chance)`` makes a case that depends on
the random choices alone, and ``feed(case, folder)`` feeds it to dpspec in a folder and returns the outcome. Any
exception in ``feed`` is a finding.
"""

from typing import Any

from support.fuzzing.datafiles import FORMATS
from support.fuzzing.results import Results
from support.fuzzing.specs import Specs

#: Targets by name.
TARGETS: dict[str, Any] = {"specs": Specs, "results": Results, **FORMATS}
