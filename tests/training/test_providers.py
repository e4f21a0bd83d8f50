"""The shipped training backends and their declared constants."""

from pathlib import Path

import pytest

import dpspec
from dpspec.contract import Assumption, FrozenMap, expected_batch_size
from dpspec.engine.preparing.prepare import prepare

SPEC = """
dpspec: 1
name: divisor
mechanism: {{kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {sampling}, steps: 3}}
data: {{kind: synthetic, records: 40, features: 4, classes: 2}}
model: {{kind: linear}}
training: {{backend: native{training}}}
threat_model: {{group_size: [1]}}
claims: [{{id: one, kind: approx-dp, epsilon: 5.0, delta: 1e-5{claim}}}]
"""
POISSON = "{scheme: poisson, rate: 0.1}"
DRAWN = "{scheme: poisson, rate: 0.1, unit: user, records_per_user: 2}"


def constants(tmp_path: Path, sampling: str = POISSON, training: str = "") -> Assumption:
    text = SPEC.format(sampling=sampling, training=training, claim="")
    if sampling == DRAWN:
        text = text.replace("group_size: [1]", "unit: user").replace("{kind: synthetic,", "{kind: declared,")
    if "shuffled" in sampling:
        text += "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 8}}\n"
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    catalog = dpspec.load_catalog()
    (spec,) = dpspec.load_specs([tmp_path / "spec.yaml"], catalog).specs
    return prepare(spec, catalog).constants


@pytest.mark.parametrize(
    ("sampling", "training", "unit"),
    [
        (POISSON, "", "records"),
        ("{scheme: full}", "", "records"),
        (POISSON, ", reduction: sum", None),
        (POISSON, ", expected_batch_size: 4", None),
        ("{scheme: fixed, batch_size: 8}", "", None),
        ("{scheme: shuffled, batch_size: 16}", "", "records"),
        (DRAWN, "", "users"),
    ],
)
def test_the_native_loop_says_on_what_its_divisor_rests(
    tmp_path: Path, sampling: str, training: str, unit: str | None
) -> None:
    said = constants(tmp_path, sampling, training)
    assert said.status == ("declared" if unit else "by-construction")
    assert unit is None or f"the number of {unit}, which is assumed to be public" in said.text


@pytest.mark.parametrize(
    ("training", "sampling", "expected"),
    [
        ({}, {"scheme": "poisson", "rate": 0.1}, 5.0),
        ({}, {"scheme": "poisson", "rate": 0.001}, 1.0),
        ({}, {"scheme": "full"}, 50.0),
        ({}, {"scheme": "fixed", "batch_size": 8}, 8.0),
        ({}, {"scheme": "shuffled", "batch_size": 80}, 50.0),
        ({"expected_batch_size": 7}, {"scheme": "poisson", "rate": 0.1}, 7.0),
    ],
)
def test_the_divisor(training: dict[str, float], sampling: dict[str, object], expected: float) -> None:
    phase = FrozenMap({"sampling": FrozenMap(sampling)})
    assert expected_batch_size(training, [phase], 50) == pytest.approx(expected, rel=1e-15)
