"""``dpspec run``: verdicts on stdout, everything else on stderr, and an exit code that a pipeline can act on."""

import dataclasses
import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import counting as support

import dpspec.contract as dps
from dpspec.contract.catalog import Offered
from dpspec.registry import loader
from dpspec.results.codec import load


def test_claims_as_expected(dpspec, counting):
    ended = dpspec("run", counting)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("The privacy claim is proved.\n  PROVED        held")
    assert "REFUTED       broken" in ended.out
    assert ended.out.splitlines()[-1] == "1 audit, 2 claims: all as expected"
    assert "5 of 5 trials to train" in ended.err
    assert support.RAN == [0, 1, 2, 3, 4]


def test_a_time_limit_leaves_an_incomplete_run_that_resumes(dpspec, counting):
    ended = dpspec("run", counting, "--max-minutes", "0")
    assert ended.code == 6
    assert support.RAN == []
    assert "INCOMPLETE" in ended.out
    assert "un the same command again to resume" in ended.err
    assert dpspec("run", counting).code == 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 6)])
def test_a_signal_keeps_what_was_trained(dpspec, counting, sent, code):
    def stop(index: int) -> None:
        if index == 2 and len(support.RAN) == 2:
            os.kill(os.getpid(), sent)

    support.HOOKS.append(stop)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    ended = dpspec("run", counting, "--report", "junit=out.xml")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert ended.code == code
    assert ended.err.count("un the same command again to resume") == 1
    if code == 6:
        assert "stopped by SIGTERM" in ended.err
        assert "INCOMPLETE" in ended.out
        assert 'errors="1"' in Path("out.xml").read_text("utf-8")
    else:
        assert ended.out == ""
    kept = len(support.RAN)
    support.HOOKS.clear()
    assert dpspec("run", counting).code == 0
    assert len(support.RAN) <= 5 + (kept - 2)


def test_a_bug_in_an_audit_is_its_plugins_and_no_verdict(dpspec, counting, monkeypatch, tmp_path):
    def fail(index: int) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    support.HOOKS.append(fail)
    ended = dpspec("run", counting)
    assert (ended.code, ended.out) == (4, "")
    assert "bug in plugin" in ended.err
    assert "ZeroDivisionError: of all things" in ended.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_immediately(dpspec, counting, sent):
    def stop(index: int) -> None:
        os.kill(os.getpid(), sent)
        os.kill(os.getpid(), sent)
        support.RAN.append("after the signals")

    support.HOOKS.append(stop)
    ended = dpspec("run", counting)
    assert (ended.code, support.RAN) == (128 + sent, [])
    assert "run the same command again" in ended.err
    support.HOOKS.clear()
    assert dpspec("run", counting).code == 0


@pytest.mark.parametrize("place", ["-", "crash.txt"])
def test_a_reporter_that_crashes_costs_nothing_but_its_report(dpspec, counting, monkeypatch, place):
    def crash(result: object, *, internal: bool) -> str:
        raise ZeroDivisionError("of all things")

    catalog = loader.load_catalog()
    offered = Offered(
        provider=dps.Reporter(format="crash", summary="x", render="crashing:render", suffix=".txt"),
        plugin="crashing",
        distribution="dpspec-crashing",
        version="1.2",
    )
    catalog = dataclasses.replace(catalog, reporters={**catalog.reporters, "crash": offered})
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)
    monkeypatch.setitem(sys.modules, "crashing", SimpleNamespace(render=crash))
    ended = dpspec(
        "run", counting, "--report", f"crash={place}", "--report", "json=out.json", "--report", "junit=j.xml"
    )
    assert "1 audit, 2 claims: all as expected" in (ended.out + ended.err)
    assert load(Path("out.json").read_text("utf-8")).complete
    assert 'errors="0"' in Path("j.xml").read_text("utf-8")
    assert "reporter 'crash' of dpspec-crashing 1.2 (plugin crashing) did not write" in ended.err
    assert "ZeroDivisionError: of all things" in ended.err
    assert ended.code == 4
    monkeypatch.setitem(sys.modules, "crashing", SimpleNamespace(render=lambda result, internal: {}))
    ended = dpspec("run", counting, "--report", f"crash={place}", "--report", "json=out.json")
    assert ended.code == 4
    assert "render() returns a dict, not text" in ended.err


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ("clams: 1\n", (), 3),
        ("", ("--device", "tpu"), 2),
        ("", ("--plugin", "nowhere.py"), 2),
        ("mechanism: {kind: nowhere}\n", (), 4),
        ("", (), 4),
    ],
)
def test_a_run_without_a_result_reports_its_failure(dpspec, counting, change, options, code):
    def fail(index: int) -> None:
        raise ZeroDivisionError

    support.HOOKS.append(fail)
    text = support.EXAMPLE
    if change.startswith("mechanism"):
        text = "\n".join(line for line in text.splitlines() if not line.startswith("mechanism")) + "\n"
    counting.write_text(text + change, encoding="utf-8")
    formats = {"sarif": "s.json", "junit": "j.xml", "markdown": "m.md", "github": "g.txt", "json": "r.json"}
    reports = [part for name, path in formats.items() for part in ("--report", f"{name}={path}")]
    ended = dpspec("run", counting, *options, *reports)
    assert ended.code == code, ended.err
    (sarif,) = json.loads(Path("s.json").read_text("utf-8"))["runs"]
    assert sarif["invocations"][0]["exitCode"] == code
    assert 'errors="1"' in Path("j.xml").read_text("utf-8")
    assert f"exit {code}" in Path("m.md").read_text("utf-8")
    assert Path("g.txt").read_text("utf-8").splitlines()[-1].startswith("::error title=dpspec::no verdict")
    assert not Path("r.json").exists()
    if change:
        assert "coin.yaml,line=" in Path("g.txt").read_text("utf-8")
        assert sarif["results"][0]["locations"]


