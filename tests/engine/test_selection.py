"""The best of several cells, audited: what bounds it, on what that rests, and what of an edited result is found."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from support.specs import loaded, written

from dpspec.accounting import Mixture, PrivacyLoss
from dpspec.contract import Finding, Scope, Spec
from dpspec.contract.results import AuditResult, Result
from dpspec.engine.preparing.prepare import check
from dpspec.engine.running.runner import run
from dpspec.engine.selection import common_scopes
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.errors import ExitCode, SpecError
from dpspec.json_records import read, write
from dpspec.registry.loader import load_catalog
from dpspec.testing import MechanismSuite

CATALOG = load_catalog()

SPEC = """\
dpspec: 1
name: sweep
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.01}, steps: 500}
data: {kind: declared, records: 1000, features: 3, classes: 2}
threat_model: {group_size: 1}
matrix: {mechanism.noise_multiplier: [1.0, 1.5, 2.0]}
claims:
  - {id: best, kind: approx-dp, epsilon: 3.0, delta: 1e-6, over: matrix}
"""
TRIES = "tuning: {tries: {distribution: logarithmic, mean: 3}}\n"


@pytest.fixture
def specs(tmp_path: Path) -> Callable[..., tuple[Spec, ...]]:
    return lambda text: loaded(written(tmp_path, text))


@pytest.fixture
def audited(specs: Callable[..., tuple[Spec, ...]], tmp_path: Path) -> Callable[[str], Result]:
    return lambda text: run(specs(text), CATALOG, store=Store(tmp_path / "store"))


def uppers(audit: AuditResult) -> list[Finding]:
    return [finding for finding in audit.findings if finding.quantity == "epsilon"]


def composed(delta: float, size: int = 1) -> float:
    phases = tuple((Mixture.poisson(size, 0.01, sigma), 500) for sigma in (1.0, 1.5, 2.0))
    return PrivacyLoss(phases).epsilon(delta).upper


def test_every_cell_run_once_is_bounded_by_their_composition(audited: Callable[[str], Result]) -> None:
    result = audited(SPEC)
    (audit,) = result.audits
    (verdict,), (finding,) = audit.verdicts, uppers(audit)
    assert finding.value == pytest.approx(composed(1e-6), rel=1e-9)
    assert (finding.bound, finding.rigor, finding.scope) == ("upper", "certified", Scope())
    assert verdict.verdict == "proved"
    assert (verdict.lower, verdict.refutable) == (None, None)
    assert "all 3 cells composed" in finding.method
    assert ("compared-on-releases", "declared") in [(a.name, a.status) for a in finding.assumptions]
    assert result.exit_code is ExitCode.OK
    (below,) = audited(SPEC.replace("epsilon: 3.0", "epsilon: 0.01")).audits
    assert below.verdicts[0].verdict == "open"
    assert audit.notes == ()


@pytest.mark.ci
def test_a_random_number_of_tries_supports_and_composition_does_not_bound_it(audited: Callable[[str], Result]) -> None:
    (audit,) = audited(SPEC + TRIES).audits
    (verdict,), (finding,) = audit.verdicts, uppers(audit)
    assert finding.method == "logarithmic tries, 3 on average"
    assert ("random-tries", "unchecked") in [(a.name, a.status) for a in finding.assumptions]
    assert finding.rigor == "theorem"
    assert verdict.verdict == "supported"
    assert "random-tries" in verdict.reason
    # A random search may repeat one cell, so the smaller loss of running every cell once does not apply.
    (audit,) = audited(SPEC.replace("3.0", f"{composed(1e-6) * 1.001:.4f}") + TRIES.replace("3}", "300}")).audits
    assert audit.verdicts[0].verdict == "open"


def test_groups_are_composed_as_groups(audited: Callable[[str], Result]) -> None:
    more = "  - {id: two, kind: approx-dp, epsilon: 9.0, delta: 1e-6, group_size: 2, over: matrix}\n"
    (best,) = audited((SPEC + more).replace("size: 1}", "size: [1, 2]}")).audits
    by_size = {finding.at["group_size"]: finding.value for finding in uppers(best)}
    assert by_size == {1: pytest.approx(composed(1e-6), rel=2e-3), 2: pytest.approx(composed(1e-6, 2), rel=2e-3)}


def test_the_run_says_which_audit_judges_the_choice(audited: Callable[[str], Result]) -> None:
    each = "  - {id: each, kind: approx-dp, epsilon: 3.0, delta: 1e-6}\n"
    result = audited(SPEC + each)
    *cells, best = result.audits
    assert [cell.name for cell in cells] == ["sweep[1.0]", "sweep[1.5]", "sweep[2.0]"]
    assert all((best.verdicts[0].upper or 0.0) > (cell.verdicts[0].upper or 0.0) > 0.0 for cell in cells)
    assert result.notes == (
        "Each of the 3 cells of a matrix was audited alone; 'sweep best of 3' judges the privacy loss of publishing "
        "the best of them.",
    )
    (note,) = audited(SPEC.replace(", over: matrix", "")).notes
    assert note.endswith(
        "No claim covers the release of several models from the same data: their privacy losses compose."
    )


def test_batches_of_a_fixed_size_need_as_many_records(audited: Callable[[str], Result]) -> None:
    fixed = SPEC.replace("{scheme: poisson, rate: 0.01}", "{scheme: fixed, batch_size: 10}").replace(
        "3.0, delta", "20.0, delta"
    )
    (audit,) = audited(fixed).audits
    assert {(f.scope.data, f.scope.min_records) for f in uppers(audit)} == {("all", 999), ("this", 0)}
    assert audit.verdicts[0].verdict == "supported"
    (audit,) = audited(fixed.replace("{group_size: 1}", "{min_records: 999}")).audits
    assert audit.verdicts[0].verdict == "proved"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpspec_group.GroupAudit.dominating", lambda *_: None)


@pytest.mark.ci
@pytest.mark.usefixtures("silent")
def test_cells_that_say_nothing_that_composes_are_added_up(audited: Callable[[str], Result]) -> None:
    (audit,) = audited(SPEC.replace("epsilon: 3.0", "epsilon: 5.0")).audits
    (finding,) = uppers(audit)
    one = [PrivacyLoss(((Mixture.poisson(1, 0.01, s), 500),)).epsilon(1e-6 / 3).upper for s in (1.0, 1.5, 2.0)]
    assert finding.value == pytest.approx(sum(one), rel=1e-3)
    assert (finding.method, finding.rigor) == ("the sum over all 3 cells", "certified")
    assert audit.verdicts[0].verdict == "proved"
    (audit,) = audited(SPEC + TRIES).audits
    assert audit.verdicts[0].verdict == "open"
    assert audit.notes == (
        "no bound, as the mechanism of a cell does not say what its runs leak in a form that composes.",
    )


@pytest.mark.usefixtures("silent")
def test_values_that_depend_on_records_are_never_shown(audited, monkeypatch):
    from dpspec_group import GroupAudit

    bound = GroupAudit.bound
    monkeypatch.setattr(
        GroupAudit,
        "bound",
        lambda *given: (dataclasses.replace(outcome, privacy="data-dependent") for outcome in bound(*given)),
    )
    (audit,) = audited(SPEC).audits
    assert [finding.privacy for finding in audit.findings] == ["data-dependent"]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("kind", "selection", "missing key 'cells' in mechanism"),
        ("kind", "nothing", "no installed plugin"),
    ],
)
def test_a_result_with_a_made_up_cell_is_not_recomputed(audited, place, value, message):
    plain = write(audited(SPEC))
    plain["audits"][0]["document"]["mechanism"]["cells"][1]["mechanism"][place] = value
    try:
        reported = " ".join(str(mismatch.after) for mismatch in verify(read(Result, plain, "result"), CATALOG))
    except Exception as error:
        reported = str(error)
    assert message in reported


@pytest.mark.ci
def test_a_result_is_verified_and_an_edited_one_is_found(audited: Callable[[str], Result]) -> None:
    result = audited(SPEC + TRIES)
    assert verify(result, CATALOG) == ()
    plain = write(result)
    plain["audits"][0]["document"]["mechanism"]["cells"].pop()
    assert {mismatch.what.partition("[")[0] for mismatch in verify(read(Result, plain, "result"), CATALOG)} >= {
        "digest",
        "findings",
    }
    plain = write(result)
    plain["audits"][0]["notes"] = ["epsilon <= 0.1."]
    assert [mismatch.what for mismatch in verify(read(Result, plain, "result"), CATALOG)] == ["notes"]


HAND_MADE = """\
dpspec: 1
name: hand-made
mechanism:
  kind: selection
  cells:
    - mechanism: {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 1}
    - mechanism: {kind: group, noise_multiplier: 2.0, clip_norm: 1.0, sampling: {scheme: full}, steps: 1}
