"""How facts of ranks, and of the parts of a resumed training, become one.

A field says how its values of several ranks, and of several parts of a resumed training, are joined:

>>> from dataclasses import dataclass, field
>>> @dataclass(frozen=True)
... class LoadFacts:
...     loads: Count = field(metadata=join_by(max, sum))  # ranks make the same loads, parts make further ones
>>> joined([LoadFacts(loads=2), LoadFacts(loads=2)], "ranks")
LoadFacts(loads=2)
>>> joined([LoadFacts(loads=2), LoadFacts(loads=1)], "parts")
LoadFacts(loads=3)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta

from dpspec.json_records import LARGEST

#: A count, a number above 0, a finite number, a text and texts of a fact.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e15)]
Real: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Text: TypeAlias = Annotated[str, Meta(max_length=400)]
Names: TypeAlias = tuple[Text, ...]

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


def _of_any(across: Across) -> Join:
    def join(rows: Sequence[Any]) -> Any:
        observed = [row for row in rows if row is not None]
        return joined(observed, across) if observed else None

    return join


#: The metadata of a dataclass of facts that some ranks or parts lack.
OWN_IF_ANY: Mapping[str, Join] = {"ranks": _of_any("ranks"), "parts": _of_any("parts")}
