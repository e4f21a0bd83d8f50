"""The public names of the tools for plugins, with their parameters."""

import inspect
import sys
from importlib import import_module
from typing import Any

#: Packages with ``__all__``, or all public names, and modules that the guides name.
MODULES = (
    "dpspec.kit",
    "dpspec.data",
    "dpspec.testing",
    "dpspec.accounting",
    "dpspec.sampling",
    "dpspec.stats.attacks.evidence_tests",
    "dpspec.stats.attacks.curve_lines",
    "dpspec.stats.attacks.thresholds",
    "dpspec.stats.conformance.table",
    "dpspec.stats.utility",
)


def parameters(value: Any) -> list[list[Any]] | None:
    """Name, kind and whether it has a default, of each parameter; None for what cannot be called."""
    if not callable(value) or (isinstance(value, type) and value.__init__ is object.__init__):
        return None
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, p.default is not p.empty] for p in found]


def surface() -> dict[str, dict[str, Any]]:
    """By module and name: the parameters, and of classes those of their public methods."""
    listed: dict[str, dict[str, Any]] = {}
    for module_name in MODULES:
        module = import_module(module_name)
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(module_name)
        ]
        listed[module_name] = {}
        for name in sorted(names):
            value = getattr(module, name)
            methods = vars(value).items() if isinstance(value, type) else ()
            listed[module_name][name] = {
                "parameters": parameters(value),
                "methods": {
                    method: parameters(getattr(value, method))
                    for method, _ in sorted(methods)
                    if not method.startswith("_") and inspect.isroutine(getattr(value, method))
                },
            }
    return listed


if __name__ == "__main__":
    import json

    json.dump(surface(), sys.stdout, indent=1, sort_keys=True)
