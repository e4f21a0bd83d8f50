"""Phases: typed numbers for what is read often, and the mapping that plugins of hook API 1 know."""

import pickle
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpspec.contract import FrozenMap, Phase, Sampling
from dpspec.contract.fragments import SAMPLING
from dpspec.contract.sampling import SCHEMES

OPTIONS: dict[str, Any] = {
    "kind": "group",
    "steps": 100,
    "noise_multiplier": 2,
    "clip_norm": 0.5,
    "sampling": {"scheme": "poisson", "rate": 0.01},
    "baselines": ["linear"],
}


def sampled(**sampling: Any) -> Phase:
    return Phase({**OPTIONS, "sampling": sampling})


def test_attributes_are_typed() -> None:
    (phase,) = Phase.all_of(OPTIONS)
    assert (phase.steps, phase.noise_multiplier, phase.clip_norm, phase.deviation) == (100, 2.0, 0.5, 1.0)
    assert isinstance(phase.noise_multiplier, float)
    assert phase.sampling == Sampling(scheme="poisson", rate=0.01)
    assert (phase.noise, phase.clipping_scheme, phase.noiseless) == ("gaussian", "flat", False)
    changed = phase.replace(noise="laplace", noise_multiplier=0, clipping={"scheme": "per-layer"})
    assert (changed.noise, changed.clipping_scheme, changed.noiseless) == ("laplace", "per-layer", True)
    assert phase.noise == "gaussian"


def test_phases_of_their_own_come_first() -> None:
    rest = {key: value for key, value in OPTIONS.items() if key != "steps"}
    first, second = Phase.all_of({**rest, "phases": [{"steps": 3}, {"steps": 4, "noise_multiplier": 5.0}]})
    assert [(p.steps, p.noise_multiplier) for p in (first, second)] == [(3, 2.0), (4, 5.0)]
    assert "phases" not in first
    assert "kind" not in second


@pytest.mark.parametrize(
    ("sampling", "rate"),
    [
        ({"scheme": "poisson", "rate": 0.25}, 0.25),
        ({"scheme": "fixed", "batch_size": 20}, 0.2),
        ({"scheme": "shuffled", "batch_size": 500}, 1.0),
        ({"scheme": "full"}, 1.0),
        ({"scheme": "random-allocation", "epoch_steps": 8, "batches_per_epoch": 2}, 0.25),
    ],
)
def test_the_rate_of_every_scheme(sampling: dict[str, Any], rate: float) -> None:
    phase = sampled(**sampling)
    assert phase.rate(100) == rate
    assert phase.expected_batch(100) == 100 * rate
    if "batch_size" in sampling:
        with pytest.raises(ValueError, match="give records"):
            phase.rate()
    else:
        assert phase.rate() == rate


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_has_the_options_that_it_takes_and_no_others(scheme: str) -> None:
    validator = Draft202012Validator(SAMPLING)
    options = {"rate": 0.25, "batch_size": 20}
    takes = set(SCHEMES[scheme].takes)
    for given in ({}, {"rate": 0.25}, {"batch_size": 20}, options):
        assert validator.is_valid({"scheme": scheme, **given}) == (set(given) == takes)
    assert not validator.is_valid({"scheme": "none of these"})


def test_what_is_read_of_a_map_is_made_once_and_is_no_part_of_it() -> None:
    given, equal = FrozenMap({"steps": 3}), FrozenMap({"steps": 3})

    def read(block: FrozenMap) -> list[int]:
        return [int(block["steps"])]

    assert given.typed(read) is given.typed(read)
    assert (given, hash(given), pickle.dumps(given)) == (equal, hash(equal), pickle.dumps(equal))
