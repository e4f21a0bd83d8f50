"""``dpspec new spec --from RUN``: the schedule of a run, declared, is proved at what the run costs."""

from __future__ import annotations

import json

import pytest
from support.opacus_training import recorded, two_passes
from support.plain_loop import plain_loop

from dpspec.cli.app import main


@pytest.mark.parametrize("noises", [(1.0,), (2.0, 1.0, 1.5)])
def test_the_spec_of_a_run_is_proved_at_what_the_run_costs(noises, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain_loop(tmp_path / "run", 10, noises=noises)
    assert main(["check", "run", "--json"]) == 5
    findings = json.loads(capsys.readouterr().out)["audits"][0]["findings"]
    (cost,) = [one["value"] for one in findings if one["bound"] == "upper"]
    assert main(["new", "spec", "recorded", "--from", "run"]) == 0
    text = (tmp_path / "recorded.yaml").read_text()
    assert "# not recorded; bounds do not depend on it" in text
    if len(noises) > 1:  # no scheduler changed the noise
        assert main(["run", "recorded.yaml"]) == 1
        text = text.replace("run: run", "run: run\n  public: [noise_multiplier]")
        (tmp_path / "recorded.yaml").write_text(text)
    assert main(["run", "recorded.yaml", "--report", "json=result.json"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    (verdict,) = result["audits"][0]["verdicts"]
    assert verdict["verdict"] == "proved"
    assert verdict["upper"] == cost
    assert cost <= verdict["claimed"] <= cost * 1.001


def test_what_has_no_bound_of_its_own_has_no_spec(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plain_loop(tmp_path / "bare", 10, noises=(1.0, 0.0))
    plain_loop(tmp_path / "rateless", rate=None)
    for name, words in (("bare", "updates got no noise"), ("rateless", "distribution of the batches is unknown")):
        assert main(["new", "spec", "recorded", "--from", name]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert not (tmp_path / "recorded.yaml").exists()


def test_a_mechanism_beside_a_run_makes_no_sense(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "spec", "a", "--from", "run", "--mechanism", "group"]) == 2
    assert "remove --mechanism" in capsys.readouterr().err


def test_the_spec_of_a_ghost_clipping_run_is_as_expected_at_once(tmp_path, monkeypatch):
    """Nobody sees single contributions, so the claim is not proved unless the user assumes that they are clipped."""
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "run", two_passes, clipping="ghost")
    assert main(["new", "spec", "recorded", "--from", "run"]) == 0
    text = (tmp_path / "recorded.yaml").read_text()
    assert "record with loss=, or add assume: [per-record-clipping]; then remove expect" in text
    assert main(["run", "recorded.yaml"]) == 0
    assert main(["run", "recorded.yaml", "--set", "claims.0.expect=[proved]"]) == 1
    assumed = ["--set", "claims.0.expect=[proved]", "--set", "training.assume=[per-record-clipping]"]
    assert main(["run", "recorded.yaml", *assumed]) == 0