def test_reports_are_written(dpspec, counting, tmp_path):
    (tmp_path / "out.md").write_text("old", encoding="utf-8")
    reports = ("json=out.json", "markdown=out.md", f"json={os.devnull}")
    ended = dpspec("run", counting, *(part for report in reports for part in ("--report", report)))
    assert ended.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".dpspec", "coin.yaml", "out.json", "out.md"]
    result = load((tmp_path / "out.json").read_text("utf-8"))
    assert [v.verdict for v in result.audits[0].verdicts] == ["proved", "refuted"]
    assert list(result.environment["command"]) == ["dpspec", "run", str(counting)]
    assert (tmp_path / "out.md").read_text("utf-8").startswith("# dpspec")
    assert "wrote out.json (json)" in ended.err
    assert (tmp_path / "out.json").stat().st_mode & 0o044


def test_a_report_on_stdout_takes_the_place_of_the_terminals(dpspec, counting):
    ended = dpspec("run", counting, "--report", "json=-")
    assert json.loads(ended.out)["schema"] == "dpspec/result/v2"
    assert ended.err.split("\n")[-2] == "1 audit, 2 claims: all as expected"


def test_the_command_to_reproduce_holds_what_numbers_depend_on(dpspec, counting):
    ended = dpspec("run", counting, "--set", "audit.seed=4", "--device", "cpu", "--store", "kept", "--report", "json=-")
    command = json.loads(ended.out)["environment"]["command"]
    assert command == ["dpspec", "run", str(counting), "--set", "audit.seed=4", "--device", "cpu"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--report", "json"], "--report expects FORMAT=PATH, got 'json'"),
        (["--report", "jsno=x"], "unknown report format 'jsno'; did you mean 'json'?"),
        (["--report", "lines=x"], "pass --plugin FILE.py"),
        (["--report", "json=no/such/folder/x.json"], "the folder no/such/folder does not exist"),
        (["--report", "json=."], "it is a folder"),
        (["--report", "html=./coin.yaml"], "coin.yaml is an input of this command"),
        (["--report", "json=a", "--report", "html=./a"], "cannot write a report to ./a: a has another report"),
        (["--device", "gpu"], "--device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["--ray-address", "auto"], "--ray-address requires --executor ray"),
        (["-v", "-q"], "exclude each other"),
        (["--allow-changed-claims"], "--allow-changed-claims requires --baseline RESULT"),
        (["--store", "coin.yaml"], "error: cannot keep trials in coin.yaml: coin.yaml is not a folder"),
        (["--store", "coin.yaml/store"], "error: cannot keep trials in coin.yaml/store: "),
    ],
)
def test_bad_options_fail_before_any_work(dpspec, counting, options, says):
    ended = dpspec("run", counting, *options)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert support.RAN == []


def test_plan_says_what_a_run_costs_and_trains_nothing(dpspec, counting):
    ended = dpspec("plan", counting)
    assert ended.code == 0
    assert "coin\n  2 claims; 5 trials in 5 chunks" in ended.out
    assert support.RAN == []


def test_plan_says_that_the_memory_is_too_small(dpspec, counting, monkeypatch):
    monkeypatch.setattr("dpspec.engine.preparing.prepare._UNCHECKED_BYTES", 0)
    monkeypatch.setattr("dpspec.training.gradients.memory.free_bytes", lambda device: 100)
    ended = dpspec("plan", counting)
    assert ended.code == 0
    shortage = "the rows and their audit take up to 160 B of memory, and 100 B are free"
    assert f"Not enough memory here: {shortage}" in " ".join(ended.out.split())


