"""The canaries and the score that a spec selects, with validation of the values that plugins return."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dpspec.contract import Context, Diagnostic, Facts, FrozenMap, Spec
from dpspec.contract.attacks import Array, Asked, Canary, Directions, Observed, Records, Score
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.preparing.refusals import texts_flaw
from dpspec.errors import PluginError
from dpspec.registry.descriptors import CORE_KEYS
from dpspec.registry.foreign_code import is_foreign, made, misbehaved

if TYPE_CHECKING:
    import numpy as np

#: Maximum error of the products of orthonormal directions.
_TOLERANCE = 1e-5


def offers_of(spec: Spec, catalog: Catalog) -> dict[str, tuple[str, Offered]]:
    audit, found = spec.audit, {}
    if audit is not None and audit.canary is not None:
        found["canary"] = audit.canary.kind, find(catalog.canaries, audit.canary.kind, "canary")
    if audit is not None and audit.score is not None:
        found["score"] = audit.score.kind, find(catalog.scores, audit.score.kind, "score")
    return found


def find(offers: Mapping[str, Offered], kind: str, what: str) -> Offered:
    if kind not in offers:
        raise PluginError(f"no installed plugin offers {what} {kind!r} (see `dpspec plugins`)")
    return offers[kind]


def limited(spec: Spec, facts: Facts, catalog: Catalog) -> Iterator[Diagnostic]:
    chosen = offers_of(spec, catalog).get("canary")
    if chosen is None or not chosen[1].provider.limit:
        return
    offered = chosen[1]
    limit = made(offered, offered.provider.limit, "limit()", facts, options_of(spec))
    if limit is None:
        return
    fits = isinstance(limit, tuple) and len(limit) == 2 and isinstance(limit[0], int) and isinstance(limit[1], str)
    if not fits:
        raise misbehaved(offered, f"limit() returns {limit!r}, not a number and why, or None")
    most, why = limit
    sizes = len(set(spec.threat_model.group_size))
    count = int(_block(spec).get("count", sizes)) // sizes * sizes
    if count > most:
        message = f"count must be at most {most}, got {count}: {why}"
        yield Diagnostic(code="bad-value", message=message, path=("audit", "canary", "count"))


def options_of(spec: Spec) -> FrozenMap:
    return FrozenMap({key: value for key, value in _block(spec).items() if key not in CORE_KEYS["canary"]})


def _block(spec: Spec) -> Mapping[str, Any]:
    return (spec.audit.options.get("canary") if spec.audit is not None else None) or {}


class ChosenAttack:
    def __init__(self, spec: Spec, catalog: Catalog, context: Context) -> None:
        self._spec, self._context = spec, context
        self._offers = offers_of(spec, catalog)

    @property
    def canary(self) -> Canary | None:
        return None if self._spec.audit is None else self._spec.audit.canary

    @property
    def score(self) -> Score | None:
        return None if self._spec.audit is None else self._spec.audit.score

    def records(self, count: int, seed: int) -> Records:
        import numpy as np

        offered, records = self._make(count, seed)
        if not is_foreign(offered):
            return cast(Records, records)
        wanted, facts = (count, *self._context.data.train_x.shape[1:]), self._context.facts
        if not isinstance(records, tuple) or len(records) != 2 or not all(isinstance(a, np.ndarray) for a in records):
            raise misbehaved(offered, f"make() returns a {type(records).__name__}, not Records of two arrays")
        x, y = records
        if x.shape != wanted or x.dtype.kind != "f" or not np.isfinite(x).all():
            raise misbehaved(offered, f"make(): x is {x.dtype} of shape {x.shape}, not finite float32 of {wanted}")
        if y.shape != (count,) or y.dtype.kind not in "iu" or not ((y >= 0) & (y < facts.classes)).all():
            raise misbehaved(offered, f"make(): y is not {count} labels 0 to {facts.classes - 1}")
        if flaw := texts_flaw(x, "canaries'", facts.vocabulary):
            raise misbehaved(offered, f"make(): {flaw}")
        return Records(x.astype(np.float32), y.astype(np.int64))

    def directions(self, count: int, seed: int) -> Directions:
        import numpy as np

        from dpspec.training.canaries import InvalidDirectionsError, dense_directions, read_directions

        offered, rows = self._make(count, seed)
        parameters = self._context.facts.parameters
        if not isinstance(rows, np.ndarray):
            if not is_foreign(offered):
                return cast(Directions, rows)
            assert parameters is not None
            # Directions that compute their own gradients are evaluated once before any canary is inserted.
            try:
                found, off = read_directions(rows, count, parameters, self._context.device)
            except InvalidDirectionsError as error:
                raise misbehaved(offered, str(error)) from None
            _require_orthonormal(offered, off)
            return found
        wanted = (count, parameters)
        if rows.shape != wanted or rows.dtype.kind != "f":
            raise misbehaved(offered, f"make() returns {rows.dtype} of shape {rows.shape}, not float32 of {wanted}")
        products = rows.astype(np.float64) @ rows.astype(np.float64).T
        _require_orthonormal(offered, np.abs(products - np.eye(count)).max(initial=0.0))
        return dense_directions(rows, device=self._context.device)

    def scores(self, observed: Observed) -> Array:
        """Scores (m,)."""
        import numpy as np

        _, offered = self._offers["score"]
        foreign = is_foreign(offered)
        scoring = None if self._spec.audit is None else self._spec.audit.options.get("scoring")
        observed = replace(observed, options=FrozenMap(scoring or {}))
        if foreign:  # read-only arrays, and a copy of the model
            job = observed.job
            names = ("copies", "before", "after", "first", "last", "coins")
            sealed: dict[str, Any] = {name: _sealed(getattr(observed, name)) for name in names}
            observed = replace(
                observed,
                canaries=Records(*map(_sealed, observed.canaries)),
                job=replace(job, x=_sealed(job.x), y=_sealed(job.y), model=copy.deepcopy(job.model)),
                **sealed,
            )
        found = made(offered, offered.provider.score, "score()", observed)
        if not foreign:
            return cast(Array, found)
        values, wanted = np.asarray(found), observed.copies.shape
        if values.shape != wanted or values.dtype.kind not in "fiu":
            raise misbehaved(
                offered, f"score() returns {values.dtype} of shape {values.shape}, not numbers of {wanted}"
            )
        if not np.isfinite(values).all():
            raise misbehaved(offered, "score() returns values that are not finite")
        return values.astype(np.float64)

    def _make(self, count: int, seed: int) -> tuple[Offered, Any]:
        _, offered = self._offers["canary"]
        provider, context = offered.provider, self._context
        rows = (context.data.train_x, context.data.train_y) if provider.reads_data else (None, None)
        if is_foreign(offered) and rows[0] is not None:
            rows = _sealed(rows[0]), _sealed(rows[1])
        request = Asked(
            count=count,
            seed=seed,
            facts=context.facts,
            options=options_of(self._spec),
            x=rows[0],
            y=rows[1],
            device=context.device,
        )
        return offered, made(offered, provider.make, "make()", request)


def _require_orthonormal(offered: Offered, off: float) -> None:
    """``off`` is the maximum error of the products of directions."""
    if not off <= _TOLERANCE:  # not a number is no good either
        raise misbehaved(offered, "make() returns directions that are not of length one, or not orthogonal")


def _sealed(array: np.ndarray[Any, Any]) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
