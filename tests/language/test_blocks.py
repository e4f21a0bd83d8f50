from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from dpspec.contract import thaw
from dpspec.contract.catalog import Catalog
from dpspec.language.blocks import bundle, reference
from dpspec.language.load import Loaded
from dpspec.language.yaml_source import plain, read_yaml

Load = Callable[..., Loaded]
BOTH = pytest.mark.parametrize("validator", [Draft202012Validator, Draft7Validator])


def data(text: str) -> Any:
    root = read_yaml(text, "f.yaml").root
    assert root is not None
    return plain(root)


def schemas(schema: Any, refining: bool = False) -> Iterator[tuple[dict[str, Any], bool]]:
    if not isinstance(schema, dict):
        return
    yield schema, refining
    for key in ("then", "else", "items", "additionalProperties"):
        yield from schemas(schema.get(key), refining)
    for key in ("if", "not"):
        yield from schemas(schema.get(key), True)
    for part in [*schema.get("allOf", ()), *schema.get("anyOf", ())]:
        yield from schemas(part, refining)
    for inner in schema.get("properties", {}).values():
        yield from schemas(inner, refining)


@pytest.mark.ci
@BOTH
def test_it_is_a_schema(validator: Any, catalog: Catalog) -> None:
    validator.check_schema(bundle(catalog))
    validator.check_schema(reference(catalog))


def test_every_new_property_is_described(catalog: Catalog) -> None:
    described: set[str] = set()
    bare: set[str] = set()
    for schema, refining in schemas(reference(catalog)):
        for name, inner in schema.get("properties", {}).items():
            if not isinstance(inner, dict) or refining:
                continue
            (described if inner.get("description") else bare).add(name)
    # What stands bare only refines, inside a condition, what is described where it is introduced.
    assert bare <= described
    assert {"noise_multiplier", "canary", "group_size", "epsilon", "gap", "phases"} <= described


@BOTH
def test_valid_specs(validator: Any, catalog: Catalog, load: Load, valid: str) -> None:
    schema = validator(bundle(catalog))
    phases = valid.replace("steps: 100", "phases: [{steps: 1}, {steps: 2, clip_norm: 3}]")
    without = phases.replace("  noise_multiplier: 1\n", "").replace("steps: 1}", "steps: 1, noise_multiplier: 1}")
    without = without.replace("clip_norm: 3", "noise_multiplier: 3")
    cells = valid.replace("  noise_multiplier: 1\n", "") + "matrix: {mechanism.noise_multiplier: [1, 2]}\n"
    for text in (valid, phases, without, valid.replace("backend: native, ", ""), cells):
        loaded = load(text)
        assert loaded.ok
        for document in (data(text), loaded.specs[0].to_json()):
            assert list(schema.iter_errors(document)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("noise_multiplier", "nosie"),
        ("kind: noisy", "kind: other"),
        ("  steps: 100\n", ""),
        ("steps: 100", "steps: 100\n  phases: [{steps: 1}]"),
        ("access: all-iterates", "adjacency: add_remove"),
        ("kind: gdp", "kind: metric"),
        ("name: valid", "nmae: valid"),
    ],
)
def test_it_refuses_what_validation_refuses(catalog, load, valid, old, new):
    assert old in valid
    text = valid.replace(old, new)
    assert not load(text).ok
    assert not Draft202012Validator(bundle(catalog)).is_valid(data(text))


def test_children_need_not_be_whole(catalog: Catalog) -> None:
    schema = Draft202012Validator(bundle(catalog))
    child = "extends: base.yaml\nmechanism: {kind: noisy, steps: 3, sampling: {rate: null}}\naudit: null\n"
    assert list(schema.iter_errors(data(child))) == []
    assert not schema.is_valid(data("extends: base.yaml\nmechanism: {kind: noisy, stepps: 3}\n"))
    assert not schema.is_valid(data(child.replace("extends: base.yaml", "")))


Problems = Callable[..., list[tuple[str, str, str | None]]]

LINE = "training: {backend: native, learning_rate: 1}"


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("optimizer: {kind: adam, beta1: 0.8}", {"optimizer": {"kind": "adam", "beta1": 0.8, "weight_decay": 0}}),
        ("schedule: {kind: linear, final: 0.5}", {"schedule": {"kind": "linear", "final": 0.5, "warmup": 0}}),
    ],
)
def test_accepted(load: Load, valid: str, given: str, filled: dict[str, object]) -> None:
    (spec,) = load(valid.replace(LINE, f"training: {{{given}}}")).specs
    assert {key: thaw(spec.training[key]) for key in filled} == filled


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("optimizer: {kind: adam, momentum: 0.9}", "conflicting-key", "'momentum' is not allowed with kind adam"),
        ("optimizer: {kind: momentum, momentum: 1}", "out-of-range", "momentum must be below 1, got 1"),
        ("optimizer: {weight_decay: 0.1}", "missing-key", "missing key 'kind' in training.optimizer"),
        ("schedule: {kind: constant, warmup: -1}", "out-of-range", "warmup must be at least 0, got -1"),
    ],
)
def test_refused(problems: Problems, given: str, code: str, words: str) -> None:
    found = problems(LINE, f"training: {{{given}}}")
    assert any(found_code == code and words in message for found_code, message, _ in found), found
