"""Diagnostics at the keys of a spec that explain errors of its data, its model and its arithmetic."""

from dpspec.contract import DataError
from dpspec.contract import Path as SpecPath
from dpspec.contract.spec import Spec
from dpspec.errors import Diagnostic
from dpspec.language.yaml_source import locate


def data_unreadable(error: DataError, spec: Spec) -> Diagnostic:
    """The diagnostic of a data error, at the responsible key of ``data`` or at a dotted place such as
    ``audit.scores.path``."""
    key = error.key or ("path" if "path" in spec.data.options else "")
    path = tuple(key.split(".")) if "." in key else ("data", key) if key else ("data",)
    diagnostic = Diagnostic(code="data-unreadable", message=str(error), path=path, private=error.private)
    return locate(diagnostic, spec.origin)


def out_of_range(error: ArithmeticError, spec: Spec) -> Diagnostic:
    reason = error.args[-1] if error.args else type(error).__name__
    message = f"bounds cannot be computed in floating point: {reason}"
    hint = "a number of the mechanism, or of its rate, noise or limits, is far too large or too small"
    return locate(Diagnostic(code="out-of-range", message=message, path=("mechanism",), help=hint), spec.origin)


def model_mismatch(error: ValueError, path: SpecPath, spec: Spec) -> Diagnostic:
    return locate(Diagnostic(code="model-mismatch", message=str(error), path=path), spec.origin)
