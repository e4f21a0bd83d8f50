"""What tables have in common, whatever file they come from: features, one-hot categories, and named classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpspec.contract import DataError, Json
from dpspec.data.files import meant, shortened
from dpspec.data.options import CLASSES
from dpspec.data.source import Source

#: The keys of a data block that says how the columns of a table become records.
KEYS: dict[str, Json] = {
    "label": {"type": "string", "minLength": 1, "description": "The name of the column that holds the labels."},
    "classes": {
        "type": ["integer", "array"],
        "minimum": CLASSES["minimum"],
        "maximum": CLASSES["maximum"],
        "minItems": 2,
        "uniqueItems": True,
        "items": {"type": "string"},
        "description": "How many classes there are, if labels are written 0, 1, ...; otherwise the list of all "
        "labels as they are written, class 0 first. A public constant.",
    },
    "columns": {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"type": "string", "minLength": 1},
        "description": "The columns to use as features, in this order; by default all but the label.",
    },
    "categories": {
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"type": "string"},
        },
        "description": "For each column that holds categories rather than numbers, the list of all its values as they "
        "are written, an empty text for a missing one. Such a column becomes one feature per value, 1 where a record "
        "has it and 0 elsewhere. Public constants.",
    },
}

#: Names that a message lists at most.
SHOWN = 20


def listed(names: Sequence[str]) -> str:
    """Names for a message, not too many."""
    return ", ".join(map(shortened, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    features: the columns that become features, in order.
    categories: for those that hold categories, the place of each value among the column's features.
    """

    label: str
    features: tuple[str, ...]
    categories: Mapping[str, Mapping[str, int]]

    @property
    def width(self) -> int:
        """How many features a record has."""
        return sum(len(self.categories[name]) if name in self.categories else 1 for name in self.features)


class Table(Source):
    """A source of rows with named columns: records (features,)."""

    def columns(self, header: Sequence[str], where: object) -> Columns:
        """What the options choose among the columns of table ``where``; raises ``DataError`` where they do not fit."""
        label = str(self.options["label"])
        position = {name: index for index, name in enumerate(header)}
        for index, name in enumerate(header):
            if position[name] != index:
                raise DataError(f"{where}: column {shortened(name)!r} stands there twice among the names of columns")
        features = tuple(self.options.get("columns") or (name for name in header if name != label))
        categories = self.options.get("categories") or {}
        for name in (label, *features, *categories):
            if name not in position:
                key = "label" if name == label else "columns" if name in features else "categories"
                near = meant(name, header)
                raise DataError(f"{where}: has no column {name!r}{near} (its columns: {listed(header)})", key)
        if label in features:
            raise DataError(f"{where}: column {label!r} is the label and cannot be a feature", "columns")
        for name in categories:
            if name not in features:
                raise DataError(f"{where}: categories names column {name!r}, which is not a feature", "categories")
        return Columns(label, features, {name: places(values) for name, values in categories.items()})

    def classes(self) -> dict[str, int]:
        """The number of each label as the table writes it."""
        declared = self.options["classes"]
        return places(declared if isinstance(declared, tuple) else [str(c) for c in range(int(declared))])

    def no_class(self, label: str, where: object) -> DataError:
        """The error of a label that is not among the classes; with what to declare where labels may be words."""
        hint = "" if isinstance(self.options["classes"], tuple) else "; list labels that are words: classes: [no, yes]"
        known = listed([*self.classes()])
        said = f"{where}: label {shortened(label)!r} is not one of the declared classes ({known}){hint}"
        return DataError(said, "classes")

    def table_key(self) -> dict[str, Json]:
        """What of the options decides the rows."""
        categories = self.options.get("categories")
        return {
            "label": self.options["label"],
            "classes": [*self.classes()],
            **({"categories": {k: [*v] for k, v in categories.items()}} if categories else {}),
        }


def places(names: Sequence[str]) -> dict[str, int]:
    """The place of each name, stripped of the blanks around it."""
    return {name.strip(): place for place, name in enumerate(names)}


def no_category(value: str, name: str, known: Mapping[str, int], where: object) -> DataError:
    """The error of a value that is not among the categories of column ``name``."""
    hint = "" if value else '; write "" among them for missing values'
    said = f"{where}: {shortened(value)!r} is not one of the categories of column {name!r} ({listed([*known])}){hint}"
    return DataError(said, "categories")
