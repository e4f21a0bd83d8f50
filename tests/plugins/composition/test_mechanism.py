"""Whole audits of composed releases."""

from pathlib import Path

import pytest
from support import specs

from dpspec.contract.results import AuditResult
from dpspec.reporters import words
from dpspec.testing import MechanismSuite, constant, decreasing, increasing

TEXT = """\
dpspec: 1
name: queries
mechanism:
  kind: composition
  releases:
    - {name: sums, kind: gaussian, sigma: 10, times: 100}
data: {kind: declared, records: 100}
claims:
  - {id: epsilon, kind: approx-dp, epsilon: 4.9, delta: 1e-6}
  - {id: epsilon-low, kind: approx-dp, epsilon: 4.8, delta: 1e-6}
  - {id: rho, kind: zcdp, rho: 0.5001}
  - {id: rho-low, kind: zcdp, rho: 0.4999}
  - {id: order, kind: renyi-dp, alpha: 3, epsilon: 1.5001}
  - {id: order-low, kind: renyi-dp, alpha: 3, epsilon: 1.4999}
  - {id: pure-low, kind: pure-dp, epsilon: 20}
  - {id: advantage, kind: membership, advantage: 0.383}
  - {id: rate, kind: membership, fpr: 0.01, tpr: 0.0924}
  - {id: rate-low, kind: membership, fpr: 0.01, tpr: 0.09}
  - {id: curve, kind: tradeoff, points: [{fpr: 0.01, tpr: 0.0924}, {fpr: 0.5, tpr: 0.85}]}
"""


class TestComposition(MechanismSuite):
    kind = "composition"
    monotone = {  # noqa: RUF012
        "mechanism.releases.0.times": increasing(1, 64),
        "mechanism.releases.1.sigma": decreasing(10.0, 60.0),
        "mechanism.delta": constant(1e-9, 1e-6),
    }


def audited(text: str, folder: Path) -> AuditResult:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return specs.audit_of(path, folder / "store")


def verdicts(result: AuditResult) -> dict[str, str]:
    return {verdict.claim: verdict.verdict for verdict in result.verdicts}


def test_claims_about_a_known_pair_are_proved_or_refuted(tmp_path: Path) -> None:
    found = verdicts(audited(TEXT, tmp_path))
    assert found == {name: "refuted" if name.endswith("-low") else "proved" for name in found}


def test_a_guarantee_refutes_nothing(tmp_path: Path) -> None:
    text = TEXT.replace("kind: gaussian, sigma: 10, times: 100", "kind: zcdp, rho: 0.005, times: 100")
    found = verdicts(audited(text, tmp_path))
    assert found["rho"] == found["order"] == "proved"
    assert {found[name] for name in found if name.endswith("-low")} == {"open"}


