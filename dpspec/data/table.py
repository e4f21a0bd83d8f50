"""Tables: features, one-hot categories and named classes of named columns; and their users.

Keeping at most k records per user is sound, because the kept records are a function of the spec's seed, the user's name
and the user's records only ("Users" in ``docs/explanation/proofs/groups.md``). Whole users are held out, because a
model trained on a user's other records cannot be tested on the rest. A seed and the sorted list of users determine the
held-out users. Claims cover the remaining training dataset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpspec.contract import DataError, Diagnostic, Facts, Json, LoadedData
from dpspec.contract.fragments import array, integer, string
from dpspec.data.csv_text import listed, no_column
from dpspec.data.source import CLASSES, SPLIT, Halves, Selection, generator, held_out_count, whole_rows
from dpspec.text import shortened

#: Schema of the keys that map the columns of a table to records.
KEYS: dict[str, Json] = {
    "label": string("The column of labels."),
    "classes": {
        "type": ["integer", "array"],
        "minimum": CLASSES["minimum"],
        "maximum": CLASSES["maximum"],
        "minItems": 2,
        "uniqueItems": True,
        "items": {"type": "string"},
        "description": "The number of classes, if labels are written 0, 1, ...; otherwise the list of all labels as "
        "written, class 0 first. A public constant.",
    },
    "columns": array(
        "The feature columns, in this order; by default all except the label.",
        {"type": "string", "minLength": 1},
        least=1,
        unique=True,
    ),
    "categories": {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 2, "uniqueItems": True, "items": {"type": "string"}},
        "description": "The values of each categorical column as written, an empty string for a missing value. Such a "
        "column becomes one feature per value, 1 if the record has this value and 0 otherwise. Public constants.",
    },
}


#: Schema of the maximum number of records per user.
RECORDS_PER_USER: dict[str, Json] = integer(
    "The maximum number of records per user, which claims about users assume (threat_model.unit: user).",
    least=1,
    most=1_000_000,
)

#: Schema of the keys of a table with users.
USER_KEYS: dict[str, Json] = {
    "user": string(
        "The column with the user of each record, which is not a feature. Equal values are one user. "
        "split then counts and holds out whole users."
    ),
    "records_per_user": {
        **RECORDS_PER_USER,
        "description": f"{RECORDS_PER_USER['description']} A table with more records of a user is an error.",
    },
    "max_records_per_user": {
        **RECORDS_PER_USER,
        "description": "The maximum number of records to keep per user, drawn by seed from the user's records. A "
        "warning states the number of dropped records. A public constant, for claims about users (threat_model.unit: "
        "user).",
    },
}


#: Names under which pandas and R save the index of a table.
_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__|level_0|index|row_?names|id", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    label: str
    features: tuple[str, ...]
    categories: Mapping[str, Mapping[str, int]]  # position of each value of a categorical column among its features

    @property
    def width(self) -> int:
        """The number of features of a record."""
        return sum(len(self.categories[name]) if name in self.categories else 1 for name in self.features)


class Table(Halves):
    def columns(self, header: Sequence[str], where: object) -> Columns:
        label, user = str(self.options["label"]), self.options.get("user")
        position = {name: index for index, name in enumerate(header)}
        for index, name in enumerate(header):
            if position[name] != index:
                fault = "the same name; rename one column"
                if not name:
                    fault = "no name; remove separators at the ends of lines"
                raise DataError(f"{where}: columns {index + 1} and {position[name] + 1} have {fault}", private=name)
        features = tuple(self.options.get("columns") or (name for name in header if name not in (label, user)))
        categories = self.options.get("categories") or {}
        for name in (label, *([] if user is None else [user]), *features, *categories):
            if name not in position:
                special_columns = {label: "label", user: "user"}
                key = special_columns.get(name, "columns" if name in features else "categories")
                raise no_column(name, header, where, key)
        if user is not None and user in (label, *features):
            raise DataError(f"{where}: column {user!r} is the user and cannot be a label or feature", "user")
        if label in features:
            raise DataError(f"{where}: column {label!r} is the label and cannot be a feature", "columns")
        for name in categories:
            if name not in features:
                raise DataError(f"{where}: categories names column {name!r}, which is not a feature", "categories")
        return Columns(label, features, {name: places(values, "categories") for name, values in categories.items()})

    def classes(self) -> dict[str, int]:
        declared = self.options["classes"]
        return places(declared if isinstance(declared, tuple) else map(str, range(int(declared))), "classes")

    def unknown_class(self, label: str, where: object) -> DataError:
        message = f"{where}: the label is not a declared class ({listed([*self.classes()])})"
        return DataError(message + self._class_advice(label), "classes", private=label)

    def _class_advice(self, label: str) -> str:
        names = self.classes()
        if not label:
            return "; the cell is empty: remove such records"
        if label.rstrip(".") in names:
            return "; it differs from a declared class by a final period"
        if label.casefold() in map(str.casefold, names):
            return "; it differs from a declared class in upper and lower case"
        if isinstance(self.options["classes"], tuple):
            return ""
        if re.fullmatch(r"[+-]?\d+", label):
            return '; list labels other than 0, 1, ...: classes: ["1", "2"]'
        if re.fullmatch(r"[+-]?\d+\.\d*", label):
            return '; list labels with a decimal point: classes: ["0.0", "1.0"]'
        return "; list labels that are words: classes: [no, yes]"

    def table_key(self) -> dict[str, Json]:
        categories = self.options.get("categories")
        return {
            "label": self.options["label"],
            "classes": [*self.classes()],
            **({"categories": {k: [*v] for k, v in categories.items()}} if categories else {}),
        }

    def owners(self) -> list[str]:
        """Return the user of each record, for kinds with the keys of users."""
        raise NotImplementedError

    def remarks(self) -> Iterator[Diagnostic]:
        yield from self._index_remarks()
        if self.options.get("max_records_per_user") is None:
            return
        whole = self.describe()
        dropped = self.selection(whole).dropped
        if dropped:
            most = self.options["max_records_per_user"]
            message = f"{dropped} of {whole.records} records are dropped: some users have more than {most}"
            path = ("data", "max_records_per_user")
            yield Diagnostic(code="records-dropped", message=message, path=path, severity="warning")

    def header(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of all columns, and of those that the file declares to be an index."""
        raise NotImplementedError

    def _index_remarks(self) -> Iterator[Diagnostic]:
        if self.options.get("columns") is not None:
            return
        names, declared = self.header()
        special = (self.options["label"], self.options.get("user"))
        features = [name for name in names if name not in special]
        index = [name for name in features if name in declared or _INDEX.fullmatch(name)]
        unnamed = [""] == index == features[-1:]
        if index:
            feature_names = [shortened(name) for name in features if name not in index]
            columns = f"{'columns' if len(index) > 1 else 'column'} {', '.join(map(repr, index))}"
            message = f"{columns} is probably a saved index of rows, and is used as a feature"
            if unnamed:
                message = "the last column has no name, and is used as a feature: the lines may end in a separator"
            help = f"list the features without it: columns: {json.dumps(feature_names, ensure_ascii=False)}"
            path = ("data", "path")
            yield Diagnostic(code="index-column", message=message, path=path, help=help, severity="warning")

    def selection(self, whole: Facts) -> Selection:
        options, where = self.options, self.what()
        if not any(options.get(key) is not None for key in USER_KEYS):
            return super().selection(whole)
        bounds = [key for key in ("records_per_user", "max_records_per_user") if options.get(key) is not None]
        if options.get("user") is None:
            raise DataError(f"{bounds[0]} needs the key user, the column with the user of each record", bounds[0])
        if len(bounds) == 2:
            message = "records_per_user rejects users with more records, max_records_per_user drops records"
            raise DataError(f"{message}; use one of the two", "records_per_user")
        if options.get("size") is not None:
            raise DataError("size counts records and is not supported for tables with users; remove it", "size")
        owners, records_by_user = self.owners(), dict[str, list[int]]()
        for record, owner in enumerate(owners):
            records_by_user.setdefault(owner, []).append(record)
        if "" in records_by_user:
            record, column = records_by_user[""][0], options["user"]
            raise DataError(f"{where}: record {record}: column {column!r} is empty; every record needs a user", "user")
        declared, largest = options.get("records_per_user"), max(map(len, records_by_user.values()), default=0)
        if declared is not None and largest > declared:
            message = f"{where}: a user has {largest} records, but records_per_user is {declared}"
            advice = f"write max_records_per_user: {declared} to keep a random sample"
            raise DataError(f"{message}; {advice}", "records_per_user")
        most, seed = options.get("max_records_per_user"), int(options.get("seed", 0))
        user_records = tuple(tuple(_kept(name, records_by_user[name], most, seed)) for name in sorted(records_by_user))
        split, test_users, split_seed = options.get("split"), frozenset[int](), 0
        if split is not None:
            split_seed = int(split.get("seed", 0))
            if isinstance(split["test"], tuple):
                raise DataError("split.test must be a fraction or a number of users for tables with users", "split")
            count = held_out_count(split["test"], len(user_records), "users", "split")
            test_users = frozenset(generator(split_seed, SPLIT).permutation(len(user_records))[:count].tolist())
        if test_users and whole.test_records:
            raise DataError("split: this source already has test records")
        dropped = len(owners) - sum(map(len, user_records))
        test_records = sum(len(user_records[user]) for user in test_users)
        key: dict[str, Json] = {"user": options["user"]}
        if dropped:
            key["kept"] = [most, seed]
        if test_users:
            key["split"] = {"users": [len(test_users), split_seed]}
        return Selection(
            key=key,
            records=len(owners) - dropped - test_records,
            test_records=whole.test_records + test_records,
            rows=partial(_rows, user_records, test_users, len(owners)),
            users=len(user_records) - len(test_users),
            dropped=dropped,
        )


