"""False claims are refuted and faulty pipelines deviate; fixed ones do neither.

A few controls run in every test run, and all of them with ``--run-slow``.
"""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "specs" / "controls"
CONTROLS = sorted(FOLDER.glob("*.yaml"))
Run = Callable[..., subprocess.CompletedProcess[str]]

#: What conformance alone finds.
UNSEEN = {
    "noise-reused",
    "noise-seeded-alike",
    "layers-seeded-alike",
    "clip-per-layer",
    "layer-unclipped",
    "clip-accumulated-sum",
    "private-normalisation",
    "first-step-without-noise",
    "last-step-without-noise",
    "alternating-noise",
    "tenth-step-tenth-noise",
    "large-batch-once",
    "cap-forgotten",
    "counts-without-noise",
    "noise-not-raised",
    "shuffled",
    "same-steps",
    "last-batch-dropped",
}
#: What makes a record's contribution depend on the others: the assumption of every proof is false then.
DEPENDENT = {"clip-accumulated-sum", "private-normalisation"}
#: Deviations of single steps: the assumption, and the test's first words.
SINGLE = {
    "first-step-without-noise": ("noise-scale", "chi-square at each step, step 1"),
    "last-step-without-noise": ("noise-scale", "chi-square at each step, step 100"),
    "alternating-noise": ("noise-scale", "chi-square at each step"),
    "tenth-step-tenth-noise": ("noise-scale", "chi-square at each step"),
    "large-batch-once": ("sampling", "binomial at each step, step 50"),
}
QUICK = ["no-noise", "clip-after-averaging", "last-step-without-noise", "shuffled", "too-good", "private-normalisation"]
EVERY = [path.stem for path in CONTROLS]
some = pytest.mark.parametrize("names", [QUICK, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["quick", "every"])


def paths(names: Sequence[str]) -> list[Path]:
    return [FOLDER / f"{name}.yaml" for name in names]


def audits(tmp_path: Path) -> dict[str, dict[str, Any]]:
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    return {audit["name"]: audit for audit in result["audits"]}


@pytest.mark.ci
@some
def test_every_control_comes_out_as_its_spec_says(dpspec: Run, tmp_path: Path, names: Sequence[str]) -> None:
    done = dpspec("run", *paths(names), "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = audits(tmp_path)
    assert set(found) == set(names)
    for name, audit in found.items():
        verdicts = {v["verdict"] for v in audit["verdicts"]}
        unseen = {"open"} if name in DEPENDENT else {"proved"}
        assert verdicts <= (unseen if name in UNSEEN else {"refuted", "contradicted"})
        assert audit["conformance"]["status"] == ("no-deviation-found" if name == "too-good" else "deviates")
        if name in SINGLE:
            rejected = {(c["assumption"], c["test"]) for c in audit["checks"] if c["p_value"] < 1e-8}
            assert any(a == SINGLE[name][0] and test.startswith(SINGLE[name][1]) for a, test in rejected)
            # The same runs are correct over all steps, and conform without checks of single steps.
            sums = {c["test"] for c in audit["checks"] if c["p_value"] > 1e-4}
            assert {"chi-square, lower tail", "chi-square, two-sided", "binomial, two-sided"} <= sums


@pytest.mark.ci
@some
def test_repaired_none_is_refuted_or_deviates(dpspec: Run, tmp_path: Path, names: Sequence[str]) -> None:
    done = dpspec("run", *paths(names), "--set", "training.backend=native", "--report", "json=result.json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = audits(tmp_path)
    for name in set(names) - {"too-good"}:
        assert {v["verdict"] for v in found[name]["verdicts"]} == {"proved"}
        assert found[name]["conformance"]["status"] == "no-deviation-found"
    assert "NOT AS EXPECTED" in done.stdout
    assert "expected refuted" in " ".join(done.stdout.split())


def test_the_table_names_every_control() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)\.yaml` ", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == set(EVERY) > UNSEEN


def test_the_plan_says_which_tests_will_see_what(dpspec: Run) -> None:
    done = dpspec("plan", FOLDER / "shuffled.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())
    assert "The attack can show at best: - epsilon up to" in printed
    assert "Tests of the released models, with their detection limits: - steps" in printed
    names = ("noise-scale", "per-layer-noise", "independent-noise", "update", "sensitivity", "sampling", "clipping")
    assert all(f"- {name}" in printed for name in names)
    assert (
        "independence across steps, phase 1 (records in common with the batch 1 step before): "
        "smallest detectable deviation" in printed
    )


@pytest.mark.parametrize("numbers", ["float16", "float32"])
def test_low_order_bits_refute_the_bound_of_real_numbers(dpspec: Run, tmp_path: Path, numbers: str) -> None:
    done = dpspec("run", FOLDER / "numbers" / f"{numbers}.yaml", "--report", "json=result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (audit,) = audits(tmp_path).values()
    assert [v["verdict"] for v in audit["verdicts"]] == ["contradicted"]
    lower = max(f["value"] for f in audit["findings"] if f["bound"] == "lower" and f["quantity"] == "epsilon")
    upper = min(f["value"] for f in audit["findings"] if f["bound"] == "upper" and f["at"]["delta"] == 1e-5)
    assert upper < 2.1 < 5.0 < lower


def test_integers_withstand_the_same_attack(dpspec: Run, tmp_path: Path) -> None:
    spec = FOLDER / "numbers" / "float16.yaml"
    done = dpspec("run", spec, "--set", "mechanism.numbers=integers", "--report", "json=result.json")
    assert done.returncode == 1, done.stdout + done.stderr  # the control is not refuted
    (audit,) = audits(tmp_path).values()
    assert [v["verdict"] for v in audit["verdicts"]] == ["proved"]
    assert audit["conformance"]["status"] == "no-deviation-found"
