"""The facts that a recorder notes at the end and with each saved state, and their union over ranks or parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from dpspec.errors import RecordingError
from dpspec.text import shortened
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.events import Header, NotedFacts, encode
from dpspec_recording.folder.merging import OWN, Across, Number, join_by, joined, word

F = TypeVar("F")

#: The largest size of a fact in bytes.
_LONGEST = 1 << 20


class StatedFact(Generic[F]):
    """The properties of a fact by which a folder is read, and its ranks and parts are joined.

    Attributes:
        name: Of the fact, in the folder of the run.
        kind: The frozen dataclass of the fact, whose fields say how the facts of ranks and parts are joined; ``|
            None`` if some trainings do not show the fact. None if the steps of the folder hold all of it.
        of_adding_ranks: Whether only the ranks that add noise have the fact.
    """

    name: ClassVar[str]
    kind: ClassVar[Any] = None
    of_adding_ranks: ClassVar[bool] = False

    @classmethod
    def is_shown(cls, header: Header) -> bool:
        """Whether this kind of training shows the fact."""
        return True

    @classmethod
    def merge(cls, rows: Sequence[F], across: Across) -> F:
        """The fact of several ranks or parts that observed it: by default joined field by field."""
        return joined(rows, across)


#: The facts that a folder states; its readers get them from above, because each observer owns one.
StatedFacts: TypeAlias = Sequence[type[StatedFact[Any]]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts over all steps; None if the recorder does not observe them. A field says how facts are joined.

    observed: by name each stated fact. ``error`` belongs to the end alone.
    """

    audits: AuditFacts = field(metadata=OWN)
    seconds: Number = field(metadata=join_by(max, sum))
    error: str = field(default="", metadata=join_by(word, itemgetter(-1)))
    observed: Mapping[str, Any] = field(default_factory=dict)

    def of(self, stated: type[StatedFact[F]]) -> F | None:
        """A stated fact; None if the training did not show it."""
        fact: F | None = self.observed.get(stated.name)
        return fact

    def written(self) -> NotedFacts:
        """The form on disk."""
        observed = {name: Raw(encode(fact)) for name, fact in self.observed.items()}
        return NotedFacts(audits=self.audits, seconds=self.seconds, error=self.error, observed=observed)


#: The facts of the recorder itself.
_OWN = tuple(declared for declared in fields(Facts) if declared.name != "observed")


def noted_facts(stated: StatedFacts) -> StatedFacts:
    """Those that the steps of a folder do not hold."""
    return tuple(fact for fact in stated if fact.kind is not None)


def read_facts(noted: NotedFacts, where: str, stated: StatedFacts) -> Facts:
    """Read facts; ``RecordingError`` at the place ``where`` if one is missing or of another form."""
    observed = {fact.name: _read_fact(fact, noted.observed.get(fact.name), where) for fact in noted_facts(stated)}
    return Facts(audits=noted.audits, seconds=noted.seconds, error=noted.error, observed=observed)


def _read_fact(stated: type[StatedFact[F]], content: Raw | None, where: str) -> F | None:
    """A missing fact is None: the recorder of an earlier format did not observe it."""
    payload = encode(None) if content is None else bytes(content)
    try:
        if len(payload) > _LONGEST:
            raise ValueError(f"a fact has at most {_LONGEST} bytes, this one has {len(payload)}")
        fact: F | None = msgspec.msgpack.decode(payload, type=stated.kind)
    except (ValueError, RecursionError) as error:
        text = f"{where}: {stated.name}: {shortened(str(error), 200)}: record again with this version of dpspec"
        raise RecordingError(text) from None
    return fact


def _of_ranks(stated: type[StatedFact[F]], rank_facts: Sequence[Facts]) -> F | None:
    observed = [fact for facts in rank_facts if (fact := facts.of(stated)) is not None]
    return stated.merge(observed, "ranks") if observed and len(observed) == len(rank_facts) else None


def _of_parts(stated: type[StatedFact[F]], part_facts: Sequence[Facts]) -> F | None:
    observed = [fact for facts in part_facts if (fact := facts.of(stated)) is not None]
    return stated.merge(observed, "parts") if observed else None


def of_ranks(rank_facts: Sequence[Facts], adding: Sequence[int], stated: StatedFacts) -> Facts:
    """The facts of all ranks; None if one rank has not observed them. adding: the ranks that add noise."""
    joined: dict[str, Any] = {}
    for declared in _OWN:
        values = [getattr(facts, declared.name) for facts in rank_facts]
        joined[declared.name] = None if None in values else declared.metadata["ranks"](values)
    noisy = [rank_facts[rank] for rank in adding]
    observed = {
        fact.name: _of_ranks(fact, noisy if fact.of_adding_ranks else rank_facts) for fact in noted_facts(stated)
    }
    return Facts(**joined, observed=observed)


def of_parts(part_facts: Sequence[Facts], stated: StatedFacts) -> Facts:
    """The facts of all parts that have observed them."""
    joined: dict[str, Any] = {}
    for declared in _OWN:
        observed = [value for facts in part_facts if (value := getattr(facts, declared.name)) is not None]
        joined[declared.name] = declared.metadata["parts"](observed) if observed else None
    return Facts(**joined, observed={fact.name: _of_parts(fact, part_facts) for fact in noted_facts(stated)})
