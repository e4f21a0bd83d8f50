"""Claims about users from proofs and attacks for groups of records.

**Record sampling.** A user has at most k records: the data block declares it and rejects or drops additional ones
(:mod:`dpspec.data.table` proves that dropping keeps neighbors). Datasets that differ in g users differ in at
most g k records, and groups are nested, so a bound for groups of up to g k records bounds g users (example-level
sampling of Charles et al. 2024, "Fine-tuning large language models with user-level differential privacy"). A lower
bound for groups of exactly g k records applies to g users with k records each, who occur in some dataset in scope.
Likewise, an inserted group of g k records represents g inserted users. The owners of real records are not needed.

**User sampling** (``sampling.unit: user``, user-level sampling of the same paper). A drawn user adds one clipped vector
that depends only on their records and coins. Datasets that differ in g users differ in g contributions, each included
independently with the sampling rate. Statements for groups of g records at that rate apply to g users with any number
of records. An inserted user is one contribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import dpspec.contract as dps
from dpspec.contract.spec import records_per_user
from dpspec.kit.findings import unsupported

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
        raise dps.DataError("users are drawn, but the data does not name the users of its records")
    if owners.shape != y.shape or owners.dtype.kind != "i":
        raise dps.DataError(f"owners must be {len(y)} integers, one for each record")
    counts = np.bincount(owners) if len(owners) and owners.min() >= 0 else np.zeros(1, dtype=np.int64)
    if counts.min() < 1:
        raise dps.DataError("owners must be users counted from 0, each with a record")
    users, most = len(counts), int(counts.max())
    if declared is not None and users != declared:
        raise dps.DataError(f"the records have {users} users, but the data's facts declare {declared}")
    if users * most * max(1, x[:1].nbytes) > MOST_BYTES:
        message = f"{users} users with up to {most} records each exceed the memory for rows by user"
        raise dps.DataError(f"{message}: set a smaller max_records_per_user")
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum(counts) - counts
    row_of_user = np.arange(len(owners)) - np.repeat(starts, counts)
    rows = np.zeros((users, most, *x.shape[1:]), dtype=x.dtype)
    labels = np.full((users, most), -1, dtype=np.int64)
    rows[owners[order], row_of_user], labels[owners[order], row_of_user] = x[order], y[order]
    return rows, labels


_T = TypeVar("_T")

#: Limit of every user column.
_SPELT = "two spellings of a user count as two users"

#: The statements of the assumptions, by name.
TEXTS = {
    "users-drawn": "a drawn user adds one vector within the clip norm, for any number of records",
    "records-per-user": "no user has more than the declared number of records",
}


class UsersAsGroups(dps.Audit):
    """Extends an audit of groups of records to users; see the module."""

    #: The audit of groups of records.
    of_records: ClassVar[dps.Audit]

    def check(self, spec: dps.Spec, facts: dps.Facts) -> Iterator[dps.Diagnostic]:
        """Errors of the audit of groups, and errors about users."""
        wrong = list(_refused(spec))
        yield from wrong or self.of_records.check(in_records(spec), drawn(spec.phases, facts))

    def bound(self, spec: dps.Spec, context: dps.Context) -> Iterator[dps.Finding | dps.Series]:
        """Bounds for groups, converted to users."""
        return (in_units(spec, outcome) for outcome in self.of_records.bound(in_records(spec), context))

    def dominating(self, spec: dps.Spec, facts: dps.Facts, claim: dps.Claim) -> dps.audit.Dominating | None:
        """Dominating pairs for groups, converted to users."""
        if spec.threat_model.unit != "user":
            return self.of_records.dominating(spec, facts, claim)
        group = replace(claim, unit="record", group_size=claim.group_size * members(spec))
        pair = self.of_records.dominating(in_records(spec), facts, group)
        if pair is None:
            return None
        scopes = tuple(replace(scope, unit=spec.unit) for scope in pair.scopes)
        return replace(pair, scopes=scopes, assumptions=(*pair.assumptions, bounded(spec)))

    def plan(self, spec: dps.Spec, facts: dps.Facts) -> dps.Plan:
        """Plan for groups, converted to users."""
        plan = self.of_records.plan(in_records(spec), drawn(spec.phases, facts))
        return replace(plan, power=tuple(in_units(spec, power) for power in plan.power))

    def trial_inputs(self, spec: dps.Spec) -> dps.FrozenMap:
        """Inputs for groups; trials do not depend on users."""
        return self.of_records.trial_inputs(in_records(spec))

    def trials(self, inputs: dps.FrozenMap, context: dps.Context, indices: Sequence[int]) -> Iterable[dps.Trial]:
        """Trials for groups."""
        return self.of_records.trials(inputs, context, indices)

    def conclude(self, spec: dps.Spec, trials: Sequence[dps.Trial]) -> Iterator[dps.Outcome]:
        """Conclusions for groups, converted to users."""
        return (in_units(spec, outcome) for outcome in self.of_records.conclude(in_records(spec), trials))


def members(spec: dps.Spec) -> int:
    """Number of independently drawn records per unit; 1 if users are drawn."""
    return 1 if draws_users(spec.phases) else spec.records_per_unit


def in_records(spec: dps.Spec) -> dps.Spec:
    """The spec with groups of users replaced by groups of records; unchanged without users."""
    most = members(spec)
    if spec.threat_model.unit != "user":
        return spec
    sizes = tuple(size * most for size in spec.threat_model.group_size)
    document = dict(spec.document)
    document["threat_model"] = {**document["threat_model"], "unit": "record", "group_size": sizes}
    return replace(
        spec,
        threat_model=replace(spec.threat_model, unit="record", group_size=sizes),
        claims=tuple(replace(claim, unit="record", group_size=claim.group_size * most) for claim in spec.claims),
        document=dps.FrozenMap(document),
    )


def in_units(spec: dps.Spec, outcome: _T) -> _T:
    """Convert sizes, scope and assumptions of an outcome for groups of records to users; unchanged for records."""
    if spec.threat_model.unit != "user":
        return outcome
    most = members(spec)

    def units(size: int) -> int:
        if size % most:
            raise ValueError(f"a group of {size} records does not consist of users with {most} each")
        return size // most

    converted: Any = outcome
    if isinstance(converted, dps.Series) and "group_size" in converted.columns:
        sizes = tuple(units(size) for size in converted.columns["group_size"])
        converted = replace(
            converted,
            title=f"{converted.title}: {spec.unit}",
            columns=dps.FrozenMap({**converted.columns, "group_size": sizes}),
            units=dps.FrozenMap({**converted.units, "group_size": "users"}),
        )
    if isinstance(converted, dps.Finding | dps.Evidence | dps.Power) and "group_size" in converted.at:
        users = units(converted.at["group_size"])
        converted = replace(converted, at=dps.FrozenMap({**converted.at, "group_size": users}))
        if isinstance(converted, dps.Power) or (
            isinstance(converted, dps.Finding) and converted.rigor == "statistical"
        ):
            group, records = "one user" if users == 1 else f"{users} users", spec.records_per_unit
            if not draws_users(spec.phases):
                group = f"{group} with {records} record{'s' * (records != 1)}{' each' * (users != 1)}"
            converted = replace(converted, method=f"{converted.method}; a group is {group}")
    if isinstance(converted, dps.Finding | dps.Evidence):
        converted = replace(converted, scope=replace(converted.scope, unit=spec.unit))
    if isinstance(converted, dps.Finding) and converted.scope.pipeline == "declared" and converted.bound == "upper":
        converted = replace(converted, assumptions=(*converted.assumptions, bounded(spec)))
    return converted  # type: ignore[no-any-return]


def bounded(spec: dps.Spec) -> dps.Assumption:
    """Assumption that converts claims about users to groups: the maximum number of records, or sampling of users."""
    if draws_users(spec.phases):
        text = f"{TEXTS['users-drawn']}; {_SPELT}"
        return dps.Assumption(name="users-drawn", status="declared", text=text)
    most = spec.records_per_unit
    text = f"{TEXTS['records-per-user']}, {most}"
    status: dps.findings.AssumptionStatus = "by-construction"
    if spec.data.get("max_records_per_user") is not None:
        text += f": others are dropped, chosen by a seed and that user's records only; {_SPELT}"
    elif spec.data.get("user") is not None:
        text += f": data with more is rejected; {_SPELT}"
    else:
        status, text = "declared", f"{text}: declared by the spec, not checked"
    return dps.Assumption(name="records-per-user", status=status, text=text)


def _refused(spec: dps.Spec) -> Iterator[dps.Diagnostic]:
    if spec.threat_model.unit != "user":
        return
    if records_per_user(spec.data.options) is None and not draws_users(spec.phases):
        yield unsupported(
            "a bound for one user needs the maximum number of records per user, which the data does not declare",
            ("threat_model", "unit"),
            "write data: {user: COLUMN, records_per_user: 8} for a table, or max_records_per_user: 8 to drop further "
            "records; records_per_user: 8 for declared data. Sampling of users (mechanism.sampling.unit: user) "
            "needs none",
        )
    for i, claim in enumerate(spec.claims):
        if claim.record is not None:
            yield unsupported("a claim about users cannot have record", ("claims", i, "record"), "remove record")
    if spec.audit is not None and "scores" in spec.audit.options:
        yield unsupported(
            "external scores support groups of records, not users",
            ("audit", "scores"),
            "remove unit, and write the number of records of a user as group_size",
        )
