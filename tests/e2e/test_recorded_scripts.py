"""Scripts as teams have them, recorded and checked; and each broken as people break theirs."""

from importlib import import_module

import pytest
import torch
from support.checked_runs import Question, check_run, run_page

#: Script, fault, the assumption of a rejected check, words of its test.
FAULTS = [
    ("opacus_tabular", "told-another-rate", "accounting", "sampling rate of the accountant"),
    ("opacus_tabular", "wrong-optimizer", "noise-scale", "parameter updates without noise"),
    pytest.param("opacus_tabular", "shuffled", "sampling", "batches are shuffled", marks=pytest.mark.ci),
    pytest.param("opacus_tabular", "last-virtual-step-dropped", "clipping", "drawn records", marks=pytest.mark.ci),
    ("plain_microbatches", "told-another-rate", "sampling", "binomial"),
    ("plain_microbatches", "wrong-optimizer", "update", "outside the DP optimizer"),
    ("plain_microbatches", "shuffled", "sampling", "inclusions per record"),
    ("plain_microbatches", "noise-forgotten", "noise-scale", "chi-square"),
    ("plain_microbatches", "clipping-after-averaging", "clipping", "drawn records without a clipped norm"),
]


def script(name):
    return import_module(f"e2e.scripts.{name}").main


@pytest.mark.parametrize("name", ["opacus_tabular", "plain_microbatches"])
def test_a_sound_script_is_left_as_it_is_and_proved_at_what_it_costs(name, tmp_path):
    main = script(name)
    plain, _ = main()
    watched, engine = main(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=4.0, group_sizes=(1, 8)))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    if engine is not None:
        assert found.told.epsilon == pytest.approx(engine.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize(("name", "fault", "assumption", "words"), FAULTS, ids=lambda value: value)
def test_every_fault_is_found_by_what_should_find_it(name, fault, assumption, words, tmp_path):
    script(name)(tmp_path / "run", fault)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e9))
    assert (found.verdict, found.conformance.status, found.fine) == ("open", "deviates", False)
    assert "nothing is proved about it" in " ".join(run_page(found, 80).split())
    family = len(found.checks)
    bad = [check for check in found.checks if check.assumption == assumption and check.p_value * family <= 1e-6]
    assert any(words in f"{check.test} {check.note}" for check in bad), [f"{c.test} {c.note}" for c in bad]
