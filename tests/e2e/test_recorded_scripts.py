"""Scripts as teams have them, recorded and checked; and each broken as people break theirs."""

from __future__ import annotations

import pytest
import torch
from support.checked_runs import Question, check_run, run_page
from support.team_scripts import EXTRAS, FAULTS, RECORDED, load


def script(name):
    for extra in EXTRAS.get(name, []):
        pytest.importorskip(extra)
    return load(name)


@pytest.mark.parametrize("name", RECORDED)
def test_a_sound_script_is_left_as_it_is_and_proved_at_what_it_costs(name, tmp_path):
    main = script(name).main
    plain, _ = main()
    watched, engine = main(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=4.0, group_sizes=(1, 8)))
    assert (found.verdict, found.conformance.status) == ("proved", "no-deviation-found")
    if engine is not None:
        assert found.told.difference.startswith("The accountant covers the same phases")
        assert found.told.epsilon == pytest.approx(engine.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize(("name", "fault", "assumption", "words"), FAULTS, ids=lambda value: value)
def test_every_fault_is_found_by_what_should_find_it(name, fault, assumption, words, tmp_path):
    script(name).main(tmp_path / "run", fault)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e9))
    assert (found.verdict, found.conformance.status, found.fine) == ("open", "deviates", False)
    assert "these bounds hold for the recorded schedule" in " ".join(run_page(found, 80).split())
    family = len(found.checks)
    bad = [check for check in found.checks if check.assumption == assumption and check.p_value * family <= 1e-6]
    assert any(words in f"{check.test} {check.note}" for check in bad), [f"{c.test} {c.note}" for c in bad]


@pytest.mark.parametrize("fault", ["", "noise-forgotten", "adapter-merged"])
def test_adapters_of_peft_are_recorded_as_any_other_layers(fault, tmp_path):
    for extra in EXTRAS["peft"]:
        pytest.importorskip(extra)
    script("opacus_lora").main(tmp_path / "run", fault, kind="peft")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=4.0))
    assert found.fine is (fault == "")
    assert found.conformance.status == ("deviates" if fault else "no-deviation-found")
    assert any("lora_A" in name for name, _ in found.run.header.layers)