@pytest.mark.parametrize("how", ["-q", "-v", None])
def test_the_last_line_names_what_failed(how, dpspec, counting):
    options = () if how is None else (how,)
    ended = dpspec("run", counting, "--set", "claims.held.epsilon=0.3", *options)
    assert (ended.code, ended.out.splitlines()[-1]) == (1, "FAILED 1 of 2 claims: coin.held")
    assert (len(ended.out.splitlines()) == 1) is (how == "-q")
    assert ("\nFindings\n" in ended.out) is (how == "-v")
    assert ("Trials are stored in .dpspec/store; " in ended.err) is (how == "-v")
    assert ("trials to train" in ended.err) is (how != "-q")


def test_a_claim_of_set_is_annotated_in_the_spec(dpspec, counting):
    claim = "claims=[{id: low, kind: pure-dp, epsilon: 0.3}]"
    ended = dpspec("run", counting, "--bounds-only", "--set", claim, "-q", "--report", "github=-")
    assert ended.code == 1
    assert f"::error title=coin%2C claim low%3A open,file={counting}::" in ended.out


def test_a_store_that_cannot_be_written_is_refused_before_training(dpspec, counting, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    ended = dpspec("run", counting)
    assert ended.code == 2
    assert "permission denied; --store names another folder" in ended.err
    assert support.RAN == []


def test_a_store_that_holds_everything_need_not_be_writable(dpspec, counting, monkeypatch):
    assert dpspec("run", counting).code == 0
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    assert dpspec("run", counting).code == 0
    assert dpspec("run", counting, "--store", "other", "--bounds-only", "--set", "claims.broken.expect=open").code == 0


class TestAFolder:
    def test_it_stands_for_its_specs_and_tells_what_it_left_out(self, dpspec, counting, tmp_path):
        (tmp_path / "audits").mkdir()
        counting.rename(tmp_path / "audits" / "coin.yaml")
        (tmp_path / "audits" / "parent.yaml").write_text("name: parent\n", encoding="utf-8")
        ended = dpspec("run", "audits", "--report", "json=result.json")
        assert ended.code == 0, ended.err
        assert "skipped (no key 'dpspec' at the top level, as in a parent of specs): audits/parent.yaml" in ended.err
        result = load((tmp_path / "result.json").read_text("utf-8"))
        assert result.audits[0].source == "audits/coin.yaml"
        assert list(result.environment["command"]) == ["dpspec", "run", "audits"]
        assert dpspec("validate", "audits").out == "1 spec valid\n"
        assert dpspec("plan", "audits").out.startswith("coin\n")

    def test_each_file_that_is_left_out_has_its_reason(self, dpspec, counting, tmp_path):
        (tmp_path / "audits").mkdir()
        counting.rename(tmp_path / "audits" / "coin.yaml")
        (tmp_path / "audits" / "empty.yaml").write_bytes(b"")
        (tmp_path / "audits" / "binary.yaml").write_bytes(b"\xff\xfe\x00")
        ended = dpspec("run", "audits", "-q")
        assert "skipped (empty): audits/empty.yaml" in ended.err
        assert "skipped (not UTF-8 text): audits/binary.yaml" in ended.err

    @pytest.mark.parametrize("wrong", ["dpsec: 1\nname: typo\n", "dpspec: 1\nname: [\n"])
    def test_one_spec_with_errors_does_not_hide_the_results_of_the_others(self, dpspec, counting, tmp_path, wrong):
        (tmp_path / "audits").mkdir()
        counting.rename(tmp_path / "audits" / "coin.yaml")
        (tmp_path / "audits" / "wrong.yaml").write_text(wrong, encoding="utf-8")
        ended = dpspec("run", "audits", "--report", "json=result.json", "--report", "junit=junit.xml")
        assert ended.code == 3
        assert "audits/wrong.yaml:" in ended.err
        result = load((tmp_path / "result.json").read_text("utf-8"))
        assert [audit.name for audit in result.audits] == ["coin"]
        assert {spec.file for spec in result.unjudged} == {"audits/wrong.yaml"}
        assert len(result.unjudged) == ended.err.count("error[")
        assert ended.out.splitlines()[-1] == "FAILED 1 spec has errors and was not judged: audits/wrong.yaml"
        assert f'errors="{len(result.unjudged)}"' in (tmp_path / "junit.xml").read_text("utf-8")
        again = dpspec("run", "audits", "-q", "--baseline", "result.json")
        assert again.code == 3

    def test_audits_of_one_name_are_told_with_both_places(self, dpspec, counting, tmp_path):
        for name in ("a", "b"):
            (tmp_path / "audits" / name).mkdir(parents=True)
            (tmp_path / "audits" / name / "coin.yaml").write_text(support.EXAMPLE, encoding="utf-8")
        ended = dpspec("run", "audits")
        assert ended.code == 3
        assert "audits/b/coin.yaml:2:7: error[same-name]" in ended.err
        assert "another audit of this run is named 'coin' too, in audits/a/coin.yaml:2" in " ".join(ended.err.split())
        assert support.RAN == []


@pytest.fixture
def known(dpspec) -> tuple[str, ...]:
    dpspec("new", "spec", "mine", "--mechanism", "group")
    bounds = ("run", "mine.yaml", "--bounds-only")
    assert dpspec(*bounds, "--report", "json=known.json").code == 0
    return (*bounds, "--baseline", "known.json")


@pytest.mark.ci
def test_a_regression_names_its_cause_and_the_bound(dpspec, known):
    ended = dpspec(*known, "--set", "mechanism.noise_multiplier=0.5", "-q", "--remedy-seconds", "0")
    assert ended.code == 1
    lines = ended.err.splitlines()
    assert lines[0].startswith("- mine / ")
    assert "verdict proved -> refuted" in lines[0]
    (cause,) = [line for line in lines if "mechanism.noise_multiplier" in line]
    assert cause.endswith("mechanism.noise_multiplier 1.0 -> 0.5")
    assert re.search(r"Certified: epsilon >= [\d.]+, above the claimed [\d.]+, by datasets that attain it\.", ended.err)
    assert any(line.startswith("- mine / ") and ": upper end of epsilon " in line for line in lines)
    assert lines[-1] == "Worse than the earlier result."


def test_verify_does_not_believe_a_result_that_only_an_earlier_one_lets_pass(dpspec, known):
    failing = (*known[:-2], "--set", "claims.one.epsilon=0.1", "--remedy-seconds", "0", "-q")
    assert dpspec(*failing, "--report", "json=failing.json").code == 1
    compared = dpspec(*failing, "--baseline", "failing.json", "--report", "json=compared.json")
    assert (compared.code, json.loads(Path("compared.json").read_text("utf-8"))["passed"]) == (0, True)
    assert dpspec("verify", "failing.json").code == 0
    doubted = dpspec("verify", "compared.json")
    assert doubted.code == 7
    assert "1 without the earlier result, whose regressions decide" in " ".join((doubted.out + doubted.err).split())


def test_changes_without_a_regression_are_not_printed(dpspec, known):
    ended = dpspec(*known, "--set", "mechanism.noise_multiplier=1.1", "-q")
    assert (ended.code, ended.err) == (0, "No regression from the earlier result.\n")


OF_A_TABLE = """\
dpspec: 1
name: {name}
mechanism: {{kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {{scheme: poisson, rate: 0.5}}, steps: 1}}
data: {{kind: csv, path: {name}.csv, label: y, classes: ['0', '1']}}
model: {{kind: mlp, hidden: [2]}}
training: {{learning_rate: 0.5}}
claims: [{{id: one, kind: approx-dp, epsilon: 30.0, delta: 1e-3}}]
audit: {{method: one-run, canary: {{space: gradient, kind: orthogonal, count: 8}}, seed: 7}}
"""


@pytest.mark.ci
def test_a_file_whose_data_fails_does_not_hide_the_others(dpspec, tmp_path: Path) -> None:
    for name, cell in (("bad", "x"), ("good", "0.5")):
        rows = "".join(f"{i / 40},{i % 7},{i % 2}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"f,g,y\n{rows}{cell},0.1,1\n", encoding="utf-8")
        (tmp_path / f"{name}.yaml").write_text(OF_A_TABLE.format(name=name), encoding="utf-8")
    done = dpspec("run", tmp_path, "--report", "json=r.json")
    assert done.code == 3
    assert "bad.csv:42: column 'f': text instead of a finite number" in done.err
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [audit["name"] for audit in result["audits"]] == ["good"]
    assert [verdict["verdict"] for verdict in result["audits"][0]["verdicts"]] == ["proved"]
    ((file, line),) = [(Path(spec["file"]).name, spec["line"]) for spec in result["unjudged"]]
    assert (file, line, result["exit_code"]) == ("bad.yaml", 4, 3)


def test_a_spec_without_claims_reports_its_bounds_and_passes(dpspec, counting):
    """A command that judges a training or a history needs a claim (5); a spec may ask for bounds alone."""
    text = Path(counting).read_text(encoding="utf-8")
    Path("unclaimed.yaml").write_text(text.partition("claims:")[0], encoding="utf-8")
    ended = dpspec("run", "unclaimed.yaml", "--bounds-only", "--report", "json=result.json")
    assert ended.code == 0
    assert json.loads(Path("result.json").read_text(encoding="utf-8"))["exit_code"] == 0
