"""Edited results do not verify."""

import copy
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support import counting
from support.forger.bench import Bench
from support.record_files import unbundle
from support.specs import loaded, written

from dpspec.contract import FrozenMap, MissingArrayError
from dpspec.contract.catalog import Catalog
from dpspec.contract.results import Result
from dpspec.engine.differences import Mismatch
from dpspec.engine.judging.claim_tests import Concluded
from dpspec.engine.judging.judge import judge
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import PluginError, SpecError
from dpspec.language.load import from_document
from dpspec.registry.loader import load_catalog, resolve
from dpspec.results import codec
from dpspec.results.conformance_status import conformance_of
from dpspec.results.redact import LEFT_OUT_REASON, redact
from dpspec.version import VERSION

SPEC = """\
dpspec: 1
name: edited
mechanism: {kind: group, noise_multiplier: 0.3, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.5}, steps: 5}
data: {kind: npz, path: rows.npz, classes: 4, split: {test: 20}, public: false}
model: {kind: linear}
claims:
  - {id: one, kind: approx-dp, epsilon: 900.0, delta: 1e-5}
  - {id: low, kind: approx-dp, epsilon: 0.01, delta: 1e-5, expect: refuted}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.01, expect: [supported, open]}
audit: {method: one-run, runs: 2, canary: {space: gradient, kind: orthogonal, count: 60}, seed: 1}
matrix: {mechanism.noise_multiplier: [0.3, 1]}
"""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edited")
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.normal(size=(120, 16)), y=rng.integers(0, 4, 120))
    return folder


#: Of a verdict that depends on an omitted number.
LEFT_OUT: dict[str, Any] = {"left_out": True, "reason": LEFT_OUT_REASON}


@pytest.fixture(scope="module")
def document(folder: Path) -> Document:
    result = result_of(SPEC, folder)
    assert [v.verdict for v in result.audits[0].verdicts[:2]] == ["proved", "refuted"]
    assert verify(result, load_catalog()) == ()
    read: Document = json.loads(codec.dump(redact(result)))
    return read


@pytest.mark.ci
def test_bounds_use_one_thread_as_in_a_run(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, audit = [], load_catalog().mechanisms["group"].provider.audit
    bound = resolve(audit).bound

    def noting(*arguments: Any) -> Iterator[Any]:
        threads.append(os.environ.get("OMP_NUM_THREADS"))
        yield from bound(*arguments)

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(resolve(audit), "bound", noting)
    assert differing(document) == []
    assert threads == ["1", "1"]


def differing(document: Document) -> list[str]:
    found = verify(codec.load(json.dumps(document)), load_catalog())
    return [mismatch.what for mismatch in found if mismatch.differs]


@pytest.mark.family
@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda a: a["trials"].append(a["trials"][0]), "trials"),
        (lambda a: a["power"][0].update(epsilon=9.0), "power[0].epsilon"),
        (lambda a: a.update(notes=["all is well"]), "notes"),
        (lambda a: a.update(cell={"mechanism.noise_multiplier": 1.0}), "cell"),
        (lambda a: a.update(cell={"mechanism.nonsense": 1.0}), "cell"),
        (
            lambda a: a["verdicts"][1].update(verdict="proved", expected=False, **LEFT_OUT),
            "the verdict of low",
        ),
        (lambda a: a["verdicts"][2].update(**LEFT_OUT, text="accuracy >= 0.99"), "verdicts[2].text"),
        (lambda a: a["verdicts"][2].update(**LEFT_OUT, expected=False), "verdicts[2].expected"),
        (lambda a: a["verdicts"].append({**a["verdicts"][2], "claim": "more", **LEFT_OUT}), "verdicts"),
    ],
)
def test_an_edited_audit_is_named(document: Document, edit: Callable[[Document], object], named: str) -> None:
    edited = copy.deepcopy(document)
    edit(edited["audits"][0])
    assert named in differing(edited)


def test_the_note_on_composition_is_recomputed(document: Document) -> None:
    assert differing({**document, "notes": []}) == ["notes"]


