"""Services for the steps of an audit: rows, model, trainer and device, each created on first use."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dpspec import decimals
from dpspec.contract import Context, DataError, Facts, FrozenMap, LoadedData, ModelFactory, Resumable, Spec, Trainer
from dpspec.contract.attacks import Array, Asked, Attacker, Canary, Directions, Observed, Records, Score
from dpspec.contract.catalog import Catalog, Offered
from dpspec.contract.events import Event, Noticed, Progressed
from dpspec.contract.frozen import digest
from dpspec.engine.preparing.model import chosen_weights
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.preparing.providers import canary_options, providers_of
from dpspec.registry.loader import is_foreign, made, misbehaved

if TYPE_CHECKING:
    import numpy as np

#: Memory for loading rows below which the free memory is not checked.
_UNCHECKED_BYTES = 2**28

#: Minimum number of seconds between progress events.
_EVERY = 0.1


class RunContext:
    def __init__(
        self,
        prepared: Prepared,
        catalog: Catalog,
        inputs: FrozenMap,
        *,
        device: str = "auto",
        emit: Callable[[Event], None] | None = None,
        stop: Callable[[], bool] | None = None,
        like: RunContext | None = None,
    ) -> None:
        self.prepared = prepared
        self.facts = prepared.facts
        self.directory = Path(prepared.spec.directory)
        self.inputs = inputs
        self.wanted_device = device
        self._catalog = catalog
        self.emit = emit
        self.stop = stop
        self._told = 0.0
        #: Where the runs of a trial keep their state, by the trial's index; None for nowhere.
        self.state_folder: Callable[[int], Path | None] | None = None
        if like is None or "data" not in like.__dict__:
            return
        earlier = like.prepared
        same_digest = prepared.facts.digest is not None and earlier.facts.digest == prepared.facts.digest
        if same_digest and (earlier.spec.data, earlier.spec.directory) == (prepared.spec.data, prepared.spec.directory):
            self.__dict__["data"] = like.data

    @cached_property
    def data(self) -> LoadedData:
        self._require_memory()
        rows = self.prepared.source.load()
        if self.prepared.source.facts().digest != self.prepared.facts.digest:
            raise DataError("the data changed during the run: a file differs from its state at the start")
        if len(rows.train_x) != (declared := self.prepared.facts.records):
            offered = self.prepared.offers["data"][1]
            raise misbehaved(offered, f"load() gives {len(rows.train_x)} records, and facts() declares {declared}")
        return rows

    def _require_memory(self) -> None:
        """Raise ``MemoryError`` before the system ends the process while it loads the rows."""
        needed = self.prepared.loading_bytes
        if needed < _UNCHECKED_BYTES:
            return
        from dpspec.training.gradients.memory import free_bytes

        free = free_bytes("cpu")
        if needed > free:
            raise MemoryError(
                f"loading the rows takes up to {decimals.size(needed)}, and {decimals.size(free)} are free: use fewer "
                "records or columns"
            )

    @cached_property
    def model(self) -> ModelFactory:
        if self.prepared.model is None:
            raise ValueError(f"spec {self.prepared.spec.name!r} has no model")
        if not chosen_weights(self.prepared.spec):
            return self.prepared.model
        from dpspec.training.canaries import PretrainedFactory

        return PretrainedFactory(
            self.prepared.model, lambda: (self.data.train_x, self.data.train_y), lambda: self.device
        )

    @cached_property
    def trainer(self) -> Trainer:
        _, offered = self.prepared.offers["backend"]
        return cast(Trainer, made(offered, offered.provider.trainer, "its trainer"))

    @cached_property
    def attack(self) -> Attacker:
        return ChosenAttack(self.prepared.spec, self._catalog, self)

    @cached_property
    def device(self) -> str:
        from dpspec.training.device import resolve_device

        return resolve_device(self.wanted_device)

    @property
    def device_used(self) -> str | None:
        device: str | None = self.__dict__.get("device")
        return device

    def seed(self, index: int, *purpose: str) -> int:
        """A 63-bit seed for one purpose within one trial."""
        text = "\x1f".join([self._seeding, str(index), *purpose])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    @cached_property
    def _seeding(self) -> str:
        """The digest of the inputs without the division of a run among trials, which must not change its draws."""
        return digest(FrozenMap({key: value for key, value in self.inputs.items() if key != "split"}))

    def resumable(self, index: int) -> Resumable | None:
        folder = self.state_folder(index) if self.state_folder is not None else None
        if folder is None:
            return None

        def resumed(step: int, total: int) -> None:
            if self.emit is not None:
                message = f"trial {index}: resumed at step {step} of {total}"
                self.emit(Noticed(audit=self.prepared.spec.name, message=message))

        return Resumable(folder=folder, resumed=resumed)

    def progress(self, done: int, total: int, what: str = "", *, unit: str = "", records: float = 0.0) -> None:
        now = time.monotonic()
        if self.emit is not None and (done >= total or now - self._told >= _EVERY):
            self._told = now
            name = self.prepared.spec.name
            self.emit(Progressed(audit=name, what=what, done=done, total=total, unit=unit, records=records))

    def cancelled(self) -> bool:
        return self.stop is not None and self.stop()

    def for_component(self, prepared: Prepared) -> RunContext:
        """The context of another audit, which shares equal rows."""
        inputs = prepared.audit.trial_inputs(prepared.spec)
        return RunContext(prepared, self._catalog, inputs, device=self.wanted_device, stop=self.stop, like=self)


class WorkerCache:
    def __init__(self, prepared: Sequence[Prepared] = ()) -> None:
        self._prepared = {(p.spec.digest, p.spec.name, p.spec.directory): p for p in prepared}
        self._context: RunContext | None = None

    def context(
        self,
        spec: Spec,
        catalog: Catalog,
        facts: Facts,
        *,
        device: str,
        emit: Callable[[Event], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunContext:
        identity = spec.digest, spec.name, spec.directory
        prepared = self._prepared.get(identity)
        if prepared is None:
            prepared = prepare(spec, catalog)
            self._prepared = {identity: prepared}
        if prepared.facts != facts:
            raise DataError("the data differ from those that the run began with: another file, or one that was changed")
        last = self._context
        if last is None or last.prepared is not prepared or last.wanted_device != device:
            inputs = prepared.audit.trial_inputs(prepared.spec)
            self._context = RunContext(prepared, catalog, inputs, device=device, like=last)
        assert self._context is not None
        self._context.emit, self._context.stop = emit, stop
        return self._context


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
    """``off`` is the maximum error of the products of directions."""
    if not off <= _TOLERANCE:  # refuses NaN too
        raise misbehaved(offered, "make() returns directions that are not of length one, or not orthogonal")


def _sealed(array: np.ndarray[Any, Any]) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
