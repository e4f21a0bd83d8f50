"""Tables of users: what is kept of one tells of no other, a number of users, and what does not fit is refused.

``neighbours`` writes a table and the same table without one user, and reads both by the code that audits read them by.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpspec.contract import DataError, LoadedData
from dpspec.kit.users import by_user

OPTIONS: dict[str, Any] = {"path": "t.csv", "label": "y", "classes": 2, "user": "who"}

#: Whose each record of a small table is: some have many, some one, in any order.
OWNERS = st.lists(st.sampled_from("abcde"), min_size=2, max_size=24).filter(lambda owners: len(set(owners)) > 1)


def write(folder: Path, owners: list[str], numbers: list[int] | None = None) -> None:
    numbers = list(range(len(owners))) if numbers is None else numbers
    lines = [f"{number},{owner},{number % 2}" for number, owner in zip(numbers, owners, strict=True)]
    (folder / "t.csv").write_text("\n".join(["x,who,y", *lines]) + "\n", encoding="utf-8")


def kept(rows: LoadedData) -> list[int]:
    return [int(x) for x in rows.train_x[:, 0]]


@pytest.fixture
def read(source: Callable[..., Any], tmp_path: Path) -> Callable[..., LoadedData]:
    def rows(owners: list[str], numbers: list[int] | None = None, **options: Any) -> LoadedData:
        write(tmp_path, owners, numbers)
        made: LoadedData = source("csv", tmp_path, **OPTIONS, **options).load()
        return made

    return rows


NEIGHBOURS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@NEIGHBOURS
@given(OWNERS, st.integers(1, 5), st.integers(0, 3), st.data())
def test_without_a_user_exactly_what_was_kept_of_that_user_is_gone(read, owners, most, seed, data):
    gone = data.draw(st.sampled_from(sorted(set(owners))))
    present = kept(read(owners, max_records_per_user=most, seed=seed))
    others = [number for number, owner in enumerate(owners) if owner != gone]
    absent = kept(read([owners[i] for i in others], others, max_records_per_user=most, seed=seed))
    assert absent == [number for number in present if owners[number] != gone]
    assert len(present) - len(absent) == min(most, owners.count(gone))


def test_every_choice_of_a_users_records_is_as_likely(read: Any) -> None:
    """All 6 pairs of 4 records over 300 seeds: chi-square with 5 degrees of freedom, beyond 25.7 once in 10^4."""
    counts = Counter(tuple(kept(read(["a"] * 4 + ["b"], max_records_per_user=2, seed=seed))[:2]) for seed in range(300))
    assert set(counts) == set(itertools.combinations(range(4), 2))
    assert sum((count - 50.0) ** 2 / 50.0 for count in counts.values()) < 25.7


def test_two_users_with_as_many_records_are_drawn_apart(read: Any) -> None:
    chosen = []
    for seed in range(20):
        present = kept(read(["a"] * 8 + ["b"] * 8, max_records_per_user=3, seed=seed))
        chosen.append((present[:3], [number - 8 for number in present[3:]]))
    assert any(one != other for one, other in chosen)


@NEIGHBOURS
@given(OWNERS, st.integers(0, 3), st.integers(1, 4))
def test_users_are_held_back_whole(read: Any, owners: list[str], seed: int, most: int) -> None:
    count = min(2, len(set(owners)) - 1)
    rows = read(owners, max_records_per_user=most, split={"test": count, "seed": seed})
    train = {owners[number] for number in kept(rows)}
    test = {owners[int(x)] for x in rows.test_x[:, 0]}
    assert len(test) == count
    assert train | test == set(owners)
    assert not train & test
    assert all(list(np.asarray(y)) == [int(v) % 2 for v in x[:, 0]] for x, y in ((rows.test_x, rows.test_y),))


def test_facts_count_what_is_kept(source: Any, tmp_path: Path) -> None:
    write(tmp_path, [*"aaaabbc"])
    made = source("csv", tmp_path, **OPTIONS, max_records_per_user=2, split={"test": 1})
    facts, rows = made.facts(), made.load()
    assert (facts.records + facts.test_records, facts.features) == (5, 1)
    assert (len(rows.train_y), len(rows.test_y)) == (facts.records, facts.test_records)
    assert rows.owners is not None
    assert (facts.users, len(rows.owners), set(rows.owners.tolist())) == (2, facts.records, {0, 1})
    (warning,) = made.remarks()
    assert (warning.severity, warning.path) == ("warning", ("data", "max_records_per_user"))
    assert warning.message == "2 of 7 records are dropped: some users have more than 2"
    assert not [*source("csv", tmp_path, **OPTIONS, max_records_per_user=4).remarks()]
    assert not [*source("csv", tmp_path, path="t.csv", label="y", classes=2, columns=["x"]).remarks()]


def test_what_decides_rows_decides_the_digest(source: Any, tmp_path: Path) -> None:
    write(tmp_path, [*"aaaabbc"])

    def digest(**options: Any) -> str:
        return str(source("csv", tmp_path, **OPTIONS, **options).facts().digest)

    whole = digest()
    assert digest(records_per_user=4) == digest(max_records_per_user=4) == digest(seed=1) == whole
    assert len({whole, digest(max_records_per_user=2), digest(max_records_per_user=2, seed=1)}) == 3
    assert len({whole, digest(split={"test": 1}), digest(split={"test": 2}), digest(split={"test": 1, "seed": 1})}) == 4


def test_parquet_is_read_as_csv_is(source: Any, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    owners = [*"abcabbaca"]
    write(tmp_path, owners)
    columns: dict[str, Any] = {"x": list(range(9)), "who": owners, "y": [number % 2 for number in range(9)]}
    options: dict[str, Any] = {"max_records_per_user": 2, "split": {"test": 1}}
    one = source("csv", tmp_path, **OPTIONS, **options).load()
    for names in (owners, [10**17 + "abc".index(owner) for owner in owners]):
        parquet.write_table(arrow.table({**columns, "who": names}), tmp_path / "t.parquet")
        other = source("parquet", tmp_path, **{**OPTIONS, "path": "t.parquet"}, **options)
        assert (other.facts().records, len(other.load().train_y)) == (len(one.train_y),) * 2 or names is not owners
        if names is owners:
            assert kept(other.load()) == kept(one)
    for values in ([0.5] * 9, [True] * 9, [None, *range(8)]):
        parquet.write_table(arrow.table({**columns, "who": values}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match="must contain strings or integers"):
            source("parquet", tmp_path, **{**OPTIONS, "path": "t.parquet"}).facts()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"records_per_user": 3}, "a user has 4 records, but records_per_user is 3", "records_per_user"),
    ({"records_per_user": 4, "max_records_per_user": 4}, "use one of the two", "records_per_user"),
    ({"user": None, "max_records_per_user": 4}, "the column with the user", "max_records_per_user"),
    ({"user": "y"}, "cannot be a label or feature", "user"),
    ({"columns": ["x", "who"]}, "cannot be a label or feature", "user"),
    ({"size": 3}, "remove it", "size"),
    ({"split": {"test": (0, 1)}}, "a number of users", "split"),
    ({"split": {"test": 1.5}}, "fraction below 1 or an integer", "split"),
]


@pytest.mark.parametrize(("options", "said", "key"), REFUSED)
def test_what_does_not_fit_is_refused(source, tmp_path, options, said, key):
    write(tmp_path, [*"aaaabbc"])
    given = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
    with pytest.raises(DataError, match=said) as caught:
        source("csv", tmp_path, **given).facts()
    assert caught.value.key == key


def test_every_record_needs_a_user(source: Any, tmp_path: Path) -> None:
    write(tmp_path, ["a", " ", "b"])
    with pytest.raises(DataError, match="record 1: column 'who' is empty"):
        source("csv", tmp_path, **OPTIONS).facts()


@NEIGHBOURS
@given(OWNERS, st.integers(1, 5), st.data())
def test_rows_are_laid_out_by_whose_they_are(read: Any, owners: list[str], most: int, data: st.DataObject) -> None:
    """Each user's kept records, in their order; and those of the others are the same where a user is gone."""
    rows = read(owners, max_records_per_user=most)
    x, y = by_user(rows, len(set(owners)))
    for user, name in enumerate(sorted(set(owners))):
        own = [number for number in kept(rows) if owners[number] == name]
        assert x[user, : len(own), 0].tolist() == own
        assert y[user].tolist() == [number % 2 for number in own] + [-1] * (x.shape[1] - len(own))
    gone = data.draw(st.sampled_from(sorted(set(owners))))
    others = [number for number, owner in enumerate(owners) if owner != gone]
    left, _ = by_user(read([owners[i] for i in others], others, max_records_per_user=most))
    place = sorted(set(owners)).index(gone)
    width = left.shape[1]
    assert np.array_equal(np.delete(x, place, 0)[:, :width], left)


@pytest.mark.parametrize(
    ("owners", "declared", "says"),
    [
        (None, None, "does not name the users"),
        ([0, 1], None, "3 integers"),
        ([-1, 0, 1], None, "each with a record"),
        ([0, 1, 1], 3, "have 2 users, but the data's facts declare 3"),
    ],
)
def test_owners_that_make_no_sense_are_refused(owners: Any, declared: int | None, says: str) -> None:
    x, y = np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64)
    given = None if owners is None else np.array(owners)
    with pytest.raises(DataError, match=says):
        by_user(LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0], owners=given), declared)
