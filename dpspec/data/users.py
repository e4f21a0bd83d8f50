"""Users of a table: the records kept per user, and the users held out for testing.

*Keeping at most k records per user is sound.* T keeps k records of each user with more than k, drawn by a generator
that is seeded only by the spec's seed and the user's name, from the user's records in table order. So the records kept
of user u are a function t of u's records only: T(D)|u = t(D|u). Let D' be D without u. For every other user v, D'|v =
D|v and hence T(D')|v = T(D)|v. So T(D') is T(D) without the at most k records of u: user-level neighbors become
neighbors that differ in a group of at most k records, and bounds for such groups apply to users. This is not true for
single records: removing a record of a user with more than k may change which of the others are drawn.

If ``records_per_user`` is declared, a table with a larger user is an error, and T is the identity.

Whole users are held out, because a model trained on a user's other records cannot be tested on the rest. A seed and the
sorted list of users determine the held-out users. Claims cover the remaining training dataset.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Diagnostic, Facts, FrozenMap, Json, LoadedData
from dpspec.data.source import SPLIT, RowSelection, generator
from dpspec.data.table import Table

if TYPE_CHECKING:
    import numpy as np

#: Schema of the maximum number of records per user.
RECORDS_PER_USER: dict[str, Json] = {
    "type": "integer",
    "minimum": 1,
    "maximum": 1_000_000,
    "description": "The maximum number of records per user, which claims about users assume (threat_model.unit: user).",
}

#: Schema of the keys of a table with users.
KEYS: dict[str, Json] = {
    "user": {
        "type": "string",
        "minLength": 1,
        "description": "The column with the user of each record, which is not a feature. Equal values are one user. "
        "split then counts and holds out whole users.",
    },
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


class TableOfUsers(Table):
    """A table that may have a column of users."""

    @abstractmethod
    def owners(self) -> list[str]:
        """Return the user of each training record in table order, without surrounding blanks."""

    def selection(self, whole: Facts) -> RowSelection:
        """Select by record, or by user if the options have a key about users."""
        return self._users() or super().selection(whole)

    def remarks(self) -> Iterator[Diagnostic]:
        """Warn if records of users are dropped."""
        users = self._users()
        if users is not None and users.dropped:
            path = ("data", "max_records_per_user")
            yield Diagnostic(code="records-dropped", message=users.remark(), path=path, severity="warning")

    def _users(self) -> UserSelection | None:
        if not any(self.options.get(key) is not None for key in KEYS):
            return None
        check_user_options(self.options)
        return UserSelection.of(self.options, self.owners(), self.what())


@dataclass(frozen=True, eq=False)
class UserSelection:
    """A selection of records by user.

    Attributes:
        places: The indices of each user's kept records, ascending. Users are sorted by name.
        held: Indices of the held-out users.
        dropped: The number of records not kept.
        options: The data block.
    """

    places: tuple[tuple[int, ...], ...]
    held: frozenset[int]
    dropped: int
    options: FrozenMap

    @classmethod
    def of(cls, options: FrozenMap, owners: Sequence[str], where: object) -> UserSelection:
        """Build the selection from the data block and the user of each record. Raises ``DataError``."""
        own: dict[str, list[int]] = {}
        for record, owner in enumerate(owners):
            own.setdefault(owner, []).append(record)
        if "" in own:
            at, column = own[""][0], options["user"]
            raise DataError(f"{where}: record {at}: column {column!r} is empty; every record needs a user", "user")
        _check_records_per_user(own.values(), options.get("records_per_user"), where)
        most, seed = options.get("max_records_per_user"), int(options.get("seed", 0))
        kept = tuple(tuple(_kept(name, own[name], most, seed)) for name in sorted(own))
        held = _held(options.get("split"), len(kept))
        return cls(kept, held, len(owners) - sum(map(len, kept)), options)

    def key(self) -> dict[str, Json]:
        """Return the values that determine the rows, for the digest."""
        key: dict[str, Json] = {"user": self.options["user"]}
        if self.dropped:
            key["kept"] = [self.options["max_records_per_user"], int(self.options.get("seed", 0))]
        if self.held:
            key["split"] = {"users": [len(self.held), _split_seed(self.options)]}
        return key

    def facts(self, whole: Facts) -> Facts:
        """Return the facts of the whole table with the counts of the kept records and users."""
        test = sum(len(self.places[user]) for user in self.held)
        records = sum(map(len, self.places)) - test
        if self.held and whole.test_records:
            raise DataError("split: this source already has test records")
        users = len(self.places) - len(self.held)
        return replace(whole, records=records, test_records=whole.test_records + test, users=users)

    def rows(self, whole: LoadedData) -> LoadedData:
        """Return the kept rows in table order, with held-out users as test records."""
        if len(whole.train_y) != self.dropped + sum(map(len, self.places)):
            raise DataError("the table changed while it was read: the number of records differs")
        x, y, test_x, test_y = whole.train_x, whole.train_y, whole.test_x, whole.test_y
        train, test = self._order(held=False), self._order(held=True)
        if self.held:
            test_x, test_y = x[test], y[test]
        own = self._owners()[train]
        return LoadedData(train_x=x[train], train_y=y[train], test_x=test_x, test_y=test_y, owners=own)

    def _owners(self) -> np.ndarray[Any, Any]:
        """Return the index of each record's training user, sorted by name, or -1 for other records."""
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
        """Return a sentence about the dropped records."""
        most, all_ = self.options["max_records_per_user"], self.dropped + sum(map(len, self.places))
        return f"{self.dropped} of {all_} records are dropped: some users have more than {most}"


