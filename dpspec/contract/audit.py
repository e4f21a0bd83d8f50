"""Interface of a mechanism plugin: the five steps of an audit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dpspec.contract.attacks import Attacker
from dpspec.contract.findings import Assumption, Check, Evidence, Facts, Finding, Scope, Series
from dpspec.contract.frozen import FrozenMap, Json, without
from dpspec.contract.providers import LoadedData, ModelFactory, RecordLoss, Resumable, Trainer
from dpspec.contract.spec import COLLECTION, Claim, Spec
from dpspec.errors import Diagnostic, Path

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Power:
    """The strongest result that an attack can achieve, computed before training."""

    at: FrozenMap
    epsilon: float
    method: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Division of the trials into chunks, and their cost.

    Attributes:
        chunks: Partition of the trial indices. A chunk runs on one device and may batch its trials.
        checks: The planned conformance tests with their detection limits.
        sequential: Whether conclusions are valid when stopping after any chunk, by any rule. The run then ends once all
            privacy claims are decided.
        independent: Whether a trial is bit-identical for any subset of its chunk. Otherwise a chunk with missing trials
            is repeated, because batched computations share rounding.
    """

    chunks: tuple[tuple[int, ...], ...]
    seconds: float
    memory_bytes: int
    power: tuple[Power, ...] = ()
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    sequential: bool = False
    independent: bool = False

    @property
    def trials(self) -> int:
        """Number of trials in all chunks."""
        return sum(map(len, self.chunks))


#: The plan of an audit without trials.
NO_TRIALS = Plan(chunks=(), seconds=0.0, memory_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Record of one training run and its attack.

    Attributes:
        evidence: JSON of at most 1 MiB, embedded in the result. Reports omit the key ``internal`` together with
            data-dependent findings, so ``conclude`` must read it with ``get``.
        arrays: Larger values by name: numpy arrays in a new trial, read-only memory maps in a stored one.
    """

    index: int
    evidence: FrozenMap
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, compare=False)


class Context(Protocol):
    """An audit plugin receives the facts, the data, a model factory, the training backend, the attack, the device."""

    @property
    def facts(self) -> Facts:
        """Public facts of data and model."""

    @property
    def data(self) -> LoadedData:
        """The rows, loaded on first access."""

    @property
    def model(self) -> ModelFactory:
        """Factory of the spec's model."""

    @property
    def trainer(self) -> Trainer:
        """The spec's training backend."""

    @property
    def loss(self) -> RecordLoss | None:
        """The loss that ``training.loss`` selects, for ``TrainingJob.loss``; None for cross entropy."""

    @property
    def attack(self) -> Attacker:
        """Canaries and score that the spec selects from the hook ``dpspec_attacks``."""

    @property
    def device(self) -> str:
        """A torch device: ``cpu``, ``cuda``, ``cuda:1``."""

    @property
    def directory(self) -> FilePath:
        """Base folder of the spec's relative paths."""

    def seed(self, index: int, *purpose: str) -> int:
        """A 63-bit seed derived from the trial's inputs without ``split``, an index and a purpose."""

    def resumable(self, index: int) -> Resumable | None:
        """Storage for the state of the runs of trial ``index``; None without resuming.

        Pass it to every ``TrainingJob`` of the trial: a killed trial then resumes within its current run.
        """

    def progress(self, done: int, total: int, what: str = "", *, unit: str = "", records: float = 0.0) -> None:
        """Report ``done`` of ``total`` units of the work ``what``.

        ``unit`` is a plural noun (``steps``) if the rate is meaningful, ``records`` the mean number of records per
        unit.
        """

    def cancelled(self) -> bool:
        """Whether to stop at the next safe point."""


@dataclass(frozen=True, kw_only=True)
class Dominating:
    """Privacy loss bound of a whole run in a form that composes with other runs on the same data.

    Attributes:
        phases: Pairs of :mod:`dpspec.accounting` with their number of compositions; together they dominate the run in
            both directions.
        scopes: Scopes in which they do.
        assumptions: As in a finding. The composing code adds library accuracy.
    """

    phases: tuple[tuple[object, int], ...]
    scopes: tuple[Scope, ...]
    source: str
    assumptions: tuple[Assumption, ...] = ()


#: Results of ``bound`` and ``conclude``.
Outcome: TypeAlias = Finding | Series | Check | Evidence


class Audit(ABC):
    """The five steps of an audit. One stateless instance serves one mechanism kind."""

    def check(self, spec: Spec, facts: Facts) -> Iterable[Diagnostic]:
        """Report errors that the schema cannot express. Uses neither torch nor rows."""
        return ()

    @abstractmethod
    def bound(self, spec: Spec, context: Context) -> Iterable[Finding | Series]:
        """Theoretical upper bounds for every claim. Runs on the CPU, may read the data, never trains."""

    def dominating(self, spec: Spec, facts: Facts, claim: Claim) -> Dominating | None:
        """Dominating pairs of the run for the claim's group size, direction and adjacency; None if unknown.

        They bound the selection of the best of several runs by exact composition. Without them the results of ``bound``
        are added. Uses neither torch nor rows.
        """
        return None

    def components(self, spec: Spec) -> Iterable[tuple[str, Path, Mapping[str, Json]]]:
        """Other audits on the same data, which core prepares for :meth:`compose`: name, place in the spec, document."""
        return ()

    def compose(self, components: Sequence[Any]) -> Audit:
        """An audit of one spec that composes the ``components``, as core prepared them."""
        raise TypeError(f"{type(self).__name__} names components but does not compose them")

    def notes(self, bounds: Sequence[Finding | Series]) -> Iterable[str]:
        """Sentences for every report that follow from the bounds."""
        return ()

    def plan(self, spec: Spec, facts: Facts) -> Plan:
        """Number of trials, chunks, cost and power."""
        return NO_TRIALS

    def trial_inputs(self, spec: Spec) -> FrozenMap:
        """All inputs of trials, which form their cache key.

        Default: mechanism, data, model, training, threat model, and the audit's method, seed and own options, without
        keys that change no trial. Never claims, confidence, the number of runs, or keys that only bounds read.
        ``split`` describes how one run's work is divided among trials: it enters keys but no seed.
        """
        audit, blocks = spec.audit, ("mechanism", "data", "model", "training", "threat_model")
        document: dict[str, Json] = {key: spec.document.get(key) for key in blocks}
        if document["threat_model"] is not None:
            document["threat_model"] = without(document["threat_model"], ("min_records", "neighbours"))
        if document["data"] is not None:  # the visibility of values does not change them
            document["data"] = without(document["data"], ("public", COLLECTION))
        if document["model"] is not None and not isinstance(document["model"].get("initial"), str):
            document["model"] = without(document["model"], ("initial",))  # the key contains the file's digest instead
        if audit is not None:
            document["audit"] = {"method": audit.method, "seed": audit.seed, **audit.options}
        return FrozenMap(document)

    def trials(self, inputs: FrozenMap, context: Context, indices: Sequence[int]) -> Iterable[Trial]:
        """Train and attack once per index, yielding each trial when it is done. The only step that needs torch.

        ``indices`` is a whole chunk of the plan, or a subset if the plan declares trials independent.
        """
        raise TypeError(f"{type(self).__name__} plans trials but does not implement them")

    def conclude(self, spec: Spec, trials: Sequence[Trial]) -> Iterable[Outcome]:
        """Findings, checks and evidence from stored trials. Pure: no data, device or randomness."""
        return ()
