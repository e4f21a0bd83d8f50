"""Extreme numbers that a schema admits: a spec with one runs, or ``validate`` refuses it with a location.

Numbers that only cost the accountant time are in ``tests/accounting``. A few specs are also trained.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpspec.contract import Path as SpecPath
from dpspec.contract import Spec
from dpspec.contract.catalog import Catalog
from dpspec.engine.preparing.prepare import prepare
from dpspec.engine.running import runner
from dpspec.engine.storage.trial_store import Store
from dpspec.errors import SpecError
from dpspec.language.load import from_document, load_specs
from dpspec.language.numeric_values import _keys
from dpspec.language.yaml_source import value_at
from dpspec.registry.loader import load_catalog


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


PLUGINS = Path(__file__).parents[2] / "plugins"
SMALL = {
    "group": ["mechanism.steps=4", "audit.canary.count=16"],
    "rero": ["mechanism.steps=4", "audit.runs=2"],
    "modelmix": ["mechanism.steps=4", "audit.canary.count=16"],
    "per-instance": ["mechanism.steps=4", "mechanism.orders=[2.0, 32.0]", "audit.runs=1"],
    "preprocessing": ["audit.repeats=100"],
}
REALS = (5e-324, 1e-300, 1e-100, 1e-30, 1e-25, 1e-12, 1e-6, 1.0 - 2.0**-53, 1.0, 1e6, 1e12, 1e30, 1e100, 1e300)
INTEGERS = (0, 1, 2, 1000, 10**6, 10**9, 10**12, 2**63)


def small(kind: str, catalog: Catalog) -> Spec:
    loaded = load_specs([PLUGINS / f"dpspec_{kind.replace('-', '_')}" / "example.yaml"], catalog, SMALL[kind])
    (spec,) = loaded.specs
    return spec


def extremes(spec: Spec, catalog: Catalog) -> Iterator[tuple[SpecPath, float]]:
    """Every number of the spec with each extreme value. Sizes of synthetic data and steps only cost time."""
    for path, key in _keys(spec, catalog):
        if key is not None:
            values = {int(key.low), *INTEGERS} if key.integer else {key.low, *REALS}
            slow = path[-1] in ("steps", "records", "features", "classes")
            yield from ((path, value) for value in sorted(values) if not (slow and value > 1000))
    yield from ((("audit", "confidence"), value) for value in (0.5, 1.0 - 1e-12, 1.0 - 2.0**-53))


def with_extreme(spec: Spec, path: SpecPath, value: float) -> dict[str, Any]:
    document = spec.to_json()
    block = value_at(document, path[:-1])
    block[path[-1]] = value
    return document


def audited(document: dict[str, Any], catalog: Catalog, directory: str, store: Path, *, train: bool) -> bool:
    """Whether the spec is valid. A valid spec must run; only its rows may still be refused."""
    try:
        spec = from_document(document, catalog, directory)
        prepared = prepare(spec, catalog)
        errors = [d for d in prepared.diagnostics if d.severity == "error"]
    except SpecError as error:
        errors = [d for d in error.diagnostics if d.severity == "error"]
    if errors:
        assert all(d.path and d.message for d in errors)
        return False
    prepared.plan()
    try:
        (audit,) = runner.run([spec], catalog, store=Store(str(store)), train=train).audits
    except SpecError as error:
        assert {d.code for d in error.diagnostics} == {"data-unreadable"}  # noqa: PT017 - rows are read late
        return False
    assert audit.conformance.expected, audit.conformance.reason
    return True


#: Number of draws by mechanism, by the time of its bounds; each has a few hundred cases.
DRAWS = {"group": 30, "modelmix": 30, "preprocessing": 30, "per-instance": 8, "rero": 4}

#: Ranges of valid numbers with which the accountant takes seconds.
SLOW = {"noise_multiplier": (1e-7, 0.1), "rate": (1e-29, 1e-3), "delta": (0.0, 1e-50)}


@pytest.mark.parametrize("kind", SMALL)
def test_a_valid_spec_with_an_extreme_number_is_bounded(kind: str, catalog: Catalog, tmp_path: Path) -> None:
    spec, valid = small(kind, catalog), 0
    cases = []
    for path, value in extremes(spec, catalog):
        low, high = SLOW.get(str(path[-1]), (1.0, 0.0))
        cases += [] if low < value < high else [(path, value)]
    chosen = random.Random(0).sample(cases, DRAWS[kind])
    for path, value in chosen:
        try:
            valid += audited(with_extreme(spec, path, value), catalog, spec.directory, tmp_path / "store", train=False)
        except Exception as error:
            raise AssertionError(f"{kind}: {path} = {value!r}: {type(error).__name__}: {error}") from error
    assert 0 < valid < len(chosen)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        *((kind, ("mechanism", "clip_norm"), 1e100) for kind in ("group", "rero", "modelmix", "per-instance")),
        *((kind, ("mechanism", "clip_norm"), 1e300) for kind in ("group", "rero", "modelmix", "per-instance")),
        *((kind, ("mechanism", "sampling", "rate"), 5e-324) for kind in ("group", "rero", "modelmix", "per-instance")),
        *((kind, ("mechanism", "noise_multiplier"), 1e-300) for kind in ("group", "rero", "modelmix", "per-instance")),
        *((kind, ("audit", "confidence"), 1.0 - 2.0**-53) for kind in SMALL),
        ("group", ("mechanism", "sampling", "rate"), 1e-20),  # no sampler draws so rarely
        ("group", ("training", "learning_rate"), 5e-324),
    ],
)
def test_a_number_without_meaning_is_refused(kind, path, value, catalog, tmp_path):
    spec = small(kind, catalog)
    assert not audited(with_extreme(spec, path, value), catalog, spec.directory, tmp_path, train=False)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("group", ("mechanism", "clip_norm"), 1e-30),
        ("group", ("mechanism", "clip_norm"), 1e30),
        ("rero", ("mechanism", "clip_norm"), 1e-12),  # rounding hides the noise, which is no deviation
    ],
)
def test_a_valid_spec_with_an_extreme_number_is_trained(kind, path, value, catalog, tmp_path):
    spec = small(kind, catalog)
    assert audited(with_extreme(spec, path, value), catalog, spec.directory, tmp_path, train=True)
