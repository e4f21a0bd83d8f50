"""Records grouped by user, as training jobs with user-level sampling need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dpspec.contract as dps

if TYPE_CHECKING:
    import numpy as np

#: Maximum size of the grouped rows in bytes.
MOST_BYTES = 1 << 33


def draws_users(phases: Iterable[dps.FrozenMap]) -> bool:
    """Whether any phase draws users. Phases of other mechanisms may have no sampling."""
    return any("sampling" in phase and dps.Phase.of(phase).sampling.of_users for phase in phases)


def drawn(phases: Sequence[dps.Phase], facts: dps.Facts) -> dps.Facts:
    """The facts with ``records`` as the number of sampling units: users if phases draw them."""
    if not draws_users(phases) or facts.users is None:
        return facts
    return replace(facts, records=facts.users)


def by_user(data: dps.LoadedData, declared: int | None = None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Training records as (users, k, ...) and labels as (users, k), k the maximum number of records per user.

    A user's records keep their order and are padded with zeros and label -1.

    Raises:
        DataError: Owners are missing, their number differs from ``declared``, or the grouped rows would be too large.
    """
    import numpy as np

    owners, x, y = data.owners, data.train_x, data.train_y
    if owners is None:
        raise dps.DataError("users are drawn, and the data does not say whose its records are")
    if owners.shape != y.shape or owners.dtype.kind != "i":
        raise dps.DataError(f"owners must be {len(y)} whole numbers, one for each record")
    counts = np.bincount(owners) if len(owners) and owners.min() >= 0 else np.zeros(1, dtype=np.int64)
    if counts.min() < 1:
        raise dps.DataError("owners must be users counted from 0, each with a record")
    users, most = len(counts), int(counts.max())
    if declared is not None and users != declared:
        raise dps.DataError(f"the records are of {users} users, and the data's facts say {declared}")
    if users * most * max(1, x[:1].nbytes) > MOST_BYTES:
        message = f"{users} users with up to {most} records each do not fit when they are laid out user by user"
        raise dps.DataError(f"{message}: keep fewer of each, by max_records_per_user")
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum(counts) - counts
    places = np.arange(len(owners)) - np.repeat(starts, counts)
    rows = np.zeros((users, most, *x.shape[1:]), dtype=x.dtype)
    labels = np.full((users, most), -1, dtype=np.int64)
    rows[owners[order], places], labels[owners[order], places] = x[order], y[order]
    return rows, labels
