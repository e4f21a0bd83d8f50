"""Data files: tables, archives, images and columns with changed bytes, cells and headers."""

import gzip
import io
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fuzzing.chance import NUMBERS, TEXTS, mutate_bytes, write

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
    options: Mapping[str, Any]
    files: Mapping[str, bytes]


class DataFiles:
    name: str
    source: str

    def warm(self, folder: Path) -> None:
        self._bases = self.bases()
        for given in self._bases:
            assert self.feed(given, folder) == "loaded", f"{self.name}: a base is not readable"

    def bases(self) -> list[Given]:
        raise NotImplementedError

    def mutate(self, chance: random.Random, data: bytes, other: bytes) -> bytes:
        return mutate_bytes(chance, data, other)

    def case(self, chance: random.Random) -> Given:
        base, other = chance.choice(self._bases), chance.choice(self._bases)
        name = chance.choice(sorted(base.files))
        changed = self.mutate(chance, base.files[name], chance.choice(sorted(other.files.values())))
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


class Csv(DataFiles):
    """Comma-separated tables, with cells that are replaced, quoted and added."""

    name, source = "csv", "dpspec.data.table_files:Csv"

    def bases(self) -> list[Given]:
        numbers = b"a,b,y\n" + b"".join(b"%d,%.2f,%d\n" % (i, i / 7, i % 2) for i in range(20))
        words = b"a,c,y\n" + b"".join(
            b"%d,%s,%s\n" % (i, b"pq"[i % 2 :][:1], b"no" if i % 3 else b"yes") for i in range(9)
        )
        plain = {"path": "t.csv", "label": "y", "classes": 2}
        named = {"classes": ["no", "yes"], "categories": {"c": ["p", "q"]}, "missing": ["", "NA"]}
        return [Given(plain, {"t.csv": numbers}), Given({**plain, **named}, {"t.csv": words})]

    def mutate(self, chance: random.Random, data: bytes, other: bytes) -> bytes:
        if chance.randrange(2):
            return mutate_bytes(chance, data, other)
        rows = [line.split(b",") for line in data.split(b"\n")]
        for _ in range(1 + chance.randrange(4)):
            row = chance.choice(rows)
            text = chance.choice((*TEXTS, *map(str, NUMBERS), '"', '"a,\nb"', "NA")).encode("utf-8", "surrogatepass")
            row[chance.randrange(len(row))] = text
            row += [text * 40] * (chance.randrange(6) == 0)
        return b"\n".join(b",".join(row) for row in rows)


class Npz(DataFiles):
    name, source = "npz", "dpspec.data.arrays:Npz"

    def bases(self) -> list[Given]:
        import numpy as np

        def archive(packed: bool, **arrays: Any) -> bytes:
            out = io.BytesIO()
            (np.savez_compressed if packed else np.savez)(out, **arrays)
            return out.getvalue()

        x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
        images = np.zeros((6, 4, 4), dtype=np.uint8)
        options = {"path": "d.npz", "classes": 2}
        test = {"x_test": x[:3], "y_test": y[:3]}
        return [
            Given(options, {"d.npz": archive(False, x=x, y=y)}),
            Given(options, {"d.npz": archive(True, x=x.astype(">f4"), y=y.astype("u1"), **test)}),
            Given(options, {"d.npz": archive(True, x=images, y=y[:6])}),
        ]


class Idx(DataFiles):
    """Images, some compressed, also with headers of other sizes."""

    name, source = "idx", "dpspec.data.arrays:Idx"

    def bases(self) -> list[Given]:
        images, labels = _idx(10, 4, 4), _idx(10)
        options = {"images": "x", "labels": "y", "classes": 10}
        test = {**options, "test_images": "tx", "test_labels": "ty"}
        return [
            Given(options, {"x": images, "y": labels}),
            Given(options, {"x.gz": gzip.compress(images, mtime=0), "y": gzip.compress(labels, mtime=0)}),
            Given(test, {"x": images, "y": labels, "tx": _idx(3, 4, 4), "ty": _idx(3)}),
        ]

    def mutate(self, chance: random.Random, data: bytes, other: bytes) -> bytes:
        if chance.randrange(2):
            return mutate_bytes(chance, data, other)
        sizes = [chance.choice((0, 1, 4, 10, 2**16, 2**28, 2**32 - 1)) for _ in range(chance.choice((1, 3, 4)))]
        made = _idx(*sizes, most=chance.choice((0, 10, 160, 4096)), type=chance.choice((8, 8, 8, 9, 13, 14)))
        return gzip.compress(made, mtime=0) if chance.randrange(2) else made


class Parquet(DataFiles):
    name, source = "parquet", "dpspec.data.table_files:Parquet"

    def bases(self) -> list[Given]:
        import pyarrow as pa
        from pyarrow import parquet

        def table(packed: str, **columns: Any) -> dict[str, bytes]:
            out = io.BytesIO()
            parquet.write_table(pa.table(columns), out, compression=packed, row_group_size=7)
            return {"t.parquet": out.getvalue()}

        numbers = {"a": list(range(20)), "b": [i / 7 for i in range(20)], "y": [i % 2 for i in range(20)]}
        words = {"a": [1.0, 2.0] * 5, "c": ["p", "q"] * 5, "y": ["no", "yes"] * 5}
        plain = {"path": "t.parquet", "label": "y", "classes": 2}
        named: dict[str, Any] = {**plain, "classes": ["no", "yes"], "categories": {"c": ["p", "q"]}}
        more = {**named, "categories": {**named["categories"], "d": ["p", ""]}}
        return [
            Given(plain, table("none", **numbers)),
            Given(named, table("gzip", **words)),
            Given(more, table("snappy", **words, d=pa.array(["p", None] * 5).dictionary_encode())),
        ]

    def mutate(self, chance: random.Random, data: bytes, other: bytes) -> bytes:
        """Change bytes anywhere, or in the footer, which describes the file."""
        if chance.randrange(2):
            return mutate_bytes(chance, data, other)
        length = int.from_bytes(data[-8:-4], "little")
        footer = mutate_bytes(chance, data[-8 - length : -8])
        size = len(footer) if chance.randrange(3) else length
        return data[: -8 - length] + footer + size.to_bytes(4, "little") + b"PAR1"


def _idx(*shape: int, most: int = 4096, type: int = 8) -> bytes:
    """Return an IDX file with at most ``most`` values."""
    head = bytes([0, 0, type, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    return head + bytes(i % 10 for i in range(min(math.prod(shape), most)))