def check_user_options(options: FrozenMap) -> None:
    """Raise ``DataError`` if keys about users contradict each other or other keys."""
    bounds = [key for key in ("records_per_user", "max_records_per_user") if options.get(key) is not None]
    if options.get("user") is None:
        raise DataError(f"{bounds[0]} needs the key user, the column with the user of each record", bounds[0])
    if len(bounds) == 2:
        raise DataError(
            "records_per_user rejects users with more records, max_records_per_user drops records; use one of the two",
            "records_per_user",
        )
    if options.get("size") is not None:
        raise DataError("size counts records and is not supported for tables with users; remove it", "size")


def _check_records_per_user(own: Iterable[Sized], most: int | None, where: object) -> None:
    largest = max(map(len, own), default=0)
    if most is not None and largest > most:
        raise DataError(
            f"{where}: a user has {largest} records, but records_per_user is {most}; write max_records_per_user: "
            f"{most} to keep a random sample",
            "records_per_user",
        )


def _kept(name: str, own: list[int], most: int | None, seed: int) -> list[int]:
    """Return the indices of a user's kept records, ascending: a function of only this user's records."""
    if most is None or len(own) <= most:
        return own
    import numpy as np

    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4").tolist()
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, *words])))
    return sorted(own[i] for i in random.permutation(len(own))[:most])


def _held(split: FrozenMap | None, users: int) -> frozenset[int]:
    """Draw the held-out users: a fraction, or a count."""
    if split is None:
        return frozenset()
    test = split["test"]
    if isinstance(test, tuple):
        raise DataError("split.test must be a fraction or a number of users for tables with users", "split")
    if test >= 1 and not float(test).is_integer():
        raise DataError(f"split.test must be a fraction below 1 or an integer, got {test}", "split")
    count = int(test) if test >= 1 else int(test * users + 0.5)
    if not 1 <= count < users:
        raise DataError(
            f"split.test holds out {count} of {users} users; testing and training need at least one each", "split"
        )
    return frozenset(generator(int(split.get("seed", 0)), SPLIT).permutation(users)[:count].tolist())


def _split_seed(options: FrozenMap) -> int:
    return int(options["split"].get("seed", 0))
