"""What speaks of the rows stays inside, is counted, and takes what repeats it along."""

import dataclasses
import sys
from types import SimpleNamespace

from dpspec.cli.output import find_format
from dpspec.contract import FrozenMap, Reporter
from dpspec.contract.catalog import Catalog, Offered
from dpspec.results.redact import LEFT_OUT_REASON, redact


def test_hidden_values_go_with_what_repeats_them(result):
    before, after = result.audits[0], redact(result).audits[0]
    assert {f.privacy for f in after.findings} == {s.privacy for s in after.series} == {"public"}
    assert dict(after.left_out) == {"data-dependent": 1, "per-record": 2}
    for old, new in zip(before.verdicts, after.verdicts, strict=True):
        for end in ("upper_finding", "lower_finding"):
            if getattr(new, end) is not None:
                assert after.findings[getattr(new, end)] is before.findings[getattr(old, end)]
    assert [v.lower_finding for v in after.verdicts] == [5, None, None, 5, None, None]
    hidden = after.verdicts[4]
    assert (hidden.upper, hidden.upper_finding, hidden.provable) == (None, None, None)
    assert (hidden.reason, hidden.left_out, hidden.verdict) == (LEFT_OUT_REASON, True, "proved")


def test_lower_ends_evidence_and_internal_values_go_too(result):
    (audit,), (kept,) = result.audits, result.audits[0].evidence
    findings = tuple(
        dataclasses.replace(f, privacy="per-record") if i == 6 else f for i, f in enumerate(audit.findings)
    )
    trial = dataclasses.replace(audit.trials[0], evidence=FrozenMap({"correct": 45, "internal": {"accuracy": 0.94}}))
    accuracy = dataclasses.replace(kept, id="accuracy", quantity="accuracy")
    changed = dataclasses.replace(audit, findings=findings, evidence=(kept, accuracy), trials=(trial,))
    (shown,) = redact(dataclasses.replace(result, audits=(changed,))).audits
    verdict = shown.verdicts[3]
    assert (verdict.lower, verdict.p_value, verdict.reason) == (None, None, LEFT_OUT_REASON)
    assert shown.evidence == (kept,)
    assert shown.trials[0].evidence == {"correct": 45}


def test_the_format_of_a_plugin_receives_a_redacted_result(result, monkeypatch):
    def classes(shown, *, internal):
        (audit,) = shown.audits
        return " ".join(sorted({finding.privacy for finding in audit.findings}))

    monkeypatch.setitem(sys.modules, "classes", SimpleNamespace(render=classes))
    provider = Reporter(format="classes", summary="x", render="classes:render", suffix=".txt", void_bounds=True)
    catalog = Catalog(reporters={"classes": Offered(provider=provider, plugin="p", distribution="d", version="1")})
    render = find_format("classes", catalog)
    assert render(result, internal=False) == "public"
    assert render(result, internal=True) == "data-dependent per-record public"
