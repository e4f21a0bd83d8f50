"""What a plugin imports: values and interfaces, without logic and without numpy, scipy or torch."""

from typing import Any

from dpspec.contract.audit import Audit, Context, Outcome, Plan, Power, Trial
from dpspec.contract.deprecated import replaced
from dpspec.contract.diagnostics import Diagnostic, Path, Span, format_path
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
from dpspec.contract.hookspecs import (
    HOOK_API,
    DpspecHooks,
    hookimpl,
    hookspec,
)
from dpspec.contract.phase import Phase, Sampling
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
from dpspec.contract.spec import AuditOptions, Claim, Section, Spec, ThreatModel, expected_batch_size, phases_of

__all__ = [
    "CAPABILITIES",
    "HOOK_API",
    "PRIVACY_QUANTITIES",
    "Assumption",
    "Audit",
    "AuditOptions",
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
    "Mechanism",
    "MissingArrayError",
    "Model",
    "ModelError",
    "ModelFactory",
    "Observer",
    "Outcome",
    "Path",
    "Phase",
    "Plan",
    "Power",
    "Printed",
    "Reporter",
    "Resumable",
    "Sampling",
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
    "expected_batch_size",
    "format_path",
    "freeze",
    "hookimpl",
    "hookspec",
    "in_phase",
    "is_privacy_quantity",
    "other_adjacencies",
    "phases_of",
    "thaw",
    "untrainable",
]


def __getattr__(name: str) -> Any:
    """Names that will go; see :mod:`dpspec.contract.deprecated`."""
    return replaced(name)