data: {kind: declared, records: 1000, features: 3, classes: 2}
claims:
  - {id: best, kind: approx-dp, epsilon: 4.0, delta: 1e-6}
"""


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("threat_model: {direction: add}", "its threat model differs"),
        ("model: {kind: linear}", "its initial model differs"),
    ],
)
def test_cells_that_differ_in_what_the_bound_rests_on_are_refused(specs, block, message):
    head, _, tail = HAND_MADE.rpartition("    - mechanism:")
    (spec,) = specs(f"{head}    - {block}\n      mechanism:{tail}")
    (reported,) = [d for d in check(spec, CATALOG) if message in d.message]
    assert reported.message.startswith("cell 2: ")


@pytest.mark.parametrize("cell", [0, 1])
def test_constants_are_known_as_well_as_in_the_worst_cell(audited: Callable[[str], Result], cell: int) -> None:
    """Opacus divides by a number that depends on the records: of that cell nothing is proved, nor of the choice."""
    head, *cells = HAND_MADE.split("    - mechanism:")
    begun = ["    - mechanism:"] * 2
    begun[cell] = "    - training: {backend: opacus}\n      mechanism:"
    (audit,) = audited(head + "".join(map(str.__add__, begun, cells))).audits
    assert audit.verdicts[0].verdict == "open"
    assert all(
        any(a.name == "data-independent-hyperparameters" and a.status == "false" for a in found.assumptions)
        for found in uppers(audit)
    )


def test_an_invalid_cell_is_reported_with_its_number_and_place(specs, tmp_path):
    sampling = "truncated-poisson, max_batch: 50,"
    text = SPEC.replace("{group_size: 1}", "{adjacency: replace-one}").replace("poisson,", sampling)
    (spec,) = specs(text)
    with pytest.raises(SpecError) as caught:
        run([spec], CATALOG, store=Store(tmp_path / "store"))
    reported = caught.value.diagnostics[0]
    assert reported.message.startswith("cell 1: ")
    assert reported.span is not None
    assert reported.span.line == 6


def test_scopes_in_common_are_those_that_every_cell_covers() -> None:
    many, this = Scope(min_records=10), Scope(data="this")
    assert common_scopes([[Scope()], [many, this]]) == (many, this)
    assert common_scopes([[many, this], [dataclasses.replace(many, min_records=20), this]]) == (
        dataclasses.replace(many, min_records=20),
        this,
    )
    assert common_scopes([[Scope()], [Scope()]]) == (Scope(),)
    assert common_scopes([[Scope()], [this]]) == (this,)
    assert common_scopes([[Scope()], [Scope(adjacency="zero-out")]]) == ()
    assert common_scopes([[Scope()], [Scope(access="final-model")]]) == ()


class TestSelection(MechanismSuite):
    kind = "selection"
    overrides = ("mechanism.steps=20",)