def places(names: Iterable[str], key: str) -> dict[str, int]:
    """Return the position of each name without blanks around it. Raises ``DataError`` if two names become equal."""
    stripped = [name.strip() for name in names]
    positions = {name: position for position, name in enumerate(stripped)}
    if len(positions) != len(stripped):
        twice = next(name for position, name in enumerate(stripped) if positions[name] != position)
        raise DataError(f"{key} lists {shortened(twice)!r} twice, because blanks around a name are ignored", key)
    return positions


def unknown_category(name: str, categories: Mapping[str, int], value: str, where: object) -> DataError:
    hint = "" if value else '; the cell is empty: add "" for missing values'
    message = f"{where}: the value is not a category of column {name!r} ({listed([*categories])}){hint}"
    return DataError(message, "categories", private=value)


def _rows(
    user_records: Sequence[Sequence[int]], test_users: frozenset[int], records: int, whole: LoadedData
) -> LoadedData:
    """The rows of ``user_records`` of each user, ascending; ``test_users`` are for testing."""
    import numpy as np

    if len(whole.train_y) != records:
        raise DataError("the table changed while it was read: the number of records differs")
    owners = np.full(records, -1, dtype=np.int64)  # -1: dropped
    for user, indices in enumerate(user_records):
        owners[list(indices)] = user
    test = np.isin(owners, list(test_users))
    train = (owners >= 0) & ~test
    rows = whole_rows((whole.train_x[train], whole.train_y[train]), (whole.test_x, whole.test_y))
    if test_users:
        rows = replace(rows, test_x=whole.train_x[test], test_y=whole.train_y[test])
    # Training users are numbered in the order of their names, without the held-out ones.
    return replace(rows, owners=np.unique(owners[train], return_inverse=True)[1].astype(np.int64))


def _kept(name: str, records: list[int], most: int | None, seed: int) -> list[int]:
    """Return the indices of a user's kept records, ascending: a function of only this user's records."""
    if most is None or len(records) <= most:
        return records
    import numpy as np

    entropy = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4").tolist()
    return sorted(records[i] for i in generator(seed, *entropy).permutation(len(records))[:most])