def test_data_that_is_not_at_hand_is_said_so(document: Document, tmp_path: Path) -> None:
    found = verify(codec.load(json.dumps(document)), load_catalog(), directory=str(tmp_path))
    assert [m.what for m in found if m.what == "facts"] == ["facts"] * 2
    assert not any(m.differs for m in found)


def test_a_spec_that_no_run_would_take_shows_nothing(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    (audit, *_) = copy.deepcopy(document)["audits"]
    claims = [{**audit["document"]["claims"][0], "min_records": 10_000}]
    plain = {key: value for key, value in audit["document"].items() if key != "audit"}
    spec = from_document({**plain, "claims": claims}, load_catalog(), str(Path(audit["source"]).parent))
    with pytest.raises(SpecError, match="at least 10000 records"):
        run([spec], load_catalog(), store=Store(Path(audit["source"]).parent / "store"), train=False)
    with monkeypatch.context() as patched:
        patched.setattr("dpspec.engine.preparing.prepare.refusals", lambda *parts: iter(()))
        forged = run([spec], load_catalog(), store=Store(Path(audit["source"]).parent / "store"), train=False)
    assert [v.verdict for v in forged.audits[0].verdicts] == ["proved"]
    (found,) = verify(forged, load_catalog(), directory=spec.directory)
    assert found.differs
    assert "at least 10000 records" in found.after


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("forged"))
    with bench.remembering():
        yield bench


def verdict_of(document: Any, claim: str) -> Any:
    return next(verdict for verdict in document["audits"][0]["verdicts"] if verdict["claim"] == claim)


@pytest.mark.parametrize("left_out", [{"data-dependent": 99}, {"secret": 1}])
@pytest.mark.family
def test_where_the_data_is_public_more_cannot_have_been_left_out_unseen(bench: Bench, left_out: Any) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=True)))
    document["audits"][0]["left_out"] = left_out
    verdict_of(document, "two").update(verdict="supported", **LEFT_OUT, upper=None, upper_finding=None)
    ended, _ = bench.ends(json.dumps(document), str(bench.folder / "store"))
    assert ended == "objected"
    assert bench.ends(json.dumps(document), "nowhere")[0] in ("objected", "not recomputed")


def test_a_metric_that_was_left_out_is_not_as_recorded(bench: Bench) -> None:
    shown = redact(bench.result("group", trained=True, public=False))
    document = json.loads(codec.dump(shown))
    verdict = verdict_of(document, "useful")
    assert verdict["reason"] == LEFT_OUT_REASON
    other = "supported" if verdict["verdict"] == "refuted" else "refuted"
    verdict["verdict"] = other
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "not recomputed"
    assert f"the verdict of useful ({other}) was not recomputed" in said
    assert re.search(r"could not be recomputed: 1 of 3 verdicts and \d other values\n", said)
    assert "all recomputed values equal" not in said
    # The store has the evidence, and with it the verdict.
    assert bench.ends(json.dumps(document), str(bench.folder / "store"))[0] == "objected"
    assert bench.ends(codec.dump(shown), str(bench.folder / "store"))[0] == "passed"


def test_data_that_no_run_would_take_is_a_mismatch(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("preprocessing", trained=False)))
    document["audits"][0]["document"]["mechanism"]["clip_rows"] = False
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "objected"
    assert "write mechanism.clip_rows: true" in said


@pytest.mark.ci
@pytest.mark.parametrize("public", [True, False])
def test_a_finding_cannot_be_added_where_the_arrays_are_missing(bench: Bench, public: bool) -> None:
    result = bench.result("per-instance", trained=True, public=public)
    (audit,) = result.audits
    attained = next(one for one in audit.findings if (one.bound, one.rigor) == ("lower", "certified"))
    forgery = dataclasses.replace(attained, bound="upper", method="another accountant")
    findings = (*audit.findings, forgery)
    spec = from_document(audit.document, load_catalog())
    (judged,) = judge([Concluded(spec=spec, findings=findings, checks=audit.checks, evidence=audit.evidence)])
    forged = dataclasses.replace(audit, findings=judged.findings, verdicts=judged.verdicts)
    assert attained.value in [verdict.upper for verdict in forged.verdicts]
    text = codec.dump(dataclasses.replace(result, audits=(forged,)))
    ended, said = bench.ends(text, "nowhere")
    assert ended == "objected"
    assert "what follows from the trials (2 trials) was not recomputed" in said
    assert bench.ends(text, str(bench.folder / "store"))[0] == "objected"
    # Below the certified lower bound the forged bound contradicts it.
    findings = (*audit.findings, dataclasses.replace(forgery, value=0.001))
    text = codec.dump(dataclasses.replace(result, audits=(dataclasses.replace(forged, findings=findings),)))
    assert bench.ends(text, "nowhere")[0] == "objected"


