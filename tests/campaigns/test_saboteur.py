"""A sample of the saboteur's cells; all cells by hand: ``python tests/campaigns/saboteur.py``."""

import dataclasses
import json
import random

import pytest
from campaigns import saboteur

from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.load import from_document
from dpspec.results.codec import dump, load

Cell = saboteur.Cell

#: A setting with a valid spec.
FINAL = {"access": "final-model", "optimizer": "adam", "space": "gradient", "method": "group/one-run"}

#: The sample sizes of every test run and of --run-slow, and the seed.
FEW, COUNT, SEED = 12, 96, 20


@pytest.fixture(scope="module")
def catalogs():
    return {}


def sample():
    correct = [
        Cell("none", "all", **{**FINAL, "optimizer": o, "space": s})
        for o in ("sgd", "adam")
        for s in ("gradient", "input")
    ]
    every = [cell for cell in saboteur.cells() if cell.fault != "none"]
    drawn = random.Random(SEED).sample(every, COUNT)
    ignored = Cell("canaries-ignored", "all", **FINAL)
    return [*correct, ignored, *drawn[:FEW], *(pytest.param(cell, marks=pytest.mark.slow) for cell in drawn[FEW:])]


@pytest.mark.ci
@pytest.mark.parametrize("cell", sample(), ids=lambda c: "-".join(map(str, dataclasses.astuple(c))))
def test_declared_sources_detect_their_faults(catalogs, cell):
    found = saboteur.run(cell, catalogs)
    assert saboteur.hole(cell, found) == ""


@pytest.mark.family
@pytest.mark.parametrize("fault", ["half-steps-hundredth-noise", "steps-triple"])
@pytest.mark.parametrize("declared", ["all", "states", "logs"])
def test_steps_are_counted_with_adam_behind_the_final_model(catalogs, fault, declared):
    found = saboteur.run(Cell(fault, declared, **FINAL), catalogs)
    assert (found.status, found.expected) == ("deviates", False)


def test_promised_checks_of_noise_do_not_vanish_with_the_number_of_states(catalogs):
    found = saboteur.run(Cell("noise-log-half", "all", **FINAL), catalogs)
    assert {name.partition(" ")[0] for name in found.missing} == {"noise-scale", "independent-noise"}
    assert not found.expected


@pytest.mark.parametrize("space", ["gradient", "input"])
def test_declared_logs_without_reports_are_missing(catalogs, space):
    cell = Cell("nothing-shown", "logs", **{**FINAL, "space": space})
    found = saboteur.run(cell, catalogs)
    assert (found.status, found.expected) == ("checks-missing", False)
    assert saboteur.run(cell, catalogs, "checks-missing").expected


@pytest.mark.ci
def test_a_run_without_observations_is_as_expected_only_if_the_spec_expects_it(catalogs):
    cell = Cell("nothing-shown", "nothing", **FINAL)
    found = saboteur.run(cell, catalogs)
    assert (found.status, found.expected, found.missing) == ("not-run", False, ())
    assert saboteur.run(cell, catalogs, "not-run").expected
    assert not saboteur.run(Cell("none", "all", **FINAL), catalogs, "not-run").expected


@pytest.fixture(scope="module")
def run_whole(tmp_path_factory):
    cell = Cell("noise-log-none", "logs", **FINAL)
    catalog = saboteur.catalog(saboteur.DECLARED[cell.declared])
    store = Store(tmp_path_factory.mktemp("store"))
    return run([from_document(cell.document(), catalog)], catalog, store=store, device="cpu"), catalog, store


def test_missing_checks_set_the_exit_code_and_the_result_verifies(run_whole):
    result, catalog, store = run_whole
    (audit,) = result.audits
    assert result.exit_code == 1
    assert audit.conformance.status == "checks-missing"
    assert len(audit.promised) > len(audit.checks)
    assert verify(load(dump(result)), catalog, directory=".", store=store) == ()


def test_verify_detects_deleted_promises(run_whole):
    result, catalog, _ = run_whole
    edited = json.loads(dump(result))
    edited["audits"][0]["conformance"].update(status="no-deviation-found", expected=True)
    for promised in (edited["audits"][0]["promised"], edited["audits"][0]["promised"][:3], []):
        edited["audits"][0]["promised"] = promised
        found = verify(load(json.dumps(edited)), catalog, directory=".")
        assert {m.what for m in found if m.differs} >= {"conformance.status", "conformance.expected"}
