"""Services for the steps of an audit: rows, model, trainer and device, each created on first use."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from dpspec.contract import DataError, Facts, FrozenMap, LoadedData, ModelFactory, Resumable, Spec, Trainer
from dpspec.contract.attacks import Attacker
from dpspec.contract.catalog import Catalog
from dpspec.contract.events import Event, Noticed, Progressed
from dpspec.contract.frozen import digest
from dpspec.contract.providers import RecordLoss
from dpspec.engine.preparing.chosen_attack import ChosenAttack
from dpspec.engine.preparing.loss import loss_of
from dpspec.engine.preparing.model import chosen_weights
from dpspec.engine.preparing.prepare import Prepared, prepare
from dpspec.engine.preparing.providers import providers_of
from dpspec.registry.loader import made, misbehaved

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
        self._rows: LoadedData | None = None if like is None or not _same_rows(like.prepared, prepared) else like._rows

    @property
    def data(self) -> LoadedData:
        if self._rows is None:
            self._rows = self._load()
        return self._rows

    def _load(self) -> LoadedData:
        if shortage := self.prepared.memory_shortage():
            raise MemoryError(shortage)  # otherwise the system ends the process while it loads the rows
        rows = self.prepared.source.load()
        if self.prepared.source.facts().digest != self.prepared.facts.digest:
            raise DataError("the data changed during the run: a file differs from its state at the start")
        if len(rows.train_x) != (declared := self.prepared.facts.records):
            offered = self.prepared.offers["data"][1]
            raise misbehaved(offered, f"load() gives {len(rows.train_x)} records, and facts() declares {declared}")
        return rows

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
    def loss(self) -> RecordLoss | None:
        return loss_of(self.prepared.spec, providers_of(self.prepared.spec, self._catalog), self.facts)

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
        inputs = prepared.trial_inputs()
        return RunContext(prepared, self._catalog, inputs, device=self.wanted_device, stop=self.stop, like=self)


def _same_rows(first: Prepared, second: Prepared) -> bool:
    """Whether two audits have the same data block, folder and digest of rows."""
    same_digest = first.facts.digest is not None and first.facts.digest == second.facts.digest
    same_block = (first.spec.data, first.spec.directory) == (second.spec.data, second.spec.directory)
    return same_digest and same_block


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
            inputs = prepared.trial_inputs()
            self._context = RunContext(prepared, catalog, inputs, device=device, like=last)
        assert self._context is not None
        self._context.emit, self._context.stop = emit, stop
        return self._context