@pytest.mark.ci
def test_two_audits_of_one_name_and_trials_in_another_order_are_no_result(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=False)))
    ended, said = bench.ends(json.dumps({**document, "audits": document["audits"] * 2}), "nowhere")
    assert ended == "objected"
    assert "an invocation has one audit of a name" in said
    trained = json.loads(codec.dump(bench.result("per-instance", trained=True)))
    trained["audits"][0]["trials"].reverse()
    assert bench.ends(json.dumps(trained), "nowhere")[0] == "objected"


def test_unverified_values_are_reported_every_time(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=True)))
    document["created"] = "1999-12-31"
    document["environment"]["numpy"] = "0.1"
    ended, said = bench.ends(json.dumps(document), "nowhere")
    assert ended == "passed"
    assert "not verified, because a result does not imply it: the measurements of 1 trial, dates, command, " in said


def test_other_versions_of_installed_packages_are_named_beside_differences(bench: Bench) -> None:
    document = json.loads(codec.dump(bench.result("group", trained=False)))
    document["environment"]["plugins"]["other"] = "else 3"
    for version, is_named in (("0.1.0", True), (document["environment"]["dpspec"], False)):
        document["environment"]["dpspec"] = version
        document["notes"] = []
        ended, said = bench.ends(json.dumps(document), "nowhere")
        assert ended == "passed"
        assert "recorded by" not in said
        document["notes"] = ["all is well"]
        ended, said = bench.ends(json.dumps(document), "nowhere")
        assert ended == "objected"
        assert (f"recorded by dpspec {version} (here {VERSION}): differences may come from other" in said) == is_named


def test_a_key_that_stands_twice_is_refused(bench: Bench) -> None:
    text = codec.dump(bench.result("group", trained=False))
    ended, said = bench.ends(text.replace('"verdict":"open"', '"verdict":"proved","verdict":"open"'), "nowhere")
    assert ended == "refused"
    assert "the key 'verdict' stands twice in one mapping" in said


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, Store]:
    trials, conclude = counting.CountingAudit.trials, counting.CountingAudit.conclude

    def with_arrays(*given: Any) -> Any:
        for trial in trials(*given):
            yield dataclasses.replace(trial, arrays={"answers": np.arange(3.0)})

    def needing_them(self: Any, spec: Any, made: Any) -> Any:
        for trial in made:
            if "answers" not in trial.arrays:
                raise MissingArrayError(f"the array 'answers' of trial {trial.index} is in the store")
        return conclude(self, spec, made)

    monkeypatch.setattr(counting.CountingAudit, "trials", with_arrays)
    monkeypatch.setattr(counting.CountingAudit, "conclude", needing_them)
    store = Store(tmp_path / "store")
    return run(counting.load(tmp_path), counting.catalog(), store=store, device="cpu"), store


def mismatches(result: Result, store: Store | None = None) -> list[Mismatch]:
    return list(verify(result, counting.catalog(), store=store))


def edited(result: Result, **changes: Any) -> Result:
    return dataclasses.replace(result, audits=(dataclasses.replace(result.audits[0], **changes),))


def test_without_the_store_what_needs_arrays_is_named_and_the_rest_follows(ran: tuple[Result, Store]) -> None:
    assert mismatches(*ran) == []
    (one,) = mismatches(ran[0])
    assert (one.what, one.before, one.differs) == ("what follows from the trials", "5 trials", False)
    assert one.after == "taken as recorded: the array 'answers' of trial 0 is in the store"


