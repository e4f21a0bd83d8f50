"""Whose the records of a table are, at most how many of them are kept, and which users are held back for testing.

*Why keeping at most k records a user is sound.* Let T be what is kept of a table: of every user with more than k
records, k of them, drawn by a generator that is seeded by the spec's seed and the user's name alone, among the user's
own records in the order in which the table has them. So what is kept of user u is a function of u's own records,
T(D) restricted to u = t(D restricted to u), and of nobody else's. Let D' be D without u, the other records in their
order. For every other user v, D' restricted to v = D restricted to v, and so T(D') restricted to v = T(D) restricted
to v: T(D') is T(D) without the records of u, of which there are at most k. Neighbours by a user become neighbours by a
group of at most k records, and what is proved of such groups is proved of users. Of single records that is not so: one
record less of a user with more than k brings another one in, and may change which are drawn.

A table that declares ``records_per_user`` is refused where somebody has more, and then T is the identity.

*Held back* are whole users, since a model that has seen a user's other records is not tested by one of them. Which
users, a seed and the sorted list of all users decide: as with records, the data set that claims speak of is what is
left to train on.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Diagnostic, Facts, FrozenMap, Json, LoadedData
from dpspec.data.source import SPLIT, Selecting, generator
from dpspec.data.tables.table import Table

if TYPE_CHECKING:
    import numpy as np

#: How many records a user has at most, where nothing of them is dropped.
RECORDS_PER_USER: dict[str, Json] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 1_000_000,
    "description": "No user has more records than this, which claims about users count on (threat_model.unit: user).",
}

#: The keys of a table that says whose its records are.
KEYS: dict[str, Json] = {
    "user": {
        "type": "string",
        "minLength": 1,
        "description": "The name of the column that says whose a record is: it is no feature, and one text is one "
        "user. split then holds back whole users, and counts them.",
    },
    "records_per_user": {
        **RECORDS_PER_USER,
        "description": f"{RECORDS_PER_USER['description']} A table in which one has more is refused.",
    },
    "max_records_per_user": {
        **RECORDS_PER_USER,
        "description": "Of a user with more records than this, so many are kept, drawn by seed from that user's own; "
        "a warning says how many are dropped. A public constant, for claims about users (threat_model.unit: user).",
    },
}


class TableOfUsers(Table):
    """A table that may say whose its records are."""

    @abstractmethod
    def owners(self) -> list[str]:
        """Whose each training record is, in the table's order, without blanks around; the options name the column."""

    def selection(self, whole: Facts) -> Selecting:
        """Record by record, or where the options speak of users user by user."""
        return self._users() or super().selection(whole)

    def remarks(self) -> Iterator[Diagnostic]:
        """A warning where records of users are dropped."""
        users = self._users()
        if users is not None and users.dropped:
            path = ("data", "max_records_per_user")
            yield Diagnostic(code="records-dropped", message=users.remark(), path=path, severity="warning")

    def _users(self) -> OfUsers | None:
        if not any(self.options.get(key) is not None for key in KEYS):
            return None
        require_sense(self.options)
        return OfUsers.of(self.options, self.owners(), self.what())


