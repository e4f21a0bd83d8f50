"""What the fuzz campaign makes and feeds: one module per kind of input, all drawing from one source of chance."""

from __future__ import annotations

from support.fuzzing.datafiles import Csv, Idx, Npz, Parquet, Pictures
from support.fuzzing.plugins import Plugins
from support.fuzzing.records import Records
from support.fuzzing.results import Results
from support.fuzzing.specs import Specs
from support.fuzzing.target import Target

#: Every target, by the name that the command line knows.
TARGETS: dict[str, type[Target]] = {
    target.name: target for target in (Specs, Results, Records, Plugins, Csv, Npz, Idx, Parquet, Pictures)
}
