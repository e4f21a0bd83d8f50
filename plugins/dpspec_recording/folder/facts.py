"""The facts that a recorder notes at the end and with each saved state, and their union over ranks or parts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, TypeVar

from dpspec import json_records
from dpspec.errors import RecordingError
from dpspec_recording.folder.audit_facts import AuditFacts
from dpspec_recording.folder.header import LONGEST, texts
from dpspec_recording.folder.merging import OWN, Number, join_by, word
from dpspec_recording.folder.stated_fact import StatedFact, StatedFacts

F = TypeVar("F")


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

    def written(self) -> dict[str, Any]:
        """The JSON: the facts of the recorder, and the stated ones, by name."""
        recorder_facts = {
            name: value for name, value in asdict(replace(self, observed={})).items() if name != "observed"
        }
        return recorder_facts | {name: None if fact is None else asdict(fact) for name, fact in self.observed.items()}


#: The facts of the recorder itself.
_OWN = tuple(declared for declared in fields(Facts) if declared.name != "observed")


def noted_facts(stated: StatedFacts) -> StatedFacts:
    """Those that the steps of a folder do not hold."""
    return tuple(fact for fact in stated if fact.kind is not None)


def read_facts(read: Any, where: str, stated: StatedFacts) -> Facts:
    """Read facts from JSON; ``RecordingError`` if one is missing or of another form."""
    try:
        if not isinstance(read, Mapping):
            raise ValueError(f"{where}: must be a mapping")
        observed = {noted.name: _read_fact(noted, read, where) for noted in noted_facts(stated)}
        recorder_facts = {name: value for name, value in read.items() if name not in observed}
        facts = replace(json_records.read(Facts, {**recorder_facts, "observed": {}}, where), observed=observed)
        texts_of = {**vars(facts), "observed": None}
        of_stated = [vars(fact) for fact in observed.values() if fact is not None]
        if any(len(text) > LONGEST for text in texts((*texts_of.values(), *of_stated))):
            raise ValueError(f"{where}: a text has more than {LONGEST} characters")
    except ValueError as error:
        raise RecordingError(f"{error}: record again with this version of dpspec") from None
    return facts


def _read_fact(stated: type[StatedFact[F]], read: Mapping[str, Any], where: str) -> F | None:
    if stated.name not in read:
        raise ValueError(f"{where}: {stated.name} is missing")
    fact: F | None = json_records.read(stated.kind, read[stated.name], f"{where}: {stated.name}")
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
