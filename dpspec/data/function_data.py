"""Datasets of decorated functions: arrays, torch datasets and data frames as rows in memory."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Facts, FrozenMap, LoadedData
from dpspec.contract.parts import Part
from dpspec.data.source import Source, check_count, checked, whole_facts, whole_rows

if TYPE_CHECKING:
    from dpspec.data.source import Rows


class FunctionData(Source):
    """The rows that a function returns. They are digested, so that trials of other rows are never reused."""

    def __init__(self, part: Part, options: FrozenMap, directory: Path) -> None:
        super().__init__(options, directory)
        self._part = part
        self._facts: Facts | None = None
        self._loaded: LoadedData | None = None

    def describe(self) -> Facts:
        if self._facts is None:
            self._loaded = self._call()
            self._facts = self._facts_of(self._loaded)
        return self._facts

    def read(self) -> LoadedData:
        facts, loaded = self.describe(), self._loaded
        if loaded is None:
            loaded = self._call()
            if self._facts_of(loaded) != facts:
                raise DataError(f"{self.what()}: two calls return different rows: draw them with a fixed seed")
        self._loaded = None  # rows are in memory once
        return loaded

    def what(self, test: bool = False) -> str:
        return f"{self._part.function.__name__}()" + " (test)" * test

    def _call(self) -> LoadedData:
        folder = (self.directory,) if self._part.takes_folder else ()
        try:
            with seeded(0):
                value = self._part.call(self.options, *folder)
            return whole_rows(*self._halves(value))
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.what()} fails at {self._part.located(error)}") from error

    def _facts_of(self, rows: LoadedData) -> Facts:
        check_count(self.what(), rows.train_x.shape)
        key = [
            [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
            for array in (rows.train_x, rows.train_y, rows.test_x, rows.test_y)
        ]
        records, *shape = rows.train_x.shape
        return whole_facts(records, tuple(shape), self._classes(), key, test=len(rows.test_x))

    def _classes(self) -> int:
        return 1 if self._part.settings["target"] == "real" else self.number("classes")

    def _halves(self, value: Any) -> list[Rows]:
        """The training rows of a function's value, and its test rows if there are any."""
        pairs = [value]
        if isinstance(value, tuple | list):
            arrays = [part for part in value if hasattr(part, "shape") and not hasattr(part, "columns")]
            if len(arrays) == len(value) and len(value) in (2, 4):
                pairs = [value[:2], value[2:]] if len(value) == 4 else [value]
            elif not arrays and len(value) == 2:
                pairs = list(value)
            else:
                kinds = ", ".join(type(part).__name__ for part in value)
                raise DataError(
                    f"{self.what()}: returns ({kinds}); return (x, y), (x, y, x_test, y_test), a Dataset, a data "
                    "frame, or a pair of one of the last two"
                )
        classes = self._classes()
        halves = [checked(*self._rows(pair), classes, self.what(test=bool(test))) for test, pair in enumerate(pairs)]
        shapes = [x.shape[1:] for x, _ in halves]
        if shapes[-1] != shapes[0]:
            raise DataError(f"{self.what(True)}: records of shape {shapes[-1]}, not {shapes[0]}")
        return halves

    def _rows(self, half: Any) -> Rows:
        import numpy as np

        if hasattr(half, "columns") and hasattr(half, "to_numpy"):
            label = self._part.settings["label"] or half.columns[-1]
            if label not in half.columns:
                raise DataError(f"{self.what()}: the data frame has no column {label!r}")
            features = half.drop(columns=[label])
            for name, dtype in features.dtypes.items():
                if getattr(dtype, "kind", "O") not in "bfiu":
                    raise DataError(f"{self.what()}: column {name!r} has no numbers ({dtype}): encode it")
            x, y = features.to_numpy(dtype=np.float64), half[label].to_numpy()
        elif isinstance(half, tuple | list):
            x, y = np.asarray(half[0]), np.asarray(half[1])
        elif hasattr(half, "__getitem__") and hasattr(half, "__len__"):
            check_count(self.what(), (len(half),))
            items = [half[index] for index in range(len(half))]
            number = float if self._classes() == 1 else int
            x, y = np.stack([np.asarray(item[0]) for item in items]), np.asarray([number(item[1]) for item in items])
        else:
            raise DataError(f"{self.what()}: returns a {type(half).__name__}, not arrays, a Dataset or a data frame")
        if x.ndim not in (2, 3, 4):
            raise DataError(f"{self.what()}: x has shape {x.shape}: return (n, features) or (n, channels, h, w)")
        return x[:, None] if x.ndim == 3 else x, y


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch (on the CPU), and restore them afterwards."""
    import numpy as np

    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch:
            torch.default_generator.set_state(states[2])
