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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from dpspec.contract import DataError, Diagnostic, Facts, Json, LoadedData
from dpspec.contract.fragments import integer, string
from dpspec.data.source import SPLIT, Selection, generator, held_out_count, whole_rows
from dpspec.data.table import Table

#: Schema of the maximum number of records per user.
RECORDS_PER_USER: dict[str, Json] = integer(
    "The maximum number of records per user, which claims about users assume (threat_model.unit: user).",
    least=1,
    most=1_000_000,
)

#: Schema of the keys of a table with users.
KEYS: dict[str, Json] = {
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


class TableOfUsers(Table):
    """A table that may have a column of users."""

    @abstractmethod
    def owners(self) -> list[str]: ...

    def remarks(self) -> Iterator[Diagnostic]:
        if self.options.get("max_records_per_user") is None:
            return
        whole = self.describe()
        dropped = self.selection(whole).dropped
        if dropped:
            most = self.options["max_records_per_user"]
            message = f"{dropped} of {whole.records} records are dropped: some users have more than {most}"
            path = ("data", "max_records_per_user")
            yield Diagnostic(code="records-dropped", message=message, path=path, severity="warning")

    def selection(self, whole: Facts) -> Selection:
        options, where = self.options, self.what()
        if not any(options.get(key) is not None for key in KEYS):
            return super().selection(whole)
        bounds = [key for key in ("records_per_user", "max_records_per_user") if options.get(key) is not None]
        if options.get("user") is None:
            raise DataError(f"{bounds[0]} needs the key user, the column with the user of each record", bounds[0])
        if len(bounds) == 2:
            raise DataError(
                "records_per_user rejects users with more records, max_records_per_user drops records; use one of the "
                "two",
                "records_per_user",
            )
        if options.get("size") is not None:
            raise DataError("size counts records and is not supported for tables with users; remove it", "size")
        owners, own = self.owners(), dict[str, list[int]]()
        for record, owner in enumerate(owners):
            own.setdefault(owner, []).append(record)
        if "" in own:
            at, column = own[""][0], options["user"]
            raise DataError(f"{where}: record {at}: column {column!r} is empty; every record needs a user", "user")
        declared, largest = options.get("records_per_user"), max(map(len, own.values()), default=0)
        if declared is not None and largest > declared:
            raise DataError(
                f"{where}: a user has {largest} records, but records_per_user is {declared}; write "
                f"max_records_per_user: {declared} to keep a random sample",
                "records_per_user",
            )
        most, seed = options.get("max_records_per_user"), int(options.get("seed", 0))
        kept = tuple(tuple(_kept(name, own[name], most, seed)) for name in sorted(own))
        split, held, split_seed = options.get("split"), frozenset[int](), 0
        if split is not None:
            split_seed = int(split.get("seed", 0))
            if isinstance(split["test"], tuple):
                raise DataError("split.test must be a fraction or a number of users for tables with users", "split")
            count = held_out_count(split["test"], len(kept), "users", "split")
            held = frozenset(generator(split_seed, SPLIT).permutation(len(kept))[:count].tolist())
        if held and whole.test_records:
            raise DataError("split: this source already has test records")
        dropped, test_records = len(owners) - sum(map(len, kept)), sum(len(kept[user]) for user in held)
        key: dict[str, Json] = {"user": options["user"]}
        if dropped:
            key["kept"] = [most, seed]
        if held:
            key["split"] = {"users": [len(held), split_seed]}
        return Selection(
            key=key,
            records=len(owners) - dropped - test_records,
            test_records=whole.test_records + test_records,
            rows=partial(_rows, kept, held, len(owners)),
            users=len(kept) - len(held),
            dropped=dropped,
        )


def _rows(kept: Sequence[Sequence[int]], held: frozenset[int], records: int, whole: LoadedData) -> LoadedData:
    """The rows of each user's ``kept`` records, ascending; the ``held`` users are for testing."""
    import numpy as np

    if len(whole.train_y) != records:
        raise DataError("the table changed while it was read: the number of records differs")
    owners = np.full(records, -1, dtype=np.int64)  # -1: dropped
    for user, own in enumerate(kept):
        owners[list(own)] = user
    test = np.isin(owners, list(held))
    train = (owners >= 0) & ~test
    rows = whole_rows((whole.train_x[train], whole.train_y[train]), (whole.test_x, whole.test_y))
    if held:
        rows = replace(rows, test_x=whole.train_x[test], test_y=whole.train_y[test])
    # Training users are numbered in the order of their names, without the held-out ones.
    return replace(rows, owners=np.unique(owners[train], return_inverse=True)[1].astype(np.int64))


def _kept(name: str, own: list[int], most: int | None, seed: int) -> list[int]:
    """Return the indices of a user's kept records, ascending: a function of only this user's records."""
    if most is None or len(own) <= most:
        return own
    import numpy as np

    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4").tolist()
    return sorted(own[i] for i in generator(seed, *words).permutation(len(own))[:most])
