"""Old names that still work: of the contract, which will go, and of modules that plugins imported in version 0.1.

Asking :mod:`dpspec.contract` for a name of ``DEPRECATED`` warns and gives what took its place. How long they stay is
promised in ``docs/plugins/compatibility.md``. ``dpspec.data``, ``dpspec.stats`` and ``dpspec.training`` are for plugins
too, and were flat: ``from dpspec.stats import thresholds`` and ``import dpspec.training.native`` give what took the
place of these modules, without a warning, until version 1.0.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Deprecated:
    """A name that will go. ``instead`` is a name of the module ``home`` that means the same."""

    since: str
    instead: str
    home: str = "dpspec.contract"

    @property
    def meaning(self) -> Any:
        """What the name stands for."""
        return getattr(importlib.import_module(self.home), self.instead)


def _moved(home: str, *names: str) -> dict[str, Deprecated]:
    """Names that keep their name in another module."""
    return {name: Deprecated(since="0.2", instead=name, home=home) for name in names}


def _renamed(home: str, **names: str) -> dict[str, Deprecated]:
    """Names that have another name in another module."""
    return {name: Deprecated(since="0.2", instead=instead, home=home) for name, instead in names.items()}


#: By name: what runs tasks, and says what came of them; what happens during a run; and what is installed.
DEPRECATED: Mapping[str, Deprecated] = {
    **_renamed(
        "dpspec.executors",
        Said="TaskProgress",
        Yielded="PartialResult",
        Ended="TaskFinished",
        Failed="TaskFailed",
        Lost="WorkerLost",
    ),
    **_moved("dpspec.executors", "Demand", "Message", "Needs", "PartialResult", "Place", "Pool", "Task", "TaskFailed"),
    **_moved("dpspec.executors", "TaskFinished", "TaskProgress", "WorkerLost"),
    **_moved("dpspec.contract.events", "Event", "Noticed", "Progressed", "RunFinished", "RunStarted", "StageStarted"),
    **_moved("dpspec.contract.events", "TrialFinished", "TrialsPlanned"),
    **_moved("dpspec.contract.catalog", "BrokenPlugin", "Catalog", "Offered"),
}


def replaced(name: str) -> Any:
    """What took the place of ``name`` among the names of the contract, with a warning; raises ``AttributeError``."""
    if name not in DEPRECATED:
        raise AttributeError(f"module 'dpspec.contract' has no attribute {name!r}")
    about = DEPRECATED[name]
    instead = about.instead if about.home == "dpspec.contract" else f"{about.home}.{about.instead}"
    message = f"dpspec.contract.{name} is deprecated since dpspec {about.since}; use {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return about.meaning


#: Modules: new names by old ones.
MOVED: Mapping[str, str] = {
    "dpspec.data.breast_cancer": "dpspec.data.bundled",
    "dpspec.data.columnar": "dpspec.data.tables.table",
    "dpspec.data.csv_file": "dpspec.data.tables.table_files",
    "dpspec.data.declared": "dpspec.data.fetched.remote",
    "dpspec.data.digits": "dpspec.data.bundled",
    "dpspec.data.extras": "dpspec.data.files",
    "dpspec.data.huggingface": "dpspec.data.fetched.huggingface",
    "dpspec.data.idx": "dpspec.data.arrays",
    "dpspec.data.npz": "dpspec.data.arrays",
    "dpspec.data.openml": "dpspec.data.fetched.remote",
    "dpspec.data.parquet": "dpspec.data.tables.table_files",
    "dpspec.data.pictures": "dpspec.data.images",
    "dpspec.data.remote": "dpspec.data.fetched.remote",
    "dpspec.data.selection": "dpspec.data.source",
    "dpspec.data.table": "dpspec.data.tables.table",
    "dpspec.data.values": "dpspec.data.options",
    "dpspec.stats.batch_checks": "dpspec.stats.conformance.run_checks",
    "dpspec.stats.checking": "dpspec.stats.conformance.measurement",
    "dpspec.stats.contributions": "dpspec.stats.conformance.canary_contributions",
    "dpspec.stats.curves": "dpspec.stats.attacks.curve_lines",
    "dpspec.stats.foreseen": "dpspec.stats.conformance.expectations",
    "dpspec.stats.freshness": "dpspec.stats.conformance.freshness",
    "dpspec.stats.gdp": "dpspec.stats.attacks.gaussian_fit",
    "dpspec.stats.ladder": "dpspec.stats.attacks.guess_counts",
    "dpspec.stats.looks": "dpspec.stats.conformance.evidence.steps",
    "dpspec.stats.manyrun": "dpspec.stats.attacks.many_run",
    "dpspec.stats.martingale": "dpspec.stats.conformance.martingale",
    "dpspec.stats.measurement": "dpspec.stats.conformance.measurement",
    "dpspec.stats.noise": "dpspec.stats.conformance.noise_size",
    "dpspec.stats.noise_checks": "dpspec.stats.conformance.noise_checks",
    "dpspec.stats.nulls": "dpspec.stats.attacks.evidence_tests",
    "dpspec.stats.onerun": "dpspec.stats.attacks.one_run",
    "dpspec.stats.onerun_curve": "dpspec.stats.attacks.one_run_curve",
    "dpspec.stats.power": "dpspec.stats.attacks.attack_power",
    "dpspec.stats.sampling": "dpspec.stats.conformance.sampling",
    "dpspec.stats.scores": "dpspec.stats.attacks.scores",
    "dpspec.stats.sequential": "dpspec.stats.attacks.sequential",
    "dpspec.stats.steps": "dpspec.stats.conformance.step_tests",
    "dpspec.stats.thresholds": "dpspec.stats.attacks.thresholds",
    "dpspec.training.accuracy": "dpspec.training.measure.accuracy",
    "dpspec.training.batched": "dpspec.training.loop.native",
    "dpspec.training.checkpoint": "dpspec.training.loop.checkpoint",
    "dpspec.training.clipping": "dpspec.training.gradients.clipping",
    "dpspec.training.conformance": "dpspec.training.measure.run_evidence",
    "dpspec.training.contributions": "dpspec.training.gradients.contributions",
    "dpspec.training.coupling": "dpspec.training.gradients.flat_model",
    "dpspec.training.dpsgd": "dpspec.training.loop.dpsgd",
    "dpspec.training.expected": "dpspec.training.measure.population",
    "dpspec.training.flat": "dpspec.training.gradients.flat_model",
    "dpspec.training.ghost": "dpspec.training.gradients.ghost",
    "dpspec.training.ghost_calls": "dpspec.training.gradients.ghost_calls",
    "dpspec.training.ghost_convolution": "dpspec.training.gradients.ghost_calls",
    "dpspec.training.ghost_gradients": "dpspec.training.gradients.ghost_parameters",
    "dpspec.training.ghost_rules": "dpspec.training.gradients.ghost",
    "dpspec.training.input_canaries": "dpspec.training.canaries",
    "dpspec.training.logs": "dpspec.training.measure.logs",
    "dpspec.training.measured": "dpspec.training.measure.update_statistics",
    "dpspec.training.memories": "dpspec.training.loop.checkpoint",
    "dpspec.training.memory": "dpspec.training.gradients.memory",
    "dpspec.training.native": "dpspec.training.loop.native",
    "dpspec.training.noise": "dpspec.training.loop.dpsgd",
    "dpspec.training.observers": "dpspec.training.measure.observers",
    "dpspec.training.optimizers": "dpspec.training.loop.optimizers",
    "dpspec.training.persample": "dpspec.training.gradients.persample",
    "dpspec.training.populations": "dpspec.training.measure.residuals",
    "dpspec.training.precision": "dpspec.training.device",
    "dpspec.training.rates": "dpspec.training.loop.learning_rates",
    "dpspec.training.record_scores": "dpspec.training.measure.observers",
    "dpspec.training.residuals": "dpspec.training.measure.residuals",
    "dpspec.training.sampling": "dpspec.training.loop.samplers",
    "dpspec.training.schedule": "dpspec.training.loop.schedule",
    "dpspec.training.sparse": "dpspec.training.gradients.contributions",
    "dpspec.training.stacked": "dpspec.training.gradients.stacked_models",
    "dpspec.training.states": "dpspec.training.measure.logs",
}


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by their old names; it is asked last, for names that nothing else knows."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name, None for all others."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name: the same object, so that its classes and its state exist once."""
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run. Its own spec, which importing under another name replaced, is put back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def find_moved_modules() -> None:
    """Let the old names be imported, once per process."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
