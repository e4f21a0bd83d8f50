"""Which numbers of a spec may be varied, between which limits, and how a spec with another value is written."""

import math

import pytest
from support.specs import spec_of

from dpspec.accounting import LEAST_TRIED
from dpspec.errors import UsageError
from dpspec.language.load import from_document
from dpspec.language.numeric_values import LARGEST, numeric_key, with_value
from dpspec.registry.loader import load_catalog

SPEC = """\
dpspec: 1
name: many numbers
mechanism:
  kind: group
  noise_multiplier: 1.0
  clip_norm: 1.0
  sampling: {scheme: SAMPLING}
  PHASES
data: {kind: declared, records: 100}
model: {kind: mlp, hidden: [16, 8]}
threat_model: {group_size: [1, 4, 2]}
claims:
  - {id: one, kind: approx-dp, epsilon: 3.0, delta: 1e-6}
  - {id: '0', kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 4}
"""


@pytest.fixture
def load(tmp_path):
    def read(sampling: str = "poisson, rate: 0.01", phases: str = "steps: 10"):
        return spec_of(tmp_path, SPEC.replace("SAMPLING", sampling).replace("PHASES", phases))

    return read


@pytest.mark.parametrize(
    ("place", "integer", "low", "high", "value"),
    [
        ("mechanism.noise_multiplier", False, 0.0, 1e6, 1.0),
        ("mechanism.sampling.rate", False, LEAST_TRIED, 1.0, 0.01),
        ("mechanism.steps", True, 1, 1e9, 10),
        ("threat_model.group_size", True, 1, 1e6, 4),
        ("threat_model.group_size.2", True, 1, 1e6, 2),
        ("claims.one.delta", False, LEAST_TRIED, math.nextafter(1.0, 0.0), 1e-6),
        ("claims.one.group_size", True, 1, 1e6, 1),
        ("claims.one.record", True, 0, LARGEST, None),
        ("claims.1.epsilon", False, 0.0, LARGEST, 9.0),
        ("claims.0.epsilon", False, 0.0, LARGEST, 9.0),  # an id wins over a position
    ],
)
def test_limits_come_from_the_schemas(load, place, integer, low, high, value):
    key = numeric_key(load(), load_catalog(), place)
    assert (key.integer, key.low, key.high, key.value) == (integer, low, high, value)
    assert key.place == place.replace("claims.1.", "claims.0.")  # the second claim has the id 0


def test_phases(load):
    spec = load(phases="phases: [{steps: 5}, {steps: 7, noise_multiplier: 2}]")
    key = numeric_key(spec, load_catalog(), "mechanism.phases.1.noise_multiplier")
    assert (key.value, key.high, key.integer) == (2.0, 1e6, False)
    document = with_value(spec, key, 3)
    assert document["mechanism"]["phases"][1]["noise_multiplier"] == 3.0
    assert numeric_key(spec, load_catalog(), "mechanism.phases.0.steps").value == 5
    with pytest.raises(UsageError, match=r"no key 'mechanism\.steps'"):
        numeric_key(spec, load_catalog(), "mechanism.steps")


def test_keys_that_conditions_forbid_are_unknown(load):
    spec = load(sampling="fixed, batch_size: 10")
    assert numeric_key(spec, load_catalog(), "mechanism.sampling.batch_size").integer
    with pytest.raises(UsageError, match=r"no key 'mechanism\.sampling\.rate'"):
        numeric_key(spec, load_catalog(), "mechanism.sampling.rate")


def test_messages_list_the_numbers_that_are_there(load):
    with pytest.raises(UsageError) as info:
        numeric_key(load(), load_catalog(), "mechanism.nose")
    assert "did you mean 'mechanism.noise_multiplier'?" in str(info.value)
    listed = str(info.value).partition("numbers of this spec: ")[2].rstrip(")").split(", ")
    assert {"mechanism.sampling.rate", "claims.0.epsilon", "claims.one.epsilon"} <= set(listed)
    assert "claims.one.record" not in listed  # it is not given
    assert "threat_model.group_size.0" not in listed


@pytest.mark.parametrize("place", ["mechanism.sampling", "mechanism.sampling.scheme", "claims.one.expect"])
def test_what_is_no_number(load, place):
    with pytest.raises(UsageError, match="is not a number; "):
        numeric_key(load(), load_catalog(), place)


def test_another_value_changes_nothing_else(load):
    spec = load()
    key = numeric_key(spec, load_catalog(), "mechanism.sampling.rate")
    assert with_value(spec, key, 0.01) == spec.to_json()
    other = from_document(with_value(spec, key, 0.5), load_catalog(), spec.directory)
    assert other.mechanism["sampling"]["rate"] == 0.5
    assert other.claims == spec.claims
    assert spec.mechanism["sampling"]["rate"] == 0.01


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("mechanism.steps", 20.0, "20"),
        ("mechanism.noise_multiplier", 0.99865, "0.99865"),
        ("claims.one.delta", 1e-6, "1e-6"),
    ],
)
def test_spelling(load, place, value, text):
    assert numeric_key(load(), load_catalog(), place).spelling(value) == text
    assert float(text) == value
