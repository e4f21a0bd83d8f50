"""Inputs of the fuzz campaign, one module per kind.

A target has a name; ``warm(folder)`` imports and makes everything that its cases need; ``case(chance)`` makes a case,
the same one for the same choices; ``feed(case, folder)`` gives it to dpspec in a folder and returns what became of it.
Any exception out of ``feed`` is a finding.
"""

from typing import Any

from support.fuzzing.datafiles import Csv, Idx, Npz, Parquet
from support.fuzzing.results import Results
from support.fuzzing.specs import Specs

#: Targets by name.
TARGETS: dict[str, Any] = {target.name: target for target in (Specs, Results, Csv, Npz, Idx, Parquet)}
