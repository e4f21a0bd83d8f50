"""Data kinds ``tokens``, sequences of token ids from a file, and ``synthetic-tokens``, drawn from a seed.

A record is a sequence of ``length`` ids below ``vocabulary``, padded with id 0 at the end, stored exactly as float32. A
public tokenizer must have produced the ids. They are not quantities: ``standardise`` and ``radius`` do not apply.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.contract import DataError, Dataset, Facts, Json, LoadedData
from dpspec.contract.fragments import flag, integer, number
from dpspec.data import source
from dpspec.data.file_formats import head_of, other_format

if TYPE_CHECKING:
    from dpspec.data.source import Rows

#: The padding id.
PADDING = 0

#: Maximum length of a line in characters.
_MAX_LINE = 2**20

_VOCABULARY: dict[str, Json] = integer(
    "The number of ids, including 0 for padding; ids are 0 to vocabulary - 1. A public constant, "
    "declared rather than counted.",
    least=2,
    most=2**20,
)

_LENGTH: dict[str, Json] = integer(
    "The number of ids of a record; shorter texts are padded with 0 at the end. A public constant.", least=1, most=65536
)

TOKENS = Dataset(
    kind="tokens",
    summary="Labeled texts as sequences of token ids, one JSON object per line.",
    schema=source.unscaled(
        source.schema(
            *("path", "vocabulary", "length", "classes"),
            path=source.path('The file (.jsonl). Each line is {"tokens": [5, 17, 3], "label": 1}.'),
            vocabulary=_VOCABULARY,
            length=_LENGTH,
            truncate=flag(
                "Truncate texts to the first length ids. By default longer texts are errors. Texts are "
                "truncated independently.",
                default=False,
            ),
            classes=source.CLASSES,
        )
    ),
    source="dpspec.data.tokens:Tokens",
)

SYNTHETIC = Dataset(
    kind="synthetic-tokens",
    summary="Texts of token ids drawn from a seed, with preferred ids for each class.",
    schema=source.unscaled(
        source.schema(
            public=True,
            records=integer(
                "The number of texts to draw, before split and size.", least=2, most=10_000_000, default=1000
            ),
            vocabulary={**_VOCABULARY, "minimum": 4, "default": 50},
            length={**_LENGTH, "default": 16},
            classes={**source.CLASSES, "default": 2},
            noise=number(
                "The probability that a token is drawn from all ids instead of the class's ids.",
                least=0,
                most=1,
                default=0.5,
            ),
        )
    ),
    source="dpspec.data.tokens:SyntheticTokens",
)


class Tokens(source.Halves):
    def halves(self) -> list[Path]:
        return [source.locate(self.directory, self.options["path"])]

    def shape(self, half: Path) -> tuple[int, ...]:
        return sum(1 for _ in _numbered(half)), self.number("length")

    def rows(self, half: Path) -> Rows:
        import numpy as np

        length, ids, classes = self.number("length"), array("q"), array("q")
        for line_number, line in _numbered(half):
            tokens, label = self._text(line, f"{half}:{line_number}")
            ids.extend(tokens)
            ids.extend([PADDING] * (length - len(tokens)))
            classes.append(label)
        return np.frombuffer(ids, dtype=np.int64).reshape(-1, length), np.frombuffer(classes, dtype=np.int64)

    def key(self, halves: list[Path]) -> dict[str, Json]:
        sizes = {name: self.number(name) for name in ("length", "vocabulary")}
        truncate = bool(self.options.get("truncate", False))
        return {**sizes, "kind": "tokens", "file": source.sha256(halves[0]), "truncate": truncate}

    def _text(self, line: str, where: str) -> tuple[list[int], int]:
        length, vocabulary, classes = self.number("length"), self.number("vocabulary"), self.number("classes")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(record, dict) or set(record) != {"tokens", "label"}:
            raise DataError(f'{where}: must be {{"tokens": [...], "label": ...}} without other keys')
        tokens, label = record["tokens"], record["label"]
        if not _is_count(label) or label >= classes:
            raise DataError(f"{where}: the label must be an integer in 0..{classes - 1}")
        if not isinstance(tokens, list) or not all(_is_count(token) and token < vocabulary for token in tokens):
            raise DataError(f"{where}: tokens must be a list of integers in 0..{vocabulary - 1}")
        if len(tokens) > length and not self.options.get("truncate", False):
            message = f"{len(tokens)} tokens, but length is {length}; raise it or set truncate"
            raise DataError(f"{where}: {message}", "length")
        return tokens[:length], label


class SyntheticTokens(source.Source):
    """Texts of at least half the length. The remainder of an id modulo ``classes`` determines its class."""

    def describe(self) -> Facts:
        vocabulary, classes = self.number("vocabulary"), self.number("classes")
        if classes >= vocabulary:
            needed = f"one id for each of {classes} classes and one for padding"
            rule = f"vocabulary must be above {classes}, got {vocabulary}"
            raise DataError(f"synthetic-tokens needs {needed}: {rule}", "vocabulary")
        key = {name: self.number(name) for name in ("records", "length", "vocabulary", "classes", "seed")}
        shape = (key["records"], key["length"])
        source.check_count(self.what(), shape)
        whole = {"kind": "synthetic-tokens", **key, "noise": self._noise}
        return source.whole_facts(shape[0], shape[1:], classes, whole, vocabulary=vocabulary)

    def read(self) -> LoadedData:
        import numpy as np

        facts, random = self.describe(), source.generator(self.number("seed"), source.GENERATE)
        shape = (facts.records, facts.features)
        y = random.randint(facts.classes, size=facts.records)
        ids = np.arange(1, self.number("vocabulary"))
        tokens_of_class = [ids[ids % facts.classes == label] for label in range(facts.classes)]
        preferred = np.stack([random.choice(tokens_of_class[label], size=facts.features) for label in y])
        any_id = random.randint(1, self.number("vocabulary"), size=shape)
        x = np.where(random.uniform(size=shape) < self._noise, any_id, preferred)
        lengths = random.randint((facts.features + 1) // 2, facts.features + 1, size=facts.records)
        x[np.arange(facts.features) >= lengths[:, None]] = PADDING
        return source.whole_rows((x, y))

    @property
    def _noise(self) -> float:
        return float(self.options.get("noise", 0.5))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbered(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers from 1. Raises ``DataError`` for long lines."""
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
            for number in count(1):
                line = lines.readline(_MAX_LINE + 1)
                if not line:
                    return
                if len(line) > _MAX_LINE:
                    raise DataError(f"{file}:{number}: is longer than {_MAX_LINE} characters", "path")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: {other_format(head_of(file)) or f'not UTF-8 text: {error}'}", "path") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}", "path") from error
