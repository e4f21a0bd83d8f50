"""The shipped training backends and their declared constants."""

from pathlib import Path

import pytest
import torch

import dpspec
from dpspec.contract import Assumption, FrozenMap, expected_batch_size
from dpspec.engine.preparing.prepare import prepare
from dpspec.training.providers import Rates, rates_of

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
def test_the_native_loop_says_on_what_its_divisor_rests(tmp_path, sampling, training, unit):
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


def series(total=10, **schedule):
    rates = rates_of({"learning_rate": 2.0, "schedule": schedule or None}, total)
    return [rates(step) for step in range(1, total + 1)]


def test_without_a_schedule_it_stays():
    assert series() == [2.0] * 10
    assert series(kind="constant", warmup=4) == [0.5, 1.0, 1.5] + [2.0] * 7


def test_linear_and_cosine_fall_towards_their_end():
    assert series(5, kind="linear", warmup=1, final=0.5) == pytest.approx([2.0, 2.0, 1.75, 1.5, 1.25])
    assert series(4, kind="cosine", final=1.0) == [2.0] * 4


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_as_torch_does(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedulers = torch.optim.lr_scheduler
    theirs = {
        "linear": lambda: schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=0.25, total_iters=10),
        "cosine": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.5),
    }[name]()
    for rate in series(10, kind=name, final=0.25):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_no_rate_is_zero_and_none_is_missing(kind):
    for total, warmup in ((1, 0), (1, 5), (3, 3), (4, 3)):
        rates = Rates(peak=1.0, total=total, kind=kind, warmup=warmup)
        assert all(0.0 < rates(step) <= 1.0 for step in range(1, total + 5))
        assert rates(total + 4) == rates(total)
