"""The plugin API: values and interfaces, without logic and without importing numpy, scipy or torch.

Names are imported on first use: a command builds only the names that it uses.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes longer than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from dpspec.contract.audit import Audit, Context, Outcome, Plan, Power, Trial
    from dpspec.contract.events import HOOK_API, DpspecHooks, hookimpl, hookspec
    from dpspec.contract.findings import (
        PRIVACY_QUANTITIES,
        Assumption,
        Check,
        Evidence,
        Facts,
        Finding,
        Printed,
        Scope,
        Series,
        is_privacy_quantity,
    )
    from dpspec.contract.fragments import in_phase, other_adjacencies, untrainable
    from dpspec.contract.frozen import FrozenMap, Json, freeze, thaw
    from dpspec.contract.noise import NoiseKind
    from dpspec.contract.parts import backend, canary, dataset, loss, model, reporter, score
    from dpspec.contract.phase import Phase
    from dpspec.contract.providers import (
        CAPABILITIES,
        Backend,
        Cancelled,
        DataError,
        Dataset,
        DataSource,
        Executor,
        GradientCanaries,
        LoadedData,
        Loss,
        Mechanism,
        MissingArrayError,
        Model,
        ModelError,
        ModelFactory,
        Observer,
        Reporter,
        Resumable,
        Schemas,
        Trainer,
        TrainingJob,
    )
    from dpspec.contract.results import AuditResult, Result, Verdict
    from dpspec.contract.sampling import Sampling, SamplingKind
    from dpspec.contract.spec import AuditOptions, Claim, Section, Spec, ThreatModel, expected_batch_size, phases_of
    from dpspec.errors import Diagnostic, Path, Span, format_path

_HOME = {
    "Assumption": "dpspec.contract.findings",
    "Audit": "dpspec.contract.audit",
    "AuditOptions": "dpspec.contract.spec",
    "AuditResult": "dpspec.contract.results",
    "Backend": "dpspec.contract.providers",
    "CAPABILITIES": "dpspec.contract.providers",
    "Cancelled": "dpspec.contract.providers",
    "Check": "dpspec.contract.findings",
    "Claim": "dpspec.contract.spec",
    "Context": "dpspec.contract.audit",
    "DataError": "dpspec.contract.providers",
    "DataSource": "dpspec.contract.providers",
    "Dataset": "dpspec.contract.providers",
    "Diagnostic": "dpspec.errors",
    "DpspecHooks": "dpspec.contract.events",
    "Evidence": "dpspec.contract.findings",
    "Executor": "dpspec.contract.providers",
    "Facts": "dpspec.contract.findings",
    "Finding": "dpspec.contract.findings",
    "FrozenMap": "dpspec.contract.frozen",
    "GradientCanaries": "dpspec.contract.providers",
    "HOOK_API": "dpspec.contract.events",
    "Json": "dpspec.contract.frozen",
    "LoadedData": "dpspec.contract.providers",
    "Loss": "dpspec.contract.providers",
    "Mechanism": "dpspec.contract.providers",
    "MissingArrayError": "dpspec.contract.providers",
    "Model": "dpspec.contract.providers",
    "ModelError": "dpspec.contract.providers",
    "ModelFactory": "dpspec.contract.providers",
    "NoiseKind": "dpspec.contract.noise",
    "Observer": "dpspec.contract.providers",
    "Outcome": "dpspec.contract.audit",
    "PRIVACY_QUANTITIES": "dpspec.contract.findings",
    "Path": "dpspec.errors",
    "Phase": "dpspec.contract.phase",
    "Plan": "dpspec.contract.audit",
    "Power": "dpspec.contract.audit",
    "Printed": "dpspec.contract.findings",
    "Reporter": "dpspec.contract.providers",
    "Result": "dpspec.contract.results",
    "Resumable": "dpspec.contract.providers",
    "Sampling": "dpspec.contract.sampling",
    "SamplingKind": "dpspec.contract.sampling",
    "Schemas": "dpspec.contract.providers",
    "Scope": "dpspec.contract.findings",
    "Section": "dpspec.contract.spec",
    "Series": "dpspec.contract.findings",
    "Span": "dpspec.errors",
    "Spec": "dpspec.contract.spec",
    "ThreatModel": "dpspec.contract.spec",
    "Trainer": "dpspec.contract.providers",
    "TrainingJob": "dpspec.contract.providers",
    "Trial": "dpspec.contract.audit",
    "Verdict": "dpspec.contract.results",
    "backend": "dpspec.contract.parts",
    "canary": "dpspec.contract.parts",
    "dataset": "dpspec.contract.parts",
    "expected_batch_size": "dpspec.contract.spec",
    "format_path": "dpspec.errors",
    "freeze": "dpspec.contract.frozen",
    "hookimpl": "dpspec.contract.events",
    "hookspec": "dpspec.contract.events",
    "in_phase": "dpspec.contract.fragments",
    "is_privacy_quantity": "dpspec.contract.findings",
    "loss": "dpspec.contract.parts",
    "model": "dpspec.contract.parts",
    "other_adjacencies": "dpspec.contract.fragments",
    "phases_of": "dpspec.contract.spec",
    "reporter": "dpspec.contract.parts",
    "score": "dpspec.contract.parts",
    "thaw": "dpspec.contract.frozen",
    "untrainable": "dpspec.contract.fragments",
}

__all__ = [
    "CAPABILITIES",
    "HOOK_API",
    "PRIVACY_QUANTITIES",
    "Assumption",
    "Audit",
    "AuditOptions",
    "AuditResult",
    "Backend",
    "Cancelled",
    "Check",
    "Claim",
    "Context",
    "DataError",
    "DataSource",
    "Dataset",
    "Diagnostic",
    "DpspecHooks",
    "Evidence",
    "Executor",
    "Facts",
    "Finding",
    "FrozenMap",
    "GradientCanaries",
    "Json",
    "LoadedData",
    "Loss",
    "Mechanism",
    "MissingArrayError",
    "Model",
    "ModelError",
    "ModelFactory",
    "NoiseKind",
    "Observer",
    "Outcome",
    "Path",
    "Phase",
    "Plan",
    "Power",
    "Printed",
    "Reporter",
    "Result",
    "Resumable",
    "Sampling",
    "SamplingKind",
    "Schemas",
    "Scope",
    "Section",
    "Series",
    "Span",
    "Spec",
    "ThreatModel",
    "Trainer",
    "TrainingJob",
    "Trial",
    "Verdict",
    "backend",
    "canary",
    "dataset",
    "expected_batch_size",
    "format_path",
    "freeze",
    "hookimpl",
    "hookspec",
    "in_phase",
    "is_privacy_quantity",
    "loss",
    "model",
    "other_adjacencies",
    "phases_of",
    "reporter",
    "score",
    "thaw",
    "untrainable",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
