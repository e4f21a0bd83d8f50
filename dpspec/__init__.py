"""Is the privacy that is claimed for a training pipeline true? Audits from a declarative spec.

    >>> import dpspec
    >>> result = dpspec.run("specs/quickstart.yaml")  # doctest: +SKIP
    >>> result.to_frame()  # doctest: +SKIP

Names are imported when they are first asked for: ``import dpspec`` alone imports neither numpy, scipy nor torch.
Plugins import :mod:`dpspec.contract` instead.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's: importing that takes longer than all of this, and Ctrl-C may come early
if TYPE_CHECKING:
    from typing import Any

    from dpspec.api import load, run
    from dpspec.contract import Claim, Diagnostic, Finding, Spec
    from dpspec.engine.codec import dump
    from dpspec.engine.diff import diff
    from dpspec.engine.result import Result, Verdict
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
    "load": "dpspec.api",
    "load_catalog": "dpspec.registry.loader",
    "load_specs": "dpspec.spec.load",
    "run": "dpspec.api",
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
