"""How facts of ranks, and of the parts of a resumed training, become one.

A field says how its values of several ranks, and of several parts of a resumed training, are joined:

>>> @dataclass(frozen=True)
... class LoadFacts:
...     loads: Count = field(metadata=join_by(max, sum))  # ranks make the same loads, parts make further ones
>>> joined([LoadFacts(loads=2), LoadFacts(loads=2)], "ranks")
LoadFacts(loads=2)
>>> joined([LoadFacts(loads=2), LoadFacts(loads=1)], "parts")
LoadFacts(loads=3)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from dpspec.json_records import Between, Count, Real

Number: TypeAlias = Annotated[float, Between(0.0, 1e15)]

Names: TypeAlias = tuple[str, ...]

#: Joins the values of several ranks or parts.
Join: TypeAlias = Callable[[Sequence[Any]], Any]

#: The recordings whose facts are joined: of the processes of one training, or of its jobs.
Across: TypeAlias = Literal["ranks", "parts"]

T = TypeVar("T")


def join_by(of_ranks: Join, of_parts: Join | None = None) -> Mapping[str, Join]:
    """The metadata of a field. of_parts: how its values of parts are joined, if not as values of ranks."""
    return {"ranks": of_ranks, "parts": of_parts or of_ranks}


def joined(rows: Sequence[T], across: Across) -> T:
    """Join facts of one kind, field by field."""
    kind: Any = type(rows[0])
    result: T = kind(
        **{
            declared.name: declared.metadata[across]([getattr(row, declared.name) for row in rows])
            for declared in fields(kind)
        }
    )
    return result


def word(values: Sequence[str]) -> str:
    """The first that is not empty; of half precisions the coarser one."""
    return "bfloat16" if "bfloat16" in values else next(filter(None, values), "")


def union(names: Sequence[Names]) -> Names:
    """All names, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(names)))


#: The metadata of a fact that is a dataclass of facts.
OWN: Mapping[str, Join] = {"ranks": lambda rows: joined(rows, "ranks"), "parts": lambda rows: joined(rows, "parts")}

_SUM, _MAX, _MIN = join_by(sum), join_by(max), join_by(min)


@dataclass(frozen=True, kw_only=True)
class MapFacts:
    """Maps of the noisy gradient before the update. explained: steps with the gradients of a known map; by_all: of each
    known map; moved: of the replayed maps those that a record moves."""

    explained: Count = field(metadata=_SUM)
    by_all: Count = field(metadata=_SUM)
    replayed: Count = field(metadata=_SUM)
    moved: Count = field(metadata=_SUM)


@dataclass(frozen=True, kw_only=True)
class ReplayFacts:
    """Replayed steps. moved: the largest move of the sum in clip norms if a record is replaced; outputs, gradients: the
    largest changes of other records."""

    tried: Number = field(metadata=_SUM)
    replayed: Number = field(metadata=_SUM)
    replacements: Number = field(metadata=_SUM)
    moved: Number = field(metadata=_MAX)
    outputs: Number = field(metadata=_MAX)
    gradients: Number = field(metadata=_MAX)


@dataclass(frozen=True, kw_only=True)
class SizeFacts:
    """Steps that were replayed at the batch size of another one. lowest, highest: powers of the batch size by which
    gradients at the outputs change; removed: the largest move of the sum for each omitted or repeated record, in clip
    norms."""

    steps: Count = field(metadata=_SUM)
    lowest: Real = field(metadata=_MIN)
    highest: Real = field(metadata=_MAX)
    removed: Number = field(metadata=_MAX)


@dataclass(frozen=True, kw_only=True)
class GradientFacts:
    """Steps whose gradients were compared with a loop's reports. summed: with a reported sum; different: with other
    gradients than sum and noise; hidden: the length of noise that rounding can hide, in standard deviations."""

    steps: Count = field(metadata=join_by(itemgetter(0), sum))
    summed: Count = field(metadata=join_by(itemgetter(0), sum))
    different: Count = field(metadata=join_by(itemgetter(0), sum))
    hidden: Number = field(metadata=join_by(itemgetter(0), max))
