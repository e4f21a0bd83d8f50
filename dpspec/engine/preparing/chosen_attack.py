"""The canaries and scores that a spec chose. Values from a plugin's code are checked, and its inputs are protected."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dpspec.contract import Context, FrozenMap, Spec
from dpspec.contract.attacks import Array, Asked, Canary, Directions, Observed, Records, Score
from dpspec.contract.catalog import Catalog, Offered
from dpspec.engine.preparing.providers import canary_options, providers_of
from dpspec.registry.loader import is_foreign, made, misbehaved

if TYPE_CHECKING:
    import numpy as np

#: Maximum error of the products of orthonormal directions.
_TOLERANCE = 1e-5


class ChosenAttack:
    def __init__(self, spec: Spec, catalog: Catalog, context: Context) -> None:
        self._spec, self._context = spec, context
        self._offers = providers_of(spec, catalog)

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
        shape, classes = self._context.data.train_x.shape[1:], self._context.facts.classes
        fits = isinstance(records, tuple) and [np.shape(part) for part in records] == [(count, *shape), (count,)]
        if not fits or not np.isfinite(records[0]).all() or not np.isin(records[1], np.arange(classes)).all():
            expected = f"{count} finite records of shape {shape} with labels 0 to {classes - 1}"
            raise misbehaved(offered, f"make() does not return {expected}")
        return Records(records[0].astype(np.float32), records[1].astype(np.int64))

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
                directions, off = read_directions(rows, count, parameters, self._context.device)
            except InvalidDirectionsError as error:
                raise misbehaved(offered, str(error)) from None
            _require_orthonormal(offered, off)
            return directions
        expected_shape = (count, parameters)
        if rows.shape != expected_shape or rows.dtype.kind != "f":
            raise misbehaved(
                offered, f"make() returns {rows.dtype} of shape {rows.shape}, not float32 of {expected_shape}"
            )
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
        scores = made(offered, offered.provider.score, "score()", observed)
        if not foreign:
            return cast(Array, scores)
        values = np.asarray(scores)
        fits = values.shape == observed.copies.shape and values.dtype.kind in "fiu"
        if not fits or not np.isfinite(values).all():
            raise misbehaved(offered, f"score() does not return {len(observed.copies)} finite numbers")
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
            options=canary_options(self._spec),
            x=rows[0],
            y=rows[1],
            device=context.device,
        )
        return offered, made(offered, provider.make, "make()", request)


def _require_orthonormal(offered: Offered, off: float) -> None:
    """Refuse directions whose inner products differ from the identity matrix by up to ``off`` above the tolerance."""
    if not off <= _TOLERANCE:  # refuses NaN too
        raise misbehaved(offered, "make() returns directions that are not of length one, or not orthogonal")


def _sealed(array: np.ndarray[Any, Any]) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