@pytest.mark.parametrize(
    ("release", "more", "message"),
    [
        ("{kind: gaussian, sigma: 1, rate: 0.1}", "threat_model: {adjacency: replace-one}", "a sample is covered"),
        ("{kind: gaussian, sigma: 1, batch_size: 2}", "", "records"),
        ("{kind: gaussian, sigma: 1, records: 9}", "", "batch_size"),
        (
            "{kind: gaussian, sigma: 1, batch_size: 10, records: 9}",
            "",
            "batch_size must be at most the 9 records, got 10",
        ),
        ("{kind: gaussian, sigma: 1, batch_size: 2, records: 9, rate: 0.1}", "", "belongs to Poisson samples"),
        ("{kind: gaussian, sigma: 1, batch_size: 2, records: 18}", "", "at most the 9 records of the data, got 18"),
        ("{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2, records: 10}", "", "at most the 9 records of the data"),
        (
            "{kind: gaussian, sigma: 1, batch_size: 2, records: 9}",
            "threat_model: {adjacency: zero-out}",
            "null records",
        ),
        ("{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2}", "", "has rate, records and max_batch"),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2, records: 9}",
            "threat_model: {adjacency: zero-out}",
            "a sample with a cap is covered for added and removed",
        ),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2, records: 3}",
            "threat_model: {group_size: [4]}",
            "at least the group of 4",
        ),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2, records: 9}",
            "claims: [{id: a, kind: zcdp, rho: 1}]",
            "no rho is known for a sample with a cap",
        ),
        ("{kind: gaussian-mixture, sigma: 1, shifts: [1], probabilities: [0.5, 0.5]}", "", "shifts has 1 numbers"),
        ("{kind: gaussian-mixture, sigma: 1, shifts: [1], probabilities: [0.5]}", "", "must sum to 1, got 0.5"),
        (
            "{kind: gaussian-mixture, sigma: 1, shifts: [1], probabilities: [1]}",
            "threat_model: {group_size: [2]}",
            "not a group of 2",
        ),
        ("{kind: laplace, scale: 1, batch_size: 2, records: 9}", "", "batch_size"),
        ("{kind: zcdp, rho: 1, batch_size: 2, records: 9}", "", "batch_size"),
        (
            "{kind: approx-dp, epsilon: 1, rate: 0.1}",
            "threat_model: {adjacency: replace-one}",
            "on a Poisson sample is covered for added and removed records",
        ),
        (
            "{kind: gdp, mu: 1, rate: 0.1}",
            "threat_model: {adjacency: zero-out}",
            "on a Poisson sample is covered for added and removed records",
        ),
        (
            "{kind: approx-dp, epsilon: 1, batch_size: 2, records: 9}",
            "",
            "on a sample of fixed size is covered for replaced records",
        ),
        ("{kind: approx-dp, epsilon: 1, batch_size: 2}", "threat_model: {adjacency: replace-one}", "records"),
        ("{kind: zcdp, rho: 1, rate: 0.1}", "threat_model: {group_size: [2]}", "not for groups of 2"),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, sample: s}, {kind: laplace, scale: 1, rate: 0.1, sample: s}",
            "threat_model: {group_size: [2]}",
            "not for groups of 2",
        ),
        ("{kind: gaussian, sigma: 1, sample: s}", "", "sample s is not drawn"),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, sample: s}, {kind: gaussian, sigma: 1, rate: 0.2, sample: s}",
            "",
            "the releases of sample s have rate 0.1 and 0.2",
        ),
        (
            "{kind: gaussian, sigma: 1, rate: 0.1, max_batch: 2, records: 9, sample: s}",
            "",
            "a sample with a cap is one of a single release",
        ),
        ("{kind: randomized-response, epsilon: 1}", "", "whether a person answers"),
        ("{kind: laplace, scale: 1, rate: 0.1}", "threat_model: {group_size: [2]}", "groups of 2"),
        ("{kind: discrete-gaussian, sigma: 1, sensitivity: 1.5}", "", "must be an integer"),
        ("{kind: discrete-gaussian, sigma: 1, sensitivity: 0.0001}", "", "at least 1"),
        ("{kind: gaussian, scale: 1}", "", "sigma"),
        ("{kind: zcdp, rho: 0.1, epsilon: 1}", "", "epsilon"),
        ("{kind: gaussian, sigma: 1}", "audit: {method: many-run}", "bounds only"),
        (
            "{kind: approx-dp, epsilon: 2, rate: 0.5, scope: {min_records: 5}}",
            "",
            "a sample of a covered dataset may be outside the scope",
        ),
        (
            "{kind: gdp, mu: 1, rate: 0.5, sample: s, scope: {data: this}}",
            "",
            "a sample of a covered dataset may be outside the scope",
        ),
        (
            "{kind: approx-dp, epsilon: 2, batch_size: 3, records: 9, scope: {neighbours: same-missing-values}}",
            "threat_model: {adjacency: replace-one}",
            "a sample of a covered dataset may be outside the scope",
        ),
    ],
)
def test_uncovered_releases_are_located_errors(release: str, more: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    text = f"dpspec: 1\nname: a\nmechanism: {{kind: composition, releases: [{release}]}}\n"
    path.write_text(f"{text}data: {{kind: declared, records: 9}}\n{more}\n", encoding="utf-8")
    problems = specs.diagnosed(path)
    assert any(message in problem.message for problem in problems)
    assert all(problem.path for problem in problems)


@pytest.mark.parametrize(
    ("sample", "narrower"),
    [("batch_size: 20, records: 100", "min_records: 99"), ("rate: 0.2, max_batch: 25, records: 100", "over: this")],
)
def test_a_bound_that_depends_on_the_number_of_records_holds_for_no_other(
    sample: str, narrower: str, tmp_path: Path
) -> None:
    claim = "kind: approx-dp, epsilon: 20, delta: 1e-6"
    low = claim.replace("20", "0.5")
    audit = audited(
        "dpspec: 1\nname: a\nmechanism: {kind: composition, releases: ["
        f"{{kind: gaussian, sigma: 2, {sample}}}]}}\ndata: {{kind: declared, records: 100}}\nclaims:\n"
        f"  - {{id: all, {claim}}}\n  - {{id: narrower, {claim}, {narrower}}}\n  - {{id: this, {claim}, over: this}}\n"
        f"  - {{id: low, {low}}}\n",
        tmp_path,
    )
    assert verdicts(audit) == {"all": "supported", "narrower": "proved", "this": "proved", "low": "refuted"}


@pytest.mark.parametrize(
    ("releases", "notes"),
    [
        ("{kind: gaussian, sigma: 2, rate: 0.1, times: 2}", ["Each run of a release with rate"]),
        ("{kind: gaussian, sigma: 2, rate: 0.1}, {kind: laplace, scale: 2, rate: 0.1}", ["Each run of a release with"]),
        ("{kind: gaussian, sigma: 2, rate: 0.1, sample: s}, {kind: gaussian, sigma: 2, rate: 0.1, sample: s}", []),
        ("{kind: gaussian, sigma: 2, rate: 0.1}, {kind: gaussian, sigma: 9}", []),
        ("{kind: approx-dp, epsilon: 1, rate: 0.1}", ["A guarantee with rate holds on the drawn sample for added"]),
        ("{kind: exponential, epsilon: 1}", ["Releases of kind exponential are exponential mechanisms"]),
        ("{kind: approx-dp, epsilon: 1}", []),
    ],
)
def test_a_report_says_what_kinds_and_keys_mean(releases: str, notes: list[str], tmp_path: Path) -> None:
    head, _, _ = TEXT.partition("  releases:")
    audit = audited(f"{head}  releases: [{releases}]\ndata: {{kind: declared, records: 100}}\n", tmp_path)
    assert len(audit.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(audit.notes, notes, strict=True))


def test_a_sum_of_deltas_that_a_program_rounded_is_the_claimed_one_and_the_report_says_so(tmp_path: Path) -> None:
    head, _, _ = TEXT.partition("  releases:")
    release = "{kind: approx-dp, epsilon: 2, delta: 1e-7, rate: 1e-6}"
    for delta, verdict in ((1e-6 * 1e-7, "proved"), (1e-13 * (1.0 - 1e-9), "open")):
        claims = f"claims: [{{id: c, kind: approx-dp, epsilon: 6.4e-6, delta: {delta!r}}}]"
        audit = audited(f"{head}  releases: [{release}]\ndata: {{kind: declared, records: 100}}\n{claims}\n", tmp_path)
        assert verdicts(audit) == {"c": verdict}
        assert any("the rounding of declared numbers (1e-15 relative)" in n for n in audit.notes) == (
            verdict == "proved"
        )


def test_parts_of_a_budget_that_a_program_rounded_are_the_budget_and_the_report_says_so(tmp_path: Path) -> None:
    """It was open, and shown as at most 0.1001."""
    head, _, _ = TEXT.partition("  releases:")
    for part, verdict, shown in (
        (0.1 / 7, "proved", "at most 0.10000000000000002 (certified), equal to the claim up to the rounding of"),
        (0.1 / 7 * (1.0 + 1e-9), "open", "at most 0.1000000002 (certified)"),
        (0.1 / 7 * (1.0 - 1e-9), "proved", "at most 0.09999999991 (certified)"),
    ):
        releases = f"  releases: [{{kind: zcdp, rho: {part!r}, times: 7}}]\n"
        claims = "claims: [{id: c, kind: zcdp, rho: 0.1}]\n"
        audit = audited(f"{head}{releases}data: {{kind: declared, records: 100}}\n{claims}", tmp_path)
        assert verdicts(audit) == {"c": verdict}
        assert str(words.bounds(audit, audit.verdicts[0])).startswith(shown)
        assert ("equal" in str(words.bounds(audit, audit.verdicts[0]))) == (part == 0.1 / 7)


def test_a_guarantee_on_a_sample_of_fixed_size_holds_for_as_many_records(tmp_path: Path) -> None:
    head, _, _ = TEXT.partition("  releases:")
    claim = "kind: approx-dp, epsilon: 0.0624, delta: 1e-9"
    text = (
        f"{head}  releases: [{{kind: approx-dp, epsilon: 2, delta: 1e-7, batch_size: 1, records: 100}}]\n"
        "data: {kind: declared, records: 100}\nthreat_model: {adjacency: replace-one}\n"
        f"claims: [{{id: a, {claim}}}, {{id: b, {claim}, min_records: 100}}, {{id: c, {claim}, over: this}}]\n"
    )
    assert verdicts(audited(text, tmp_path)) == {"a": "supported", "b": "proved", "c": "proved"}
    assert verdicts(audited(text.replace("min_records: 100", "min_records: 99"), tmp_path))["b"] == "supported"


@pytest.mark.parametrize("delta", ["1e-6", "1e-9"])  # both are deltas of the curve in the result
def test_a_guarantee_whose_delta_is_also_evaluated(delta: str, tmp_path: Path) -> None:
    """Its entry in a ledger ended with an error."""
    releases = f"[{{kind: gaussian, sigma: 20}}, {{kind: approx-dp, epsilon: 4, delta: {delta}}}]"
    head, _, _ = TEXT.partition("  releases:")
    claims = "claims: [{id: c, kind: approx-dp, epsilon: 5, delta: 1e-5}]"
    audit = audited(f"{head}  releases: {releases}\ndata: {{kind: declared, records: 100}}\n{claims}\n", tmp_path)
    assert verdicts(audit) == {"c": "proved"}


def test_each_release_has_its_share(tmp_path: Path) -> None:
    """The whole costs at most the sum, and at least each release and all others alone."""
    releases = "[{kind: gaussian, sigma: 4, times: 10}, {name: counts, kind: laplace, scale: 2}]"
    head, _, _ = TEXT.partition("  releases:")
    claim = "claims: [{id: c, kind: approx-dp, epsilon: 5, delta: 1e-6}]"
    audit = audited(f"{head}  releases: {releases}\ndata: {{kind: declared, records: 100}}\n{claim}\n", tmp_path)
    series = next(series for series in audit.series if series.name == "epsilon-by-release")
    assert series.columns["release"] == ("0: gaussian, 10 times", "counts: laplace")
    whole = next(f.value for f in audit.findings if (f.quantity, f.bound) == ("epsilon", "upper"))
    alone, others = series.columns["epsilon"], series.columns["epsilon_of_the_others"]
    assert alone == others[::-1]
    assert max(alone) < whole < sum(alone)
