"""Is the privacy that is claimed for a training pipeline true? Audits from a declarative spec.

    >>> import dpspec
    >>> catalog = dpspec.load_catalog()
    >>> loaded = dpspec.load_specs([Path("specs/quickstart.yaml")], catalog)        # doctest: +SKIP
    >>> result = dpspec.run(loaded.specs, catalog, store=dpspec.Store(Path(".dpspec/store")))  # doctest: +SKIP

Names are imported when they are first asked for: ``import dpspec`` alone imports neither numpy, scipy nor torch.
Plugins import :mod:`dpspec.contract` instead.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpspec.contract import Claim, Diagnostic, Finding, Spec
    from dpspec.engine.codec import dump, load
    from dpspec.engine.diff import diff
    from dpspec.engine.result import Result, Verdict
    from dpspec.engine.runner import run
    from dpspec.engine.store import Store
    from dpspec.engine.verify import verify
    from dpspec.registry.loader import load_catalog
    from dpspec.spec.load import load_specs

__version__ = "0.1.0"

_HOME = {
    "Claim": "dpspec.contract",
    "Diagnostic": "dpspec.contract",
    "Finding": "dpspec.contract",
    "Result": "dpspec.engine.result",
    "Spec": "dpspec.contract",
    "Store": "dpspec.engine.store",
    "Verdict": "dpspec.engine.result",
    "diff": "dpspec.engine.diff",
    "dump": "dpspec.engine.codec",
    "load": "dpspec.engine.codec",
    "load_catalog": "dpspec.registry.loader",
    "load_specs": "dpspec.spec.load",
    "run": "dpspec.engine.runner",
    "verify": "dpspec.engine.verify",
}

__all__ = [
    "Claim",
    "Diagnostic",
    "Finding",
    "Result",
    "Spec",
    "Store",
    "Verdict",
    "__version__",
    "diff",
    "dump",
    "load",
    "load_catalog",
    "load_specs",
    "run",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
