"""Results that leave the house still follow from themselves, but for what was left out of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from dpspec.contract import FrozenMap
from dpspec.engine.judging.conformance_status import conformance_of
from dpspec.engine.redact import LEFT_OUT_REASONS, redact
from dpspec.engine.results import codec
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.language.load import load_specs
from dpspec.registry.foreign_code import resolve
from dpspec.registry.loader import load_catalog

SPEC = """\
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
    (folder / "secret.yaml").write_text(text, encoding="utf-8")
    loaded = load_specs([folder / "secret.yaml"], load_catalog())
    assert loaded.ok, loaded.diagnostics
    return run(loaded.specs, load_catalog(), store=Store(folder / "store"), device="cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return result_of(SPEC + AUDIT, tmp_path_factory.mktemp("secret"))


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


def test_no_format_says_more_than_the_redacted_result(whole: Result) -> None:
    catalog, longer = load_catalog(), set()
    for name, offered in catalog.reporters.items():
        render = cast("Callable[..., str]", resolve(offered.provider.render))
        report = render(whole, internal=False)
        assert report == render(redact(whole), internal=False), name
        if render(whole, internal=True) != report:
            longer.add(name)
    assert longer >= {"json", "html", "text", "csv"}


def test_what_was_seen_of_gradients_is_left_out(whole: Result) -> None:
    """A step's residual less its noise, which the seed tells, may be a single record's gradient."""
    shown = redact(whole).audits[0]
    told = codec.dump(redact(whole))
    for part in ('"drift"', '"measured":{', '"moments"', '"largest":', '"internal"'):
        assert part in codec.dump(whole).replace(" ", "")
    for part in ('"drift"', '"moments"', '"internal"', "norm_log"):
        assert part not in told
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


def test_a_deviation_is_still_told_without_its_numbers(whole: Result) -> None:
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


@pytest.mark.parametrize("claimed", ["at_least: 0.01", "at_most: 0.99"])
def test_no_verdict_tells_the_accuracy_by_its_p_value(tmp_path: Path, claimed: str) -> None:
    """The binomial p-value of either side of a claim can be turned back into the count of right answers."""
    result = result_of((SPEC + AUDIT).replace("at_least: 0.01", f"{claimed}, about: model"), tmp_path)
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
    told = verify(dataclasses.replace(shown, audits=(more,)), load_catalog(), store=store)
    assert [(one.what, one.differs) for one in told] == [("left_out.per-record", True)]


def test_the_reason_of_earlier_versions_marks_an_omitted_value(whole: Result) -> None:
    """Results of version 0.2.0 have another text."""
    redacted = redact(whole)
    (audit,) = redacted.audits
    earlier = dataclasses.replace(
        audit,
        verdicts=tuple(
            dataclasses.replace(v, reason=LEFT_OUT_REASONS[1]) if v.reason == LEFT_OUT_REASONS[0] else v
            for v in audit.verdicts
        ),
    )
    assert earlier != audit
    found = verify(dataclasses.replace(redacted, audits=(earlier,)), load_catalog())
    assert [m.what for m in found if m.differs] == [m.what for m in verify(redacted, load_catalog()) if m.differs]


def test_an_omitted_value_leaves_one_end_of_an_interval(whole: Result) -> None:
    left = redact(whole)
    (audit,) = left.audits
    edited = dataclasses.replace(audit.verdicts[0], reason=LEFT_OUT_REASONS[0], p_value=None)
    assert edited.lower is not None
    assert edited.upper is not None
    forged = dataclasses.replace(left, audits=(dataclasses.replace(audit, verdicts=(edited, *audit.verdicts[1:])),))
    found = verify(forged, load_catalog())
    assert "one end depends on an omitted value" in [one.recomputed for one in found if one.differs]
