"""The facts that a recorder notes at the end and with each saved state, and their union over ranks or parts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import itemgetter
from typing import Any, TypeVar

from dpspec import json_records
from dpspec.errors import RecordingError
from dpspec_recording.audited_steps import AuditFacts
from dpspec_recording.folder.header import LONGEST, texts
from dpspec_recording.folder.merging import OWN, Names, Number, join_by, union, word
from dpspec_recording.probes.builtin import PROBES
from dpspec_recording.probes.probe import Probe

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts over all steps; None if the recorder does not observe them. A field says how facts are joined.

    observed: by probe its fact. ``error`` belongs to the end alone. lacking: the names of
    facts that the recorder always notes (:mod:`dpspec_recording.folder.required_facts`), and this folder lacks; its
    reader fills it.
    """

    audits: AuditFacts = field(metadata=OWN)
    seconds: Number = field(metadata=join_by(max, sum))
    error: str = field(default="", metadata=join_by(word, itemgetter(-1)))
    observed: Mapping[str, Any] = field(default_factory=dict)
    lacking: Names = field(default=(), metadata=join_by(union))

    def of(self, probe: type[Probe[F]]) -> F | None:
        """The fact of a probe; None if the training did not show it."""
        fact: F | None = self.observed.get(probe.name)
        return fact

    def written(self) -> dict[str, Any]:
        """The JSON: the facts of the recorder and of its probes, by name."""
        stated = {name: value for name, value in asdict(replace(self, observed={})).items() if name not in _OF_READER}
        return stated | {probe.name: None if (fact := self.of(probe)) is None else asdict(fact) for probe in _STATING}


#: Fields that the file does not hold by their names.
_OF_READER = ("observed", "lacking")

#: The probes whose facts the steps do not hold.
_STATING = tuple(probe for probe in PROBES if probe.kind is not None)

#: The facts that are not of a probe.
_OWN = tuple(declared for declared in fields(Facts) if declared.name != "observed")


def read_facts(read: Any, where: str) -> Facts:
    """Read facts from JSON; ``RecordingError`` if one is missing or of another form."""
    try:
        if not isinstance(read, Mapping):
            raise ValueError(f"{where}: must be a mapping")
        names = {probe.name for probe in _STATING}
        observed = {probe.name: _read_fact(probe, read, where) for probe in _STATING}
        unread = json_records.read(Facts, {**{k: v for k, v in read.items() if k not in names}, "observed": {}}, where)
        facts = replace(unread, observed=observed)
        texts_of = {**vars(facts), "observed": None}
        of_probes = [vars(fact) for fact in observed.values() if fact is not None]
        if any(len(text) > LONGEST for text in texts((*texts_of.values(), *of_probes))):
            raise ValueError(f"{where}: a text has more than {LONGEST} characters")
    except ValueError as error:
        raise RecordingError(f"{error}: record again with this version of dpspec") from None
    return facts


def _read_fact(probe: type[Probe[F]], read: Mapping[str, Any], where: str) -> F | None:
    if probe.name not in read:
        raise ValueError(f"{where}: {probe.name} is missing")
    fact: F | None = json_records.read(probe.kind, read[probe.name], f"{where}: {probe.name}")
    return fact


def _of_ranks(probe: type[Probe[F]], rank_facts: Sequence[Facts]) -> F | None:
    observed = [fact for facts in rank_facts if (fact := facts.of(probe)) is not None]
    return probe.merge(observed, "ranks") if observed and len(observed) == len(rank_facts) else None


def _of_parts(probe: type[Probe[F]], part_facts: Sequence[Facts]) -> F | None:
    observed = [fact for facts in part_facts if (fact := facts.of(probe)) is not None]
    return probe.merge(observed, "parts") if observed else None


def of_ranks(rank_facts: Sequence[Facts], adding: Sequence[int]) -> Facts:
    """The facts of all ranks; None if one rank has not observed them. adding: the ranks that add noise."""
    joined: dict[str, Any] = {}
    for declared in _OWN:
        values = [getattr(facts, declared.name) for facts in rank_facts]
        joined[declared.name] = None if None in values else declared.metadata["ranks"](values)
    noisy = [rank_facts[rank] for rank in adding]
    observed = {probe.name: _of_ranks(probe, noisy if probe.of_adding_ranks else rank_facts) for probe in _STATING}
    return Facts(**joined, observed=observed)


def of_parts(part_facts: Sequence[Facts]) -> Facts:
    """The facts of all parts that have observed them."""
    joined: dict[str, Any] = {}
    for declared in _OWN:
        observed = [value for facts in part_facts if (value := getattr(facts, declared.name)) is not None]
        joined[declared.name] = declared.metadata["parts"](observed) if observed else None
    return Facts(**joined, observed={probe.name: _of_parts(probe, part_facts) for probe in _STATING})
