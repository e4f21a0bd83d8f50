"""Inputs of the fuzz campaign, one module per kind."""

from __future__ import annotations

from support.fuzzing.datafiles import Csv, Idx, Npz, Parquet, Pictures
from support.fuzzing.records import Records
from support.fuzzing.results import Results
from support.fuzzing.specs import Specs
from support.fuzzing.target import Target

#: Targets by name.
TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (Specs, Results, Records, Csv, Npz, Idx, Parquet, Pictures)
}
