"""What a mechanism plugin implements: the five steps of an audit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dpspec.contract.attacks import Attacker
from dpspec.contract.diagnostics import Diagnostic
from dpspec.contract.findings import Assumption, Check, Evidence, Facts, Finding, Scope, Series
from dpspec.contract.frozen import FrozenMap, Json
from dpspec.contract.providers import LoadedData, ModelFactory, Resumable, Trainer
from dpspec.contract.spec import Claim, Spec

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Power:
    """What an attack could show at best, said before anything is trained."""

    at: FrozenMap
    epsilon: float
    method: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the trials are split and what they cost.

    ``chunks`` partitions the trial indices; one chunk runs on one device and may batch its trials. ``checks`` are the
    tests of conformance that will be made, each with the deviation that it would see; nothing is measured in them yet.
    ``sequential`` promises that what ``conclude`` says of privacy, and its checks, hold after whichever chunk of the
    plan one stops, by whatever rule: the run then ends when all claims about privacy are decided.
    ``independent`` promises that a trial comes out the same, to the last bit, whichever others of its chunk are made
    with it: then what the store lacks of a chunk is made alone. Without it the whole chunk is made again, because what
    is computed together is rounded together.
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
        """The number of trials over all chunks."""
        return sum(len(chunk) for chunk in self.chunks)


#: The plan of an audit that makes no trials.
NO_TRIALS = Plan(chunks=(), seconds=0.0, memory_bytes=0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The record of one training run and its attack.

    evidence: JSON of at most 1 MiB: scores, coins, counts, checks. It is embedded in the result, but for what stands
        under the key ``internal``, which is left out of every report together with data-dependent findings: read it
        with ``get`` in ``conclude``.
    arrays: larger things by name; numpy arrays when a trial is made, read-only memory maps once it is stored.
    """

    index: int
    evidence: FrozenMap
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, compare=False)


class Context(Protocol):
    """What core hands to an audit's steps."""

    @property
    def facts(self) -> Facts:
        """The public facts of data and model."""

    @property
    def data(self) -> LoadedData:
        """The rows, loaded when first asked for."""

    @property
    def model(self) -> ModelFactory:
        """Builds the spec's model."""

    @property
    def trainer(self) -> Trainer:
        """Trains, by the backend that the spec names."""

    @property
    def attack(self) -> Attacker:
        """Makes canaries and scores them, by what the spec names of the hook ``dpspec_attacks``."""

    @property
    def device(self) -> str:
        """A torch device: ``cpu``, ``cuda``, ``cuda:1``."""

    @property
    def directory(self) -> FilePath:
        """What relative files of the spec are relative to."""

    @property
    def scratch(self) -> FilePath:
        """A folder for temporary files, removed afterwards."""

    def seed(self, index: int, *purpose: str) -> int:
        """A 63-bit seed derived from the trial's inputs but for ``split``, an index and a purpose."""

    def resumable(self, index: int) -> Resumable | None:
        """Where the runs of trial ``index`` may keep their state until the trial is stored; None for nowhere.

        Give it to every ``TrainingJob`` of the trial: a killed trial then goes on in the middle of the run that it
        was in, and the runs before that one are not made again.
        """

    def progress(self, done: int, total: int, what: str = "", *, unit: str = "", records: float = 0.0) -> None:
        """Tell how far the current piece of work is.

        unit: what is counted, in the plural (``steps``), where its rate means something to people.
        records: how many records one of them takes on average, where that does.
        """

    def cancelled(self) -> bool:
        """Whether to stop at the next safe point."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """Apply a function to independent items, in order, perhaps in parallel."""


@dataclass(frozen=True, kw_only=True)
class Dominating:
    """What one whole run leaks at most, in a form in which it composes with other runs on the same data.

    phases: pairs of :mod:`dpspec.accounting`, each with how often it is composed; together they dominate the run in
        both directions.
    scopes: those in which they do, such as all data sets of at least so many records, and this one.
    source, assumptions: as of a finding; the accuracy of library functions is named by whoever composes.
    """

    phases: tuple[tuple[object, int], ...]
    scopes: tuple[Scope, ...]
    source: str
    assumptions: tuple[Assumption, ...] = ()


#: What ``bound`` and ``conclude`` yield.
Outcome: TypeAlias = Finding | Series | Check | Evidence


class Audit(ABC):
    """The five steps of an audit; one instance serves one mechanism kind and holds no state."""

    def check(self, spec: Spec, facts: Facts) -> Iterable[Diagnostic]:
        """Say what is wrong with a spec that its schema accepts. No torch, no rows."""
        return ()

    @abstractmethod
    def bound(self, spec: Spec, context: Context) -> Iterable[Finding | Series]:
        """Upper bounds from theory for every claim. On the CPU; may read the data, never trains."""

    def dominating(self, spec: Spec, facts: Facts, claim: Claim) -> Dominating | None:
        """What dominates the run of ``spec`` for the claim's group size, direction and adjacency; None where nothing is
        known that composes.

        With it the choice of the best of several runs is bounded by their exact composition, and by a random number of
        tries; without, by the sum of what ``bound`` says of each. Neither torch nor rows.
        """
        return None

    def plan(self, spec: Spec, facts: Facts) -> Plan:
        """How many trials, in which chunks, at what cost, and what they can show."""
        return NO_TRIALS

    def trial_inputs(self, spec: Spec) -> FrozenMap:
        """Everything that trials may read, and the whole of their cache key.

        By default: mechanism, data, model, training, the threat model but for the pairs of data sets that it speaks of
        (``min_records``, ``neighbours``), and of the audit its method, seed and own options. Never claims, confidence,
        the number of runs, or keys that only bounds read. What stands under ``split`` says how the work of one run is
        divided among trials: it decides keys, and no seed, so that all trials of a run can draw the same. The path
        of initial weights is left out: core puts their digest into the key; ``worst-case`` stays.
        """
        audit = spec.audit
        document: dict[str, Json] = {
            key: spec.document.get(key) for key in ("mechanism", "data", "model", "training", "threat_model")
        }
        if document["threat_model"] is not None:
            spoken_of = ("min_records", "neighbours")
            document["threat_model"] = {k: v for k, v in document["threat_model"].items() if k not in spoken_of}
        if document["data"] is not None:  # who may see values decides no value
            document["data"] = {key: value for key, value in document["data"].items() if key != "public"}
        if document["model"] is not None:  # the digest of the file is in the key, wherever the file lies
            document["model"] = {
                key: value for key, value in document["model"].items() if key != "initial" or isinstance(value, str)
            }
        if audit is not None:
            document["audit"] = {"method": audit.method, "seed": audit.seed, **audit.options}
        return FrozenMap(document)

    def trials(self, inputs: FrozenMap, context: Context, indices: Sequence[int]) -> Iterable[Trial]:
        """Train and attack once per index, yielding each trial as it ends. The only step that needs torch.

        ``indices`` are a whole chunk of the plan, or where the plan says that trials are independent, some of one.
        """
        raise TypeError(f"{type(self).__name__} plans trials but does not implement them")

    def conclude(self, spec: Spec, trials: Sequence[Trial]) -> Iterable[Outcome]:
        """Findings, checks and evidence from stored trials. Pure: no data, no device, no randomness."""
        return ()
