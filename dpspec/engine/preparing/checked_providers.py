"""Creation of audits, sources, factories and trainers, and validation of rows and trials of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dpspec.contract import Audit, DataSource, Facts, FrozenMap, LoadedData, ModelFactory, Trainer, Trial
from dpspec.contract.canonical import canonical_json
from dpspec.contract.catalog import Offered
from dpspec.engine.preparing.refusals import texts_flaw
from dpspec.registry.foreign_code import made, misbehaved


def audit_of(offered: Offered) -> Audit:
    audit = made(offered, offered.provider.audit, "its audit")
    if not isinstance(audit, Audit):
        raise misbehaved(offered, f"{offered.provider.audit} makes a {type(audit).__name__}, not an Audit")
    return audit


def source_of(offered: Offered, options: FrozenMap, directory: object) -> DataSource:
    return cast(DataSource, made(offered, offered.provider.source, "its source", options, directory))


def factory_of(offered: Offered, options: FrozenMap, facts: Facts) -> ModelFactory:
    return cast(ModelFactory, made(offered, offered.provider.factory, "its factory", options, facts))


def trainer_of(offered: Offered) -> Trainer:
    trainer = made(offered, offered.provider.trainer, "its trainer")
    if not callable(getattr(trainer, "train", None)):
        raise misbehaved(offered, f"{offered.provider.trainer} makes a {type(trainer).__name__}, which has no train()")
    return cast(Trainer, trainer)


def require_rows(offered: Offered, rows: LoadedData, facts: Facts, options: FrozenMap) -> None:
    """Raise ``PluginError`` unless the rows of a data kind agree with its public facts, which bounds use."""
    for part, number in (("train", facts.records), ("test", facts.test_records or None)):
        flaw = _rows_flaw(rows, part, number, tuple(facts.shape), bool(options.get("missing")))
        if flaw := flaw or texts_flaw(getattr(rows, f"{part}_x"), part, facts.vocabulary):
            raise misbehaved(offered, f"load(): {flaw}")


def _rows_flaw(rows: LoadedData, part: str, number: int | None, shape: tuple[int, ...], missing: bool) -> str:
    """The difference between a part of the rows and the facts; empty if they agree."""
    import numpy as np

    x, y = getattr(rows, f"{part}_x"), getattr(rows, f"{part}_y")
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        return f"{part}_x is of {x.dtype} and {part}_y of {y.dtype}, not of float32 and int64"
    if y.shape != (len(x),) or (len(x) and shape and x.shape[1:] != shape):
        return f"{part}_x has the shape {x.shape} and {part}_y {y.shape}, where facts() says {('n', *shape)}"
    if number is not None and len(x) != number:
        return f"{part}_x has {len(x)} rows, where facts() says {number}"
    if not (np.isfinite(x) | np.isnan(x)).all() or (not missing and np.isnan(x).any()):
        return f"{part}_x holds values that are not finite"
    return ""


def require_storable(offered: Offered, trial: Trial) -> None:
    """Raise ``PluginError`` unless a store can keep the evidence and the arrays of a trial."""
    import numpy as np

    arrays: Mapping[str, Any] = trial.arrays
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise misbehaved(offered, f"trials(): the array {name!r} is not an array of numbers")
    try:
        canonical_json(trial.evidence)
    except (TypeError, ValueError, RecursionError) as error:
        raise misbehaved(offered, f"trials(): its evidence cannot be kept: {error}") from error
