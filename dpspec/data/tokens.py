"""Data kinds ``tokens``, sequences of token ids from a file, and ``synthetic-tokens``, drawn from a seed.

A record is a sequence of ``length`` ids below ``vocabulary``, padded with id 0 at the end. Vocabulary and length are
public constants. A public tokenizer must have produced the ids. Ids are not quantities, so these kinds lack the keys
``standardise`` and ``radius``. Like all features, ids are stored as float32, which represents them exactly.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.canonical import digest
from dpspec.data.arrays import npy_header, open_archive, open_member
from dpspec.data.files import check_count, locate, sha256
from dpspec.data.options import CLASSES, path, schema
from dpspec.data.source import GENERATE, Source, generator

if TYPE_CHECKING:
    import numpy as np

#: The padding id.
PADDING = 0

#: Maximum length of a line in characters.
_MAX_LINE = 2**20

_VOCABULARY: dict[str, Json] = {
    "type": "integer",
    "minimum": 2,
    "maximum": 2**20,
    "description": "The number of ids, including 0 for padding; ids are 0 to vocabulary - 1. A public constant, "
    "declared rather than counted.",
}

_LENGTH: dict[str, Json] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 65536,
    "description": "The number of ids of a record; shorter texts are padded with 0 at the end. A public constant.",
}

TOKENS = Dataset(
    kind="tokens",
    summary="Labeled texts as sequences of token ids: a .jsonl file, or a numpy .npz file.",
    schema=schema(
        {
            "path": path(
                'The file. Each line of a .jsonl file is {"tokens": [5, 17, 3], "label": 1}. A .npz file contains the '
                "integer arrays x (n, at most length) and y (n,), and optionally x_test and y_test."
            ),
            "vocabulary": _VOCABULARY,
            "length": _LENGTH,
            "truncate": {
                "type": "boolean",
                "default": False,
                "description": "Truncate texts to the first length ids. By default longer texts are errors. Texts are "
                "truncated independently.",
            },
            "classes": CLASSES,
        },
        required=["path", "vocabulary", "length", "classes"],
        scaled=False,
    ),
    source="dpspec.data.tokens:Tokens",
)

SYNTHETIC = Dataset(
    kind="synthetic-tokens",
    summary="Texts of token ids drawn from a seed, with preferred ids for each class.",
    schema=schema(
        {
            "records": {
                "type": "integer",
                "minimum": 2,
                "maximum": 10_000_000,
                "default": 1000,
                "description": "The number of texts to draw, before split and size.",
            },
            "vocabulary": {**_VOCABULARY, "minimum": 4, "default": 50},
            "length": {**_LENGTH, "default": 16},
            "classes": {**CLASSES, "default": 2},
            "noise": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "default": 0.5,
                "description": "The probability that a token is drawn from all ids instead of the class's ids.",
            },
        },
        public=True,
        scaled=False,
    ),
    source="dpspec.data.tokens:SyntheticTokens",
)


class _Texts(Source):
    """A source of records (length,) of ids below ``vocabulary``."""

    def facts_of(self, records: int, test_records: int, key: Json) -> Facts:
        """Return the facts of a source with the given numbers of texts; ``key`` identifies the texts."""
        length, vocabulary = self.number("length"), self.number("vocabulary")
        check_count(self.what(), (records + test_records, length))
        decided: dict[str, Json] = {"length": length, "vocabulary": vocabulary, **key}
        return Facts(
            records=records,
            features=length,
            classes=self.number("classes"),
            shape=(length,),
            test_records=test_records,
            digest=digest(decided),
            vocabulary=vocabulary,
        )

    def number(self, key: str) -> int:
        """Return a number from the options, or its default."""
        defaults = {"records": 1000, "vocabulary": 50, "length": 16, "classes": 2, "seed": 0}
        return int(self.options.get(key, defaults[key]))


class Tokens(_Texts):
    """Texts from a file, in file order."""

    def describe(self) -> Facts:
        """Count lines, or read the headers of arrays."""
        file, truncate = self._file(), bool(self.options.get("truncate", False))
        count = self._counts_of_arrays if self._is_archive(file) else self._count_of_lines
        return self.facts_of(*count(file), {"kind": "tokens", "file": sha256(file), "truncate": truncate})

    def read(self) -> LoadedData:
        """Read all texts. Raises ``DataError`` at the first invalid line or record."""
        file = self._file()
        if not self._is_archive(file):
            x, y = self._lines(file)
            return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])
        with open_archive(file) as archive:
            x, y = self._array(archive, "x"), self._array(archive, "y")
            test_x, test_y = x[:0], y[:0]
            if "x_test.npy" in archive.namelist():
                test_x, test_y = self._array(archive, "x_test"), self._array(archive, "y_test")
        return LoadedData(train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    def _file(self) -> Path:
        return locate(self.directory, self.options["path"])

    def _is_archive(self, file: Path) -> bool:
        if file.suffix.lower() not in (".jsonl", ".npz"):
            raise DataError(f"{file}: its name must end in .jsonl or .npz", "path")
        return file.suffix.lower() == ".npz"

    def _counts_of_arrays(self, file: Path) -> tuple[int, int]:
        with open_archive(file) as archive:
            counts = [self._count(archive, "x", "y"), 0]
            if not {"x_test.npy", "y_test.npy"}.isdisjoint(archive.namelist()):
                counts[1] = self._count(archive, "x_test", "y_test")
        return counts[0], counts[1]

    def _count(self, archive: Any, texts: str, labels: str) -> int:
        shape, wide = self._shape(archive, texts, 2), self.number("length")
        if self._shape(archive, labels, 1) != shape[:1]:
            raise DataError(f"{self.what()}: {labels} must contain one label for each of the {shape[0]} texts")
        if shape[1] > wide and not self.options.get("truncate", False):
            raise DataError(f"{self.what()}: {texts} has {shape[1]} ids per text, but length is {wide}", "length")
        return shape[0]

    def _shape(self, archive: Any, name: str, axes: int) -> tuple[int, ...]:
        what = f"{self.what()}: {name}"
        with open_member(archive, name) as member:
            shape, dtype = npy_header(member, what)
        if dtype.kind not in "iu" or len(shape) != axes:
            raise DataError(f"{what} must have integers and {axes} axes, got dtype {dtype} and shape {shape}")
        check_count(what, shape)
        return shape

    def _array(self, archive: Any, name: str) -> np.ndarray[Any, Any]:
        import numpy as np

        axes = 1 if name.startswith("y") else 2
        self._shape(archive, name, axes)
        with open_member(archive, name) as member:
            values: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
        if axes == 1:
            return values
        vocabulary, length = self.number("vocabulary"), self.number("length")
        wrong = np.argwhere((values < 0) | (values >= vocabulary))
        if len(wrong):
            at = values[tuple(wrong[0])]
            raise DataError(f"{self.what()}: {name}: id {at} of text {wrong[0][0]} is not in 0..{vocabulary - 1}")
        padded = np.full((len(values), length), PADDING, dtype=np.int64)
        kept = values[:, :length]
        padded[:, : kept.shape[1]] = kept
        return padded

    def _count_of_lines(self, file: Path) -> tuple[int, int]:
        with _opened(file) as lines:
            records = sum(1 for _ in _numbered(file, lines))
        if not records:
            raise DataError(f"{file}: is empty: all lines are blank", "path")
        return records, 0

    def _lines(self, file: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        import numpy as np

        length, ids, labels = self.number("length"), array("q"), array("q")
        with _opened(file) as lines:
            for number, line in _numbered(file, lines):
                tokens, label = self._text(line, f"{file}:{number}")
                ids.extend(tokens)
                ids.extend([PADDING] * (length - len(tokens)))
                labels.append(label)
        return np.frombuffer(ids, dtype=np.int64).reshape(-1, length), np.frombuffer(labels, dtype=np.int64)

    def _text(self, line: str, where: str) -> tuple[list[int], int]:
        """Return the ids, at most ``length``, and the label of one line."""
        length, vocabulary, classes = self.number("length"), self.number("vocabulary"), self.number("classes")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(found, dict) or set(found) != {"tokens", "label"}:
            raise DataError(f'{where}: must be {{"tokens": [...], "label": ...}} without other keys')
        tokens, label = found["tokens"], found["label"]
        if not _is_count(label) or label >= classes:
            raise DataError(f"{where}: the label must be an integer in 0..{classes - 1}")
        if not isinstance(tokens, list) or not all(_is_count(token) and token < vocabulary for token in tokens):
            raise DataError(f"{where}: tokens must be a list of integers in 0..{vocabulary - 1}")
        if len(tokens) > length and not self.options.get("truncate", False):
            raise DataError(
                f"{where}: {len(tokens)} tokens, but length is {length}; raise it or set truncate", "length"
            )
        return tokens[:length], label


class SyntheticTokens(_Texts):
    """Texts of at least half the length. The remainder of an id modulo ``classes`` determines its class."""

    def describe(self) -> Facts:
        """Derive the facts from the options."""
        vocabulary, classes = self.number("vocabulary"), self.number("classes")
        if classes >= vocabulary:
            raise DataError(
                f"synthetic-tokens needs one id for each of {classes} classes and one for padding: vocabulary must "
                f"be above {classes}, got {vocabulary}",
                "vocabulary",
            )
        key = {name: self.number(name) for name in ("records", "classes", "seed")}
        return self.facts_of(key["records"], 0, {"kind": "synthetic-tokens", **key, "noise": self._noise})

    def read(self) -> LoadedData:
        """Draw all texts. The same seed draws the same texts."""
        import numpy as np

        facts, random = self.describe(), generator(self.number("seed"), GENERATE)
        shape = (facts.records, facts.features)
        y = random.randint(facts.classes, size=facts.records)
        ids = np.arange(1, self.number("vocabulary"))
        own = [ids[ids % facts.classes == label] for label in range(facts.classes)]
        preferred = np.stack([random.choice(own[label], size=facts.features) for label in y])
        any_id = random.randint(1, self.number("vocabulary"), size=shape)
        x = np.where(random.uniform(size=shape) < self._noise, any_id, preferred)
        lengths = random.randint((facts.features + 1) // 2, facts.features + 1, size=facts.records)
        x[np.arange(facts.features) >= lengths[:, None]] = PADDING
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])

    @property
    def _noise(self) -> float:
        return float(self.options.get("noise", 0.5))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _opened(file: Path) -> IO[str]:
    try:
        return io.TextIOWrapper(file.open("rb"), encoding="utf-8-sig", newline="\n")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}", "path") from error


def _numbered(file: Path, lines: IO[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers from 1. Raises ``DataError`` for long lines."""
    number = 0
    try:
        while line := lines.readline(_MAX_LINE + 1):
            number += 1
            if len(line) > _MAX_LINE:
                raise DataError(f"{file}:{number}: is longer than {_MAX_LINE} characters", "path")
            if line.strip():
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text: {error}", "path") from None