def test_what_the_attacks_counted_still_decides(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    (evidence,) = result.audits[0].evidence
    statistics = type(evidence.statistics)({**evidence.statistics, "true_positives": 0})
    changed = edited(result, evidence=(dataclasses.replace(evidence, statistics=statistics),))
    assert "verdicts[1].verdict" in {m.what for m in mismatches(changed) if m.differs}


def test_a_plugin_that_is_gone_is_named_by_its_package(ran: tuple[Result, Store]) -> None:
    result, _ = ran
    plugins = {**result.environment["plugins"], "counting": "dpspec-counting 1.2"}
    environment = FrozenMap({**result.environment, "plugins": plugins})
    with pytest.raises(PluginError, match=r"mechanism kind 'counting'.*dpspec-counting 1\.2, not installed here"):
        verify(dataclasses.replace(result, environment=environment), Catalog())


SECRET = """\
dpspec: 1
name: secret
mechanism:
  kind: group
  noise_multiplier: 1.5
  clip_norm: 1.0
  sampling: {scheme: poisson, rate: 0.1}
  steps: 5
data: {kind: synthetic, records: 100, features: 16, classes: 4, split: {test: 20}, public: false}
model: {kind: linear}
claims:
  - {id: one, kind: approx-dp, epsilon: 20.0, delta: 1e-5}
  - {id: useful, kind: metric, name: accuracy, at_least: 0.01, expect: supported}
"""
AUDIT = "audit: {method: one-run, canary: {space: gradient, kind: orthogonal, count: 20}, seed: 1}\n"


def result_of(text: str, folder: Path) -> Result:
    return run(loaded(written(folder, text)), load_catalog(), store=Store(folder / "store"), device="cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return result_of(SECRET + AUDIT, tmp_path_factory.mktemp("secret"))


@pytest.mark.ci
def test_accuracy_on_data_that_is_not_public_is_left_out_everywhere(whole: Result) -> None:
    assert [v.verdict for v in whole.audits[0].verdicts] == ["proved", "supported"]
    text = codec.dump(redact(whole))
    assert '"right"' in codec.dump(whole)
    assert '"right"' not in text
    assert "accuracy ~" not in text
    measured = [check for check in whole.audits[0].checks if check.measured is not None]  # others abstain
    sharp = [check for check in measured if check.privacy == "data-dependent"]
    assert len(sharp) >= 6
    of_rows = [finding for finding in whole.audits[0].findings if finding.quantity == "epsilon-as-run"]
    assert len(of_rows) == 2
    assert redact(whole).audits[0].left_out == {"data-dependent": 2 + len(sharp) + len(of_rows)}


@pytest.mark.ci
def test_no_format_says_more_than_the_redacted_result(whole: Result) -> None:
    catalog, longer = load_catalog(), set()
    for name, offered in catalog.reporters.items():
        render = cast("Callable[..., str]", resolve(offered.provider.render))
        report = render(whole, internal=False)
        assert report == render(redact(whole), internal=False), name
        if render(whole, internal=True) != report:
            longer.add(name)
    assert longer >= {"json", "html", "text", "csv"}


def test_observations_of_gradients_are_omitted(whole: Result) -> None:
    """A step's residual minus its noise, which follows from the seed, may be a single record's gradient."""
    shown = redact(whole).audits[0]
    text = codec.dump(redact(whole))
    for part in ('"drift"', '"measured":{', '"moments"', '"largest":', '"internal"'):
        assert part in codec.dump(whole).replace(" ", "")
    for part in ('"drift"', '"moments"', '"internal"', "norm_log"):
        assert part not in text
    for old, new in zip(whole.audits[0].checks, shown.checks, strict=True):
        if old.privacy == "public":
            assert new == old
            continue
        assert new.measured is None
        assert new.p_value in (0.0, 1.0) or new.p_value == float(f"{new.p_value:.0e}")
        assert new.p_value >= old.p_value
        assert (old.detectable is None) == (new.detectable is None)
        assert old.detectable is None or float(f"{new.detectable:.0e}") == new.detectable >= old.detectable
    assert shown.conformance.status == whole.audits[0].conformance.status
    assert redact(redact(whole)) == redact(whole)


def test_a_deviation_is_reported_without_its_numbers(whole: Result) -> None:
    audit = whole.audits[0]
    (worst,) = [c for c in audit.checks if c.assumption == "clipping" and c.test == "largest clipped norm"]
    broken = dataclasses.replace(worst, p_value=1.2345e-30, measured=1.2345)
    checks = tuple(broken if c == worst else c for c in audit.checks)
    conformance = conformance_of("no-deviation-found", checks, len(checks))
    shown = redact(
        dataclasses.replace(whole, audits=(dataclasses.replace(audit, checks=checks, conformance=conformance),))
    )
    found = shown.audits[0].conformance
    assert found.status == "deviates"
    assert "clipping" in found.reason
    assert "1e-29" in found.reason
    assert "1.23" not in found.reason
    mild = dataclasses.replace(worst, p_value=1e-3)  # above the level
    checks = tuple(mild if c == worst else c for c in audit.checks)
    shown = redact(dataclasses.replace(whole, audits=(dataclasses.replace(audit, checks=checks),)))
    assert [c.p_value for c in shown.audits[0].checks if (c.assumption, c.test) == (worst.assumption, worst.test)] == [
        1.0
    ]


def test_no_verdict_reveals_the_accuracy_by_its_p_value(tmp_path: Path) -> None:
    """The binomial p-value of either side of a claim can be turned back into the count of right answers."""
    result = result_of((SECRET + AUDIT).replace("at_least: 0.01", "at_most: 0.99, about: model"), tmp_path)
    assert result.audits[0].verdicts[1].p_value is not None
    verdict = redact(result).audits[0].verdicts[1]
    assert (verdict.upper, verdict.lower, verdict.p_value) == (None, None, None)


def test_a_redacted_result_verifies_and_names_what_it_cannot_recompute(whole: Result) -> None:
    assert verify(whole, load_catalog()) == ()
    missing = verify(codec.load(codec.dump(redact(whole))), load_catalog())
    assert not any(one.differs for one in missing)
    assert [one.what for one in missing] == ["left_out.data-dependent", "the verdict of useful", "conformance"]
    assert {claim for one in missing for claim in one.claims} == {"useful"}


def test_with_the_store_what_was_left_out_is_recomputed_too(whole: Result) -> None:
    store = Store(Path(whole.audits[0].source).parent / "store")
    shown = codec.load(codec.dump(redact(whole)))
    assert verify(shown, load_catalog(), store=store) == ()
    more = dataclasses.replace(shown.audits[0], left_out=FrozenMap({**shown.audits[0].left_out, "per-record": 1}))
    found = verify(dataclasses.replace(shown, audits=(more,)), load_catalog(), store=store)
    assert [(one.what, one.differs) for one in found] == [("left_out.per-record", True)]


@pytest.mark.ci
def test_a_store_with_half_of_the_trials_recomputes_no_omitted_value(tmp_path: Path) -> None:
    """Omitted values of 8 of 16 trials yield other numbers than those of all, which is no difference."""
    runs = "audit: {method: many-run, canary: {space: gradient, kind: orthogonal}, runs: 16, seed: 1}\n"
    shown = codec.load(codec.dump(redact(result_of(SECRET + runs, tmp_path))))
    store = tmp_path / "store"
    assert verify(shown, load_catalog(), store=Store(store)) == ()
    unbundle(store)
    for record in sorted(store.glob("trials/*/*/record.json"))[:8]:
        record.write_bytes(record.read_bytes()[:-9])
    found = verify(shown, load_catalog(), store=Store(store))
    assert found
    assert not any(mismatch.differs for mismatch in found)


def test_an_omitted_value_leaves_one_end_of_an_interval(whole: Result) -> None:
    left = redact(whole)
    (audit,) = left.audits
    edited = dataclasses.replace(audit.verdicts[0], **LEFT_OUT, p_value=None)
    assert edited.lower is not None
    assert edited.upper is not None
    forged = dataclasses.replace(left, audits=(dataclasses.replace(audit, verdicts=(edited, *audit.verdicts[1:])),))
    found = verify(forged, load_catalog())
    assert "one end depends on an omitted value" in [one.after for one in found if one.differs]
