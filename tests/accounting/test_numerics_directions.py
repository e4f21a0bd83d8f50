"""Pairs know a direction by both of its names: no method takes ``remove`` for the other one."""

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

from dpspec.accounting import Discrete, DoubleMixture, Laplace, Mixture, RandomAllocation, discrete_gaussian

NAMES = {"remove": "present-first", "add": "absent-first"}

PAIRS: dict[str, Any] = {
    "mixture": Mixture.poisson(1, 0.1, 1.0),
    "laplace": Laplace(2.0, rate=0.2),
    "discrete": Discrete([0.2, 0.8], [0.7, 0.3]),
    "double": DoubleMixture.poisson(1, 1, 0.1, 1.0),
    "allocation": RandomAllocation(10, 1.0),
    "discrete-gaussian": discrete_gaussian(1.0)[0],
}

#: The other arguments of a method, by name.
OTHERS = {"epsilon": 0.3, "epsilons": [0.1, 0.3], "tilts": np.array([0.5, 1.0]), "log_edge": -20.0, "log_far": -30.0}


@pytest.mark.family
@pytest.mark.parametrize("name", PAIRS)
def test_the_names_of_specs_give_the_same_answers(name: str) -> None:
    pair, tried = PAIRS[name], 0
    for method_name, function in inspect.getmembers(type(pair), inspect.isfunction):
        parameters = list(inspect.signature(function).parameters)[1:]
        method = partial(function, pair)
        if method_name.startswith("_") or "direction" not in parameters or set(parameters) - {"direction", *OTHERS}:
            continue
        others = {key: OTHERS[key] for key in parameters if key != "direction"}
        for of_specs, of_pairs in NAMES.items():
            answers = [method(**others, direction=direction) for direction in (of_specs, of_pairs)]
            assert repr(answers[0]) == repr(answers[1]), (method_name, of_specs)
            tried += 1
    assert tried >= 4
