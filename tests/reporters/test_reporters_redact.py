"""What speaks of the rows stays inside, is counted, and takes what repeats it along."""

from __future__ import annotations

import dataclasses

from dpspec.contract import FrozenMap
from dpspec.engine.redact import LEFT_OUT_REASON, redact


def test_hidden_values_go_and_are_counted(result):
    audit = redact(result).audits[0]
    assert {f.privacy for f in audit.findings} == {"public"}
    assert {s.privacy for s in audit.series} == {"public"}
    assert dict(audit.left_out) == {"data-dependent": 1, "per-record": 2}


def test_verdicts_point_at_the_same_findings(result):
    before, after = result.audits[0], redact(result).audits[0]
    for old, new in zip(before.verdicts, after.verdicts, strict=True):
        for end in ("upper_finding", "lower_finding"):
            if getattr(new, end) is not None:
                assert after.findings[getattr(new, end)] is before.findings[getattr(old, end)]
    assert [v.lower_finding for v in after.verdicts] == [5, None, None, 5, None, None]


def test_a_verdict_repeats_nothing_of_what_is_gone(result):
    verdict = redact(result).audits[0].verdicts[4]
    assert (verdict.upper, verdict.upper_finding, verdict.provable) == (None, None, None)
    assert verdict.reason == LEFT_OUT_REASON
    assert verdict.verdict == "proved"


def test_a_lower_end_goes_with_its_p_value(result):
    audit = result.audits[0]
    findings = tuple(
        dataclasses.replace(f, privacy="per-record") if i == 6 else f for i, f in enumerate(audit.findings)
    )
    changed = dataclasses.replace(result, audits=(dataclasses.replace(audit, findings=findings),))
    verdict = redact(changed).audits[0].verdicts[3]
    assert (verdict.lower, verdict.p_value, verdict.reason) == (None, None, LEFT_OUT_REASON)


def test_evidence_of_hidden_quantities_goes(result):
    audit = result.audits[0]
    (kept,) = audit.evidence
    accuracy = dataclasses.replace(kept, id="accuracy", quantity="accuracy")
    changed = dataclasses.replace(result, audits=(dataclasses.replace(audit, evidence=(kept, accuracy)),))
    assert redact(changed).audits[0].evidence == (kept,)


def test_trials_lose_what_they_mark_as_internal(result):
    audit = result.audits[0]
    trial = dataclasses.replace(audit.trials[0], evidence=FrozenMap({"correct": 45, "internal": {"accuracy": 0.94}}))
    changed = dataclasses.replace(result, audits=(dataclasses.replace(audit, trials=(trial,)),))
    assert redact(changed).audits[0].trials[0].evidence == {"correct": 45}
