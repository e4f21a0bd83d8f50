"""Data files with changed bytes. ``tests/data`` has tables, headers and footers with another structure."""

import gzip
import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from support.fuzzing.chance import mutate_bytes, write

COMMON: tuple[Mapping[str, Any], ...] = (
    {},
    {},
    {"size": 3, "seed": 1},
    {"split": {"test": 0.3, "seed": 0}},
    {"radius": 0.5},
    {"standardise": {"mean": 0.5, "std": 2.0}},
)


@dataclass(frozen=True)
class Given:
    """Files, and the data block that names them."""

    options: Mapping[str, Any]
    files: Mapping[str, bytes]


class DataFiles:
    """A file format whose source is described and loaded. bases: makes valid files."""

    def __init__(self, source: str, bases: Callable[[], list[Given]]) -> None:
        self.source, self.bases = source, bases

    def warm(self, folder: Path) -> None:
        self._bases = self.bases()
        for given in self._bases:
            assert self.feed(given, folder) == "loaded", f"{self.source}: a base is not readable"

    def case(self, chance: random.Random) -> Given:
        base, other = chance.choice(self._bases), chance.choice(self._bases)
        name = chance.choice(sorted(base.files))
        changed = mutate_bytes(chance, base.files[name], chance.choice(sorted(other.files.values())))
        options = {**(base if chance.randrange(8) else other).options, **chance.choice(COMMON)}
        return Given(options, {**base.files, name: changed})

    def feed(self, case: Given, folder: Path) -> str:
        """Read facts, then rows; invalid files raise ``DataError``."""
        from dpspec.contract import DataError, FrozenMap
        from dpspec.registry.loader import resolve

        write(case.files, folder)
        source = resolve(self.source)(FrozenMap(case.options), folder)  # type: ignore[operator]
        try:
            source.facts()
        except DataError:
            return "refused"
        try:
            source.load()
        except DataError:
            return "described"
        return "loaded"


PLAIN = {"label": "y", "classes": 2}
NAMED = {"label": "y", "classes": ["no", "yes"], "categories": {"c": ["p", "q"]}}


def tables() -> list[Given]:
    numbers = b"a,b,y\n" + b"".join(b"%d,%.2f,%d\n" % (i, i / 7, i % 2) for i in range(20))
    words = b"a,c,y\n" + b"".join(b"%d,%s,%s\n" % (i, b"pq"[i % 2 :][:1], b"no" if i % 3 else b"yes") for i in range(9))
    named = {**NAMED, "path": "t.csv", "missing": ["", "NA"]}
    return [Given({**PLAIN, "path": "t.csv"}, {"t.csv": numbers}), Given(named, {"t.csv": words})]


def archives() -> list[Given]:
    import numpy as np

    def archive(save: Callable[..., None], **arrays: Any) -> Given:
        out = io.BytesIO()
        save(out, **arrays)
        return Given({"path": "d.npz", "classes": 2}, {"d.npz": out.getvalue()})

    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    test = {"x_test": x[:3], "y_test": y[:3]}
    return [
        archive(np.savez, x=x, y=y),
        archive(np.savez_compressed, x=x.astype(">f4"), y=y.astype("u1"), **test),
        archive(np.savez_compressed, x=np.zeros((6, 4, 4), dtype=np.uint8), y=y[:6]),
    ]


def images() -> list[Given]:
    def idx(*shape: int) -> bytes:
        count = shape[0] * (shape[1] * shape[2] if shape[1:] else 1)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        return head + bytes(i % 10 for i in range(count))

    options, pack = {"images": "x", "labels": "y", "classes": 10}, partial(gzip.compress, mtime=0)
    test = {**options, "test_images": "tx", "test_labels": "ty"}
    return [
        Given(options, {"x": idx(10, 4, 4), "y": idx(10)}),
        Given(options, {"x.gz": pack(idx(10, 4, 4)), "y": pack(idx(10))}),
        Given(test, {"x": idx(10, 4, 4), "y": idx(10), "tx": idx(3, 4, 4), "ty": idx(3)}),
    ]


def columns() -> list[Given]:
    import pyarrow as pa
    from pyarrow import parquet

    def table(packed: str, options: Mapping[str, Any], **parts: Any) -> Given:
        out = io.BytesIO()
        parquet.write_table(pa.table(parts), out, compression=packed, row_group_size=7)
        return Given({**options, "path": "t.parquet"}, {"t.parquet": out.getvalue()})

    words = {"a": [1.0, 2.0] * 5, "c": ["p", "q"] * 5, "y": ["no", "yes"] * 5}
    more = {**NAMED, "categories": {"c": ["p", "q"], "d": ["p", ""]}}
    return [
        table("none", PLAIN, a=list(range(20)), b=[i / 7 for i in range(20)], y=[i % 2 for i in range(20)]),
        table("gzip", NAMED, **words),
        table("snappy", more, **words, d=pa.array(["p", None] * 5).dictionary_encode()),
    ]


FORMATS = {
    "csv": partial(DataFiles, "dpspec.data.table_files:Csv", tables),
    "npz": partial(DataFiles, "dpspec.data.arrays:Npz", archives),
    "idx": partial(DataFiles, "dpspec.data.arrays:Idx", images),
    "parquet": partial(DataFiles, "dpspec.data.table_files:Parquet", columns),
}
