"""Which revisions of its providers a trial was made by, where they are not those that are installed.

The address of a trial covers the revisions of mechanism, data, backend and model (``keys.trial_key``), and nothing else
keeps them. They are small whole numbers: those that give the recorded address are found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

from dpspec.contract import Facts, FrozenMap
from dpspec.engine.keys import trial_key
from dpspec.engine.result import TrialRecord

#: So many revisions beyond the installed one are tried: a result may be newer than what verifies it.
_BEYOND = 8

#: What differs from what is installed, as (part, kind, revision): ``("mechanism", "group", 6)``.
Revisions = tuple[tuple[str, str, int], ...]


def strangers(
    trials: Sequence[TrialRecord],
    chunk_of: Mapping[int, Sequence[int]],
    inputs: FrozenMap,
    facts: Facts,
    installed: FrozenMap,
) -> dict[Revisions, list[int]]:
    """The indices of the trials whose address is not the one that they would have here, by what made them.

    Under the empty key those whose address no other revision of one or two providers explains: something else changed.
    """
    found: dict[Revisions, list[int]] = {}
    for record in trials:

        def made_by(others: Revisions, record: TrialRecord = record) -> bool:
            changed = {part: [kind, revision] for part, kind, revision in others}
            revisions = FrozenMap({**installed, **changed})
            return trial_key(inputs, facts, revisions, chunk_of.get(record.index, ()), record.index) == record.key

        if not made_by(()):
            # Those of one result were made alike: the search, which is long, is made until it fails for the first time.
            others = next(filter(made_by, found), None) or (() if () in found else _search(made_by, installed))
            found.setdefault(others, []).append(record.index)
    return found


def _search(made_by: Callable[[Revisions], bool], installed: FrozenMap) -> Revisions:
    return next(filter(made_by, _others(installed)), ())


def _others(installed: FrozenMap) -> Iterator[Revisions]:
    tried = {
        part: [(part, str(kind), revision) for revision in range(1, int(now) + _BEYOND + 1) if revision != now]
        for part, (kind, now) in installed.items()
    }
    for number in (1, 2):
        for parts in combinations(tried, number):
            yield from product(*(tried[part] for part in parts))
