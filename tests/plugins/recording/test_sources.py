"""Every rule and fault of dpspec has a source: an example of its mistake."""

import pkgutil
import re
from importlib import import_module

import pytest

import dpspec_recording.judge
import dpspec_recording.observers
from dpspec.contract.rules import MADE_TWICE
from dpspec_recording.observers.own_rules import RULES
from dpspec_recording.outcomes.faults import Fault

FAULTS = {
    f"{module.name}.{name}": value
    for package in (dpspec_recording.observers, dpspec_recording.judge)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    for name, value in vars(import_module(module.name)).items()
    if isinstance(value, Fault)
}
SOURCES = {**{rule.name: rule.source for rule in RULES}, **{name: fault.source for name, fault in FAULTS.items()}}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_an_incident_a_package_or_two_people(name: str) -> None:
    source = SOURCES[name]
    assert source == MADE_TWICE or re.fullmatch(r"https://\S+|package \S+ \d\S*", source)


def test_all_rules_and_faults_are_found() -> None:
    assert len(RULES) >= 15
    assert len(FAULTS) >= 40
