"""What is refused of specs whose phases draw users: what no bound covers, and what cannot be laid out or trained."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

from dpspec.contract import Diagnostic, Facts, Path, Sampling, Spec, in_phase
from dpspec.contract.catalog import Offered
from dpspec.contract.spec import records_per_user

#: What a user is expected to add is a mean over all choices of that user's records; no more are made, unless each is
#: one record.
MOST_CHOICES = 1000


def users_drawn(spec: Spec, facts: Facts, backend: Offered) -> Iterator[Diagnostic]:
    """Every reason why users cannot be drawn as a spec says; nothing where it draws records."""
    drawn = [phase.sampling if "sampling" in phase else None for phase in spec.phases]
    if not any(sampling is not None and sampling.of_users for sampling in drawn):
        return
    first = next(i for i, sampling in enumerate(drawn) if sampling is not None and sampling.of_users)
    where = in_phase(spec, first, "sampling", "unit")
    if spec.threat_model.unit != "user":
        yield _unsupported(
            "users are drawn, so that bounds hold for users: one record less changes what its user adds, by up to "
            "twice the clip norm",
            where,
            "threat_model: {unit: user}, or leave unit and records_per_user out to draw records",
        )
    if len({(sampling.unit, sampling.records_per_user) for sampling in drawn if sampling is not None}) > 1:
        yield _unsupported(
            "phases that draw records, or other numbers of a user's, cannot follow phases that draw users",
            where,
            "write unit and records_per_user once, in mechanism.sampling",
        )
    for i, sampling in enumerate(drawn):
        if sampling is not None and sampling.of_users and sampling.scheme != "poisson":
            yield _unsupported(
                f"users are drawn one by one, each by a coin of its own, and not in {sampling.scheme} batches",
                in_phase(spec, i, "sampling", "scheme"),
                "scheme: poisson, whose rate is that of one user; rate: 1 draws everybody",
            )
    if spec.audit is not None:
        yield from _untrainable(spec, facts, backend, spec.phases[first].sampling, where)


def _untrainable(spec: Spec, facts: Facts, backend: Offered, sampling: Sampling, where: Path) -> Iterator[Diagnostic]:
    if facts.users is None and facts.digest is not None:
        yield _unsupported(
            "users are drawn, and nothing says whose the records are",
            where,
            "data: {user: COLUMN} of a table (kind: csv or parquet), or leave audit out",
        )
    if not backend.provider.users:
        yield Diagnostic(
            code="missing-capability",
            message=f"backend {spec.training.kind!r} draws records, not users",
            path=("training", "backend"),
            help="backend: native, or leave audit out",
        )
    if spec.audit is not None and (spec.audit.options.get("canary") or {}).get("space") == "input":
        yield _unsupported(
            "planted users have a gradient of their own; users of planted records are not made",
            ("audit", "canary", "space"),
            "space: gradient",
        )
    bound = records_per_user(spec.data.options)
    if bound is None:
        yield _unsupported(
            "rows are laid out user by user, and nothing says how many records one has at most",
            ("data",),
            "records_per_user: 8, or max_records_per_user: 8 to drop what is more",
        )
        return
    size = min(sampling.records_per_user or 1, bound)
    if 1 < size < bound and (bound > MOST_CHOICES or comb(bound, size) > MOST_CHOICES):
        yield _unsupported(
            f"{size} of {bound} records can be chosen in more than {MOST_CHOICES} ways, and what a user is expected to "
            "add is a mean over all of them",
            where[:-1],
            f"records_per_user: 1, or {bound} to average all; or fewer records of each user in data",
        )


def _unsupported(message: str, path: Path, help: str) -> Diagnostic:
    return Diagnostic(code="unsupported", message=message, path=path, help=help)
