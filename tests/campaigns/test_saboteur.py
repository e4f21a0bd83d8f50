"""The saboteur in small: what the plan promises is made, or its absence fails; in full by hand:
``python tests/campaigns/saboteur.py``."""

import dataclasses
import json
import random

import pytest
from campaigns import saboteur

from dpspec.engine.results.codec import dump, load
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.load import from_document

Cell = saboteur.Cell

#: Settings in which nothing is refused.
FINAL = {"access": "final-model", "optimizer": "adam", "space": "gradient", "method": "group/one-run"}

#: The sample of every test run, and that with --run-slow.
FEW, COUNT, SEED = 12, 96, 20


@pytest.fixture(scope="module")
def catalogs():
    return {}


def sample():
    honest = [
        Cell("none", "all", **{**FINAL, "optimizer": o, "space": s})
        for o in ("sgd", "adam")
        for s in ("gradient", "input")
    ]
    every = [cell for cell in saboteur.cells() if cell.lie != "none"]
    drawn = random.Random(SEED).sample(every, COUNT)
    ignored = Cell("canaries-ignored", "all", **FINAL)
    return [*honest, ignored, *drawn[:FEW], *(pytest.param(cell, marks=pytest.mark.slow) for cell in drawn[FEW:])]


@pytest.mark.parametrize("cell", sample(), ids=lambda c: "-".join(map(str, dataclasses.astuple(c))))
def test_no_lie_is_believed_that_something_declared_gives_away(catalogs, cell):
    told = saboteur.run(cell, catalogs)
    assert saboteur.hole(cell, told) == ""


@pytest.mark.parametrize("lie", ["half-steps-hundredth-noise", "steps-triple"])
@pytest.mark.parametrize("declared", ["all", "states", "logs"])
def test_steps_are_counted_with_adam_behind_the_final_model(catalogs, lie, declared):
    told = saboteur.run(Cell(lie, declared, **FINAL), catalogs)
    assert (told.status, told.expected) == ("deviates", False)


def test_promised_checks_of_noise_do_not_vanish_with_the_number_of_states(catalogs):
    told = saboteur.run(Cell("noise-log-half", "all", **FINAL), catalogs)
    assert {name.partition(" ")[0] for name in told.missing} == {"noise-scale", "independent-noise"}
    assert not told.expected


@pytest.mark.parametrize("space", ["gradient", "input"])
def test_logs_that_are_declared_and_not_delivered_are_missing(catalogs, space):
    cell = Cell("nothing-shown", "logs", **{**FINAL, "space": space})
    told = saboteur.run(cell, catalogs)
    assert (told.status, told.expected) == ("checks-missing", False)
    assert saboteur.run(cell, catalogs, "checks-missing").expected


def test_a_run_that_could_not_be_looked_at_is_as_expected_only_where_the_spec_says_so(catalogs):
    cell = Cell("nothing-shown", "nothing", **FINAL)
    told = saboteur.run(cell, catalogs)
    assert (told.status, told.expected, told.missing) == ("not-run", False, ())
    assert saboteur.run(cell, catalogs, "not-run").expected
    assert not saboteur.run(Cell("none", "all", **FINAL), catalogs, "not-run").expected


@pytest.fixture(scope="module")
def run_whole(tmp_path_factory):
    """The result of a whole run of a cell, bounds and verdicts among it, and how it was made."""
    cell = Cell("noise-log-none", "logs", **FINAL)
    catalog = saboteur.catalog(saboteur.DECLARED[cell.declared])
    store = Store(tmp_path_factory.mktemp("store"))
    return run([from_document(cell.document(), catalog)], catalog, store=store, device="cpu"), catalog, store


def test_the_exit_code_says_so_and_the_result_verifies(run_whole):
    result, catalog, store = run_whole
    (audit,) = result.audits
    assert result.exit_code == 1
    assert audit.conformance.status == "checks-missing"
    assert len(audit.promised) > len(audit.checks)
    assert verify(load(dump(result)), catalog, directory=".", store=store) == ()


def test_verify_objects_to_promises_that_were_edited_away(run_whole):
    result, catalog, _ = run_whole
    edited = json.loads(dump(result))
    edited["audits"][0]["conformance"].update(status="no-deviation-found", expected=True)
    for promised in (edited["audits"][0]["promised"], edited["audits"][0]["promised"][:3], []):
        edited["audits"][0]["promised"] = promised
        found = verify(load(json.dumps(edited)), catalog, directory=".")
        assert {m.what for m in found if m.differs} >= {"conformance.status", "conformance.expected"}


def test_a_result_of_the_version_before_says_what_its_plan_promises_now(run_whole):
    result, catalog, _ = run_whole
    old = json.loads(dump(result))
    del old["audits"][0]["promised"]
    found = verify(load(json.dumps(old)), catalog, directory=".")
    assert [(m.what, m.differs) for m in found] == [("promised", False)]
