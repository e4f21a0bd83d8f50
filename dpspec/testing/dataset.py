"""The suite for data kinds: the rows are those that the facts describe."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from dpspec.contract import DataError, DataSource, Json, LoadedData, thaw
from dpspec.testing.provider import ProviderSuite, filled, imported_by, require


class DatasetSuite(ProviderSuite):
    """Subclass it and set ``kind``; override :meth:`options` if the kind needs options or files.

    rows: False for a kind that only declares facts.
    """

    family: ClassVar[str] = "dataset"
    rows: ClassVar[bool] = True

    def options(self, directory: Path) -> Mapping[str, Json]:
        """The options to try. Write the files that they name into ``directory``, the spec's folder."""
        return {}

    def source(self, directory: Path) -> DataSource:
        """Create a source."""
        made: DataSource = self.code()(self._options(directory), directory)
        return made

    def test_options_fit_the_schema(self, tmp_path: Path) -> None:
        """The options of this suite are valid under the kind's own schema."""
        from jsonschema import Draft202012Validator

        validator = Draft202012Validator(thaw(self.provider().schema))
        errors = [e.message for e in validator.iter_errors(thaw(self._options(tmp_path)))]
        require(not errors, "\n".join(errors))

    def test_facts_are_light(self, tmp_path: Path) -> None:
        """The facts import neither torch nor scipy, so that ``dpspec validate`` is fast."""
        module, _, name = self.provider().source.partition(":")
        statements = f"""
            import importlib
            from pathlib import Path
            from dpspec.contract import FrozenMap
            source = getattr(importlib.import_module({module!r}), {name!r})
            source(FrozenMap({thaw(self._options(tmp_path))!r}), Path({str(tmp_path)!r})).facts()
        """
        heavy = imported_by(statements, ("torch", "scipy", "sklearn"))
        require(not heavy, f"facts() imports {', '.join(heavy)}; import them inside load()")

    def test_facts_are_stable(self, tmp_path: Path) -> None:
        """Two sources, and one in another folder with the same files, return the same facts and digest."""
        here = tmp_path / "here"
        here.mkdir()
        facts = self.source(here).facts()
        require(self.source(here).facts() == facts, "two sources of the same options state different facts")
        shutil.copytree(here, tmp_path / "there")
        moved = self.code()(self._options(here), tmp_path / "there").facts()
        require(moved == facts, "the facts depend on the folder: paths must not enter the digest")

    def test_facts_equal_the_rows(self, tmp_path: Path) -> None:
        """Counts, shapes, classes and dtypes of the rows equal those of the facts."""
        source = self.source(tmp_path)
        facts = source.facts()
        require(facts.records >= 1, f"facts promise {facts.records} records")
        require(facts.features == prod(facts.shape), f"{facts.features} features do not fill shape {facts.shape}")
        if not self.rows:
            require(facts.digest is None, "a kind without rows has no digest")
            try:
                source.load()
            except DataError:
                return
            raise AssertionError("a kind without rows must refuse to load() with a DataError")
        require(facts.digest, "a kind with rows must state their digest")
        loaded = source.load()
        for what, x, y, count in (
            ("train", loaded.train_x, loaded.train_y, facts.records),
            ("test", loaded.test_x, loaded.test_y, facts.test_records),
        ):
            require(x.shape == (count, *facts.shape), f"{what}_x has shape {x.shape}, not {(count, *facts.shape)}")
            require(y.shape == (count,), f"{what}_y has shape {y.shape}, not {(count,)}")
            require(str(x.dtype) == "float32", f"{what}_x is {x.dtype}, not float32")
            require(str(y.dtype) == "int64", f"{what}_y is {y.dtype}, not int64")
            if count:
                low, high = int(y.min()), int(y.max())
                require(
                    low >= 0 and high < facts.classes, f"{what}_y runs over {low}..{high} of {facts.classes} classes"
                )

    def test_rows_are_finite(self, tmp_path: Path) -> None:
        """The rows hold neither NaN nor infinity."""
        if not self.rows:
            return
        import numpy as np

        loaded = self.source(tmp_path).load()
        for what, x in (("train", loaded.train_x), ("test", loaded.test_x)):
            require(bool(np.isfinite(x).all()), f"{what}_x holds values that are not finite")

    def test_rows_are_the_same_every_time(self, tmp_path: Path) -> None:
        """Loading twice gives equal rows, also after the caller writes into the first ones."""
        if not self.rows:
            return
        import numpy as np

        first = self.source(tmp_path).load()
        kept = [a.copy() for a in _arrays(first)]
        for array in _arrays(first):
            if array.flags.writeable:
                array[...] = 0
        again = _arrays(self.source(tmp_path).load())
        same = all(np.array_equal(a, b) for a, b in zip(kept, again, strict=True))
        require(same, "loading twice gives different rows")

    def _options(self, directory: Path) -> Any:
        return filled(self.provider().schema, self.options(directory))


def _arrays(loaded: LoadedData) -> list[Any]:
    return [loaded.train_x, loaded.train_y, loaded.test_x, loaded.test_y]
