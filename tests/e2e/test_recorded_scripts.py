"""Scripts as teams have them, recorded and checked; and each broken as people break theirs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from dpspec.cli.run_check_page import run_page
from dpspec.engine.recorded.checked_run import Question, check_run

SCRIPTS = Path(__file__).parent / "scripts"

#: script, fault, the assumption whose check has to be rejected, words of a test that rejects it.
FAULTS = [
    ("opacus_tabular", "told-another-rate", "accounting", "sampling rate that the accountant was told"),
    ("opacus_tabular", "wrong-optimizer", "noise-scale", "updates of the parameters without noise"),
    ("opacus_tabular", "shuffled", "sampling", "batches are shuffled"),
    ("opacus_tabular", "noise-forgotten", "noise-scale", "updates of the parameters without noise"),
    ("opacus_tabular", "last-virtual-step-dropped", "clipping", "drawn records"),
    ("opacus_images", "told-another-rate", "accounting", "sampling rate that the accountant was told"),
    ("opacus_images", "wrong-optimizer", "update", "without the recorded optimizer"),
    ("opacus_images", "shuffled", "sampling", "batches are shuffled"),
    ("opacus_images", "noise-forgotten", "steps", "noise vectors"),
    ("plain_microbatches", "told-another-rate", "sampling", "binomial"),
    ("plain_microbatches", "wrong-optimizer", "update", "without the recorded optimizer"),
    ("plain_microbatches", "shuffled", "sampling", "inclusions per record"),
    ("plain_microbatches", "noise-forgotten", "noise-scale", "chi-square"),
    ("plain_microbatches", "last-virtual-step-dropped", "clipping", "more or fewer clipped norms than drawn"),
    ("plain_microbatches", "clipping-after-averaging", "clipping", "more or fewer clipped norms than drawn"),
    ("opacus_lora", "told-another-rate", "accounting", "sampling rate that the accountant was told"),
    ("opacus_lora", "shuffled", "sampling", "batches are shuffled"),
    ("opacus_lora", "noise-forgotten", "noise-scale", "updates of the parameters without noise"),
    ("opacus_lora", "adapter-merged", "update", "other parts of the model that changed"),
    ("opacus_lora", "head-fitted", "update", "without the recorded optimizer"),
    ("lightning_opacus", "told-another-rate", "accounting", "sampling rate that the accountant was told"),
    ("lightning_opacus", "shuffled", "sampling", "batches are shuffled"),
    ("lightning_opacus", "noise-forgotten", "steps", "noise vectors"),
    ("lightning_opacus", "head-fitted", "update", "without the recorded optimizer"),
]

#: What a script needs that the tests do not install.
EXTRAS = {"lightning_opacus": ["lightning"], "peft": ["peft", "transformers"]}


def script(name):
    for extra in EXTRAS.get(name, []):
        pytest.importorskip(extra)
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["opacus_tabular", "opacus_images", "plain_microbatches", "opacus_lora", "lightning_opacus"]
)
def test_a_sound_script_is_left_as_it_is_and_proved_at_what_it_costs(name, tmp_path):
    main = script(name).main
    plain, _ = main()
    watched, engine = main(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=4.0, group_sizes=(1, 8)))
    assert (found.verdict, found.conformance.status) == ("proved", "conforms-within")
    if engine is not None:
        assert found.told.sentence.startswith("It was told of these phases")
        assert found.told.epsilon == pytest.approx(engine.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize(("name", "fault", "assumption", "words"), FAULTS, ids=lambda value: value)
def test_every_fault_is_found_by_what_should_find_it(name, fault, assumption, words, tmp_path):
    script(name).main(tmp_path / "run", fault)
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=1e9))
    assert (found.verdict, found.conformance.status, found.fine) == ("open", "deviates", False)
    assert "these are the costs of what its options say" in run_page(found, 80)
    family = len(found.checks)
    bad = [check for check in found.checks if check.assumption == assumption and check.p_value * family <= 1e-6]
    assert any(words in f"{check.test} {check.note}" for check in bad), [f"{c.test} {c.note}" for c in bad]


@pytest.mark.parametrize("fault", ["", "told-another-rate", "shuffled", "noise-forgotten", "adapter-merged"])
def test_adapters_of_peft_are_recorded_as_any_other_layers(fault, tmp_path):
    for extra in EXTRAS["peft"]:
        pytest.importorskip(extra)
    script("opacus_lora").main(tmp_path / "run", fault, kind="peft")
    found = check_run(tmp_path / "run", Question(delta=1e-5, epsilon=4.0))
    assert found.fine is (fault == "")
    assert found.conformance.status == ("deviates" if fault else "conforms-within")
    assert any("lora_A" in name for name, _ in found.run.header.layers)