@dataclass(frozen=True, eq=False)
class OfUsers:
    """Which records of a table are kept, and which of those are held back, user by user.

    places: (users) the kept records of each user, ascending; users are sorted by name.
    held: the users, by their number among these, that are held back. dropped: how many records are not kept.
    """

    places: tuple[tuple[int, ...], ...]
    held: frozenset[int]
    dropped: int
    options: FrozenMap

    @classmethod
    def of(cls, options: FrozenMap, owners: Sequence[str], where: object) -> OfUsers:
        """From the data block and whose each record of table ``where`` is; raises ``DataError`` on a misfit."""
        own: dict[str, list[int]] = {}
        for record, owner in enumerate(owners):
            own.setdefault(owner, []).append(record)
        if "" in own:
            at, column = own[""][0], options["user"]
            raise DataError(f"{where}: record {at}: column {column!r} is empty: every record needs a user", "user")
        _require_at_most(own.values(), options.get("records_per_user"), where)
        most, seed = options.get("max_records_per_user"), int(options.get("seed", 0))
        kept = tuple(tuple(_kept(name, own[name], most, seed)) for name in sorted(own))
        held = _held(options.get("split"), len(kept))
        return cls(kept, held, len(owners) - sum(map(len, kept)), options)

    def key(self) -> dict[str, Json]:
        """What of users decides the rows."""
        key: dict[str, Json] = {"user": self.options["user"]}
        if self.dropped:
            key["kept"] = [self.options["max_records_per_user"], int(self.options.get("seed", 0))]
        if self.held:
            key["split"] = {"users": [len(self.held), _split_seed(self.options)]}
        return key

    def facts(self, whole: Facts) -> Facts:
        """The facts of the whole table, with the counts of what is kept."""
        test = sum(len(self.places[user]) for user in self.held)
        records = sum(map(len, self.places)) - test
        if self.held and whole.test_records:
            raise DataError("split: this source has test records of its own")
        users = len(self.places) - len(self.held)
        return replace(whole, records=records, test_records=whole.test_records + test, users=users)

    def rows(self, whole: LoadedData) -> LoadedData:
        """The kept rows, in the table's order, those of held users apart."""
        if len(whole.train_y) != self.dropped + sum(map(len, self.places)):
            raise DataError("the table changed while it was read: it has other records than users were counted of")
        x, y, test_x, test_y = whole.train_x, whole.train_y, whole.test_x, whole.test_y
        train, test = self._order(held=False), self._order(held=True)
        if self.held:
            test_x, test_y = x[test], y[test]
        own = self._owners()[train]
        return LoadedData(train_x=x[train], train_y=y[train], test_x=test_x, test_y=test_y, owners=own)

    def _owners(self) -> np.ndarray[Any, Any]:
        """Of every record of the table, whose it is: users that train, counted from 0 by name; -1 where none does."""
        import numpy as np

        training = [own for user, own in enumerate(self.places) if user not in self.held]
        owners = np.full(self.dropped + sum(map(len, self.places)), -1, dtype=np.int64)
        for number, own in enumerate(training):
            owners[list(own)] = number
        return owners

    def _order(self, *, held: bool) -> np.ndarray[Any, Any]:
        import numpy as np

        chosen = [place for user, own in enumerate(self.places) if (user in self.held) is held for place in own]
        return np.array(sorted(chosen), dtype=np.int64)

    def remark(self) -> str:
        """What was dropped, in a sentence."""
        most, all_ = self.options["max_records_per_user"], self.dropped + sum(map(len, self.places))
        return f"{self.dropped} of {all_} records are dropped, of users with more than {most}"


def require_sense(options: FrozenMap) -> None:
    """Raise ``DataError`` where keys that speak of users contradict each other, or others."""
    bounds = [key for key in ("records_per_user", "max_records_per_user") if options.get(key) is not None]
    if options.get("user") is None:
        raise DataError(f"{bounds[0]} speaks of users: name the column that says whose a record is (user)", bounds[0])
    if len(bounds) == 2:
        raise DataError(
            "records_per_user refuses users with more records and max_records_per_user drops them: write one of both",
            "records_per_user",
        )
    if options.get("size") is not None:
        raise DataError("size counts records, and this table is one of users: leave size out", "size")


def _require_at_most(own: Iterable[Sized], most: int | None, where: object) -> None:
    largest = max(map(len, own), default=0)
    if most is not None and largest > most:
        raise DataError(
            f"{where}: a user has {largest} records, and records_per_user says at most {most}; to train on {most} of "
            f"them, drawn by seed, write max_records_per_user: {most} instead",
            "records_per_user",
        )


def _kept(name: str, own: list[int], most: int | None, seed: int) -> list[int]:
    """The places that are kept of one user's, ascending: a function of that user's records alone."""
    if most is None or len(own) <= most:
        return own
    import numpy as np

    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4").tolist()
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, *words])))
    return sorted(own[i] for i in random.permutation(len(own))[:most])


def _held(split: FrozenMap | None, users: int) -> frozenset[int]:
    """The users that are held back: a fraction of them, to the nearest count, or a count."""
    if split is None:
        return frozenset()
    test = split["test"]
    if isinstance(test, tuple):
        raise DataError("split.test lists records, and users are held back whole: say how many, or a fraction", "split")
    if test >= 1 and not float(test).is_integer():
        raise DataError(f"split.test must be a fraction below 1 or a whole count, got {test}", "split")
    count = int(test) if test >= 1 else int(test * users + 0.5)
    if not 1 <= count < users:
        raise DataError(f"split.test holds back {count} of {users} users; one must test and one train", "split")
    return frozenset(generator(int(split.get("seed", 0)), SPLIT).permutation(users)[:count].tolist())


def _split_seed(options: FrozenMap) -> int:
    return int(options["split"].get("seed", 0))
