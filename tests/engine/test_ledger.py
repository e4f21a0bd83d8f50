"""A ledger composes what audits certify, keeps the text of its file, and doubts what may not belong to it."""

import dataclasses
import datetime as dt
import math

import pytest
from scipy import optimize, special

from dpspec.contract import FrozenMap, Scope
from dpspec.contract.executed import ExecutedSection, FiredRule
from dpspec.contract.findings import Channel
from dpspec.engine import ledger as ledgers
from dpspec.engine.ledger import Entry, bounds, doubts, entry_of, fitting, judge, left, new_ledger, text_with_entries
from dpspec.errors import LedgerError, UsageError
from dpspec.language.load import from_document
from dpspec.language.yaml_source import plain, read_yaml, to_yaml
from dpspec.registry.loader import load_catalog

DAY = dt.date(2026, 1, 2)

#: An unguessable seed.
SECRET = 0x5EED_0F_7E57


def release(**options):
    return {"kind": "gaussian", "sigma": 5.0, **options}


def entry(*releases, **changes):
    entered = Entry(
        name="counts",
        releases=releases or (release(),),
        evidence="declared",
        file="counts.yaml",
        digest="aa",
        records=100,
        data="",
        scope=Scope(),
    )
    return dataclasses.replace(entered, **changes)


def empty(epsilon=8.0, delta=1e-6, adjacency="add-remove"):
    return new_ledger(name="ledger", records=100, scope=Scope(adjacency=adjacency), epsilon=epsilon, delta=delta)


def ledger(*entries, **budget):
    return ledgers.with_entries(empty(**budget), entries, DAY)


def recorded(folder, steps, **options):
    from support.plain_loop import plain_loop

    from dpspec_recording.judge.check import check_run
    from dpspec_recording.judge.run_claim import RunClaim

    plain_loop(folder, steps, seed=SECRET, **options)
    # no record moves the sums of this loop
    (audit,) = check_run(folder, RunClaim(delta=1e-7, accept=("not-replayed",))).audits
    return audit


def audited(mechanism, adjacency="add-remove", **blocks):
    document = {
        "dpspec": 1,
        "name": "audited",
        "mechanism": mechanism,
        "data": {"kind": "declared", "records": 100, "features": 2, "classes": 2},
        "threat_model": {"adjacency": adjacency},
        "claims": [],
        **blocks,
    }
    if mechanism["kind"] == "composition":
        document["data"] = {"kind": "declared", "records": 100}
    (audit,) = bounds([from_document(document, load_catalog())], load_catalog()).audits
    return audit


def gaussian_delta(epsilon, mu):
    """The profile of N(0, 1) against N(mu, 1) (Balle and Wang 2018, Theorem 8)."""
    return special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)


def test_full_gaussians_of_several_entries_are_one_gaussian():
    """12 releases at noise 5 and 3 at noise 4 have mu^2 = 12/25 + 3/16, whatever the order of entries."""
    mu = math.sqrt(12 / 25 + 3 / 16)
    exact = optimize.brentq(lambda epsilon: gaussian_delta(epsilon, mu) - 1e-6, 0.1, 20.0)
    for releases in (
        (release(times=12), release(sigma=4.0, times=3)),
        (release(sigma=4.0, times=3), release(times=12)),
    ):
        (audit,) = judge(ledger(*map(entry, releases)), load_catalog()).audits
        assert audit.verdicts[0].lower <= exact <= audit.verdicts[0].upper <= exact * 1.001


@pytest.mark.family
@pytest.mark.parametrize(
    ("mechanism", "entered"),
    [
        (
            {"kind": "group", "noise_multiplier": 2, "clip_norm": 3, "steps": 50, "sampling": {"scheme": "full"}},
            ({"kind": "gaussian", "sigma": 2.0, "times": 50},),
        ),
        (
            {
                "kind": "group",
                "clip_norm": 3,
                "sampling": {"scheme": "poisson", "rate": 0.1},
                "phases": [{"noise_multiplier": 2, "steps": 50}, {"noise_multiplier": 1, "steps": 7}],
            },
            (
                {"kind": "gaussian", "sigma": 2.0, "rate": 0.1, "times": 50},
                {"kind": "gaussian", "sigma": 1.0, "rate": 0.1, "times": 7},
            ),
        ),
        (
            {"kind": "composition", "releases": [{"name": "one", "kind": "zcdp", "rho": 0.1}]},
            ({"kind": "zcdp", "rho": 0.1},),
        ),
    ],
)
def test_steps_are_entered_where_they_give_the_audits_bound(mechanism, entered):
    found = entry_of(audited(mechanism), "declared", "a.yaml", 1e-6, load_catalog())
    assert tuple(map(dict, found.releases)) == entered
    assert (found.records, found.scope.adjacency, found.evidence) == (100, "add-remove", "declared")


@pytest.mark.parametrize(
    "small",
    [
        {"kind": "gaussian", "sigma": 1e5},
        {"kind": "gaussian", "sigma": 20.0, "rate": 1e-4},
        {"kind": "gaussian", "sigma": 1e12},
        {"kind": "laplace", "scale": 1e7},
        {"kind": "zcdp", "rho": 1e-14},
    ],
    ids=str,
)
@pytest.mark.parametrize("delta", [1e-4, 1e-9])
def test_a_release_with_almost_no_cost_is_entered_as_itself(small, delta):
    """Its epsilon is 0 at the delta of its audit; as (0, 1e-5) it exceeded every budget at a smaller delta."""
    found = entry_of(audited({"kind": "composition", "releases": [small]}), "declared", "a.yaml", delta, load_catalog())
    assert tuple(map(dict, found.releases)) == (small,)
    result = judge(ledger(found, epsilon=1.0, delta=delta), load_catalog())
    assert result.exit_code == 0
    assert result.audits[0].verdicts[0].upper < 1e-4


def test_a_training_with_almost_no_cost_is_entered_as_its_steps():
    mechanism = {
        "kind": "group",
        "noise_multiplier": 1e3,
        "clip_norm": 1,
        "steps": 3,
        "sampling": {"scheme": "poisson", "rate": 1e-3},
    }
    (found,) = entry_of(audited(mechanism), "declared", "a.yaml", 1e-9, load_catalog()).releases
    assert found == {"kind": "gaussian", "sigma": 1000.0, "rate": 0.001, "times": 3}


def test_a_guarantee_is_entered_at_a_delta_that_the_budget_has():
    """Of a mechanism without steps the certified curve has smaller deltas than its claims."""
    mechanism = {
        "kind": "group",
        "noise_multiplier": 2,
        "clip_norm": 1,
        "steps": 4,
        "sampling": {"scheme": "shuffled", "batch_size": 50},
    }
    audit = audited(mechanism, "zero-out")
    (guarantee,) = entry_of(audit, "declared", "a.yaml", 1e-8, load_catalog(), ledgers.first_scope(audit)).releases
    assert guarantee["kind"] == "approx-dp"
    assert 1e-11 < guarantee["delta"] <= 1e-9


def of_rho(*entries, rho=0.1):
    document = new_ledger(name="ledger", records=100, scope=Scope(), rho=rho)
    return ledgers.with_entries(document, entries, DAY)


def test_a_budget_in_rho_adds_up_parts_that_a_program_wrote():
    parts = [entry({"kind": "zcdp", "rho": 0.1 / 7}, digest=str(i)) for i in range(7)]
    result = judge(of_rho(*parts), load_catalog())
    assert result.exit_code == 0
    assert result.audits[0].verdicts[0].upper == pytest.approx(0.1, rel=1e-15)
    for more in ({"kind": "zcdp", "rho": 1e-10}, {"kind": "approx-dp", "epsilon": 1e-9, "delta": 1e-9}):
        assert judge(of_rho(*parts, entry(more)), load_catalog()).exit_code == 1


@pytest.mark.family
def test_entries_of_a_budget_in_rho_are_steps_or_concentrated():
    steps = {"kind": "group", "noise_multiplier": 2, "clip_norm": 1, "steps": 5, "sampling": {"scheme": "full"}}
    (found,) = entry_of(audited(steps), "declared", "a.yaml", None, load_catalog()).releases
    assert found == {"kind": "gaussian", "sigma": 2.0, "times": 5}
    other = {**steps, "sampling": {"scheme": "shuffled", "batch_size": 50}}
    bare = audited(other, "zero-out")
    with pytest.raises(LedgerError, match="has no certified rho"):
        entry_of(bare, "declared", "a.yaml", None, load_catalog(), ledgers.first_scope(bare))
    claimed = audited(other, "zero-out", claims=[{"id": "c", "kind": "zcdp", "rho": 9.0}])
    (found,) = entry_of(claimed, "declared", "a.yaml", None, load_catalog(), ledgers.first_scope(claimed)).releases
    (bound,) = {f.value for f in claimed.findings if (f.quantity, f.bound) == ("rho", "upper")}
    assert (found["kind"], found["rho"]) == ("zcdp", bound)


def test_each_entry_draws_its_own_samples():
    shared = [release(rate=0.1, sample="s"), release(sigma=7.0, rate=0.1, sample="s")]
    both = ledger(entry(*shared), entry(*shared, release(rate=0.2, sample="s-2"), digest="bb"))
    samples = [block["sample"] for block in both["mechanism"]["releases"]]
    assert samples == ["s", "s", "s-2", "s-2", "s-2-2"]
    text = text_with_entries(to_yaml(ledger(entry(*shared))), [entry(*shared, digest="bb")], DAY)
    assert [b["sample"] for b in plain(read_yaml(text, "l").root)["mechanism"]["releases"]] == ["s", "s", "s-2", "s-2"]


@pytest.mark.ci  # two searches for what fits
def test_numbers_that_fit_are_of_another_sample():
    """In the sample of the ledger's own entry the noise would need to be larger."""
    drawn = {"kind": "gaussian", "sigma": 2.0, "rate": 0.1, "sample": "s"}
    begun, again = ledger(entry(drawn), epsilon=1.0), entry({**drawn, "sigma": 0.6}, digest="bb")
    named, plain_sample = (
        {fit.key: fit.value for fit in fitting(begun, new, load_catalog())}
        for new in (again, entry({"kind": "gaussian", "sigma": 0.6, "rate": 0.1}, digest="bb"))
    )
    assert named["sigma"] == pytest.approx(plain_sample["sigma"], rel=0.02)


def test_no_number_of_a_tiny_release_fits_a_full_ledger():
    """The bound moves by less than the search sees; it ended with an error."""
    full = ledger(entry({"kind": "approx-dp", "epsilon": 0.1, "delta": 1e-6}), epsilon=0.1)
    tiny = entry({"kind": "approx-dp", "epsilon": 1e-12}, digest="bb")
    assert judge(ledgers.with_entries(full, [tiny], DAY), load_catalog()).exit_code == 1
    assert [*fitting(full, tiny, load_catalog())] == []


def test_a_step_with_an_adaptive_clip_norm_also_releases_a_count():
    """One Gaussian of 1 / sigma^2 = 1 / z^2 + 1 / (2 s)^2, which costs 0.05 % more than the gradients alone."""
    mechanism = {"kind": "group", "noise_multiplier": 1, "clip_norm": 1, "steps": 100, "sampling": {"scheme": "full"}}
    audit = audited({**mechanism, "clipping": {"scheme": "adaptive", "count_std": 20}})
    found = entry_of(audit, "declared", "a.yaml", 1e-6, load_catalog())
    (steps,) = found.releases
    assert steps["sigma"] == pytest.approx(1.0 / math.sqrt(1.0 + 1.0 / 1600.0), rel=1e-12)


@pytest.mark.parametrize("noise", [1.0, 1e6])
def test_a_replaced_record_moves_a_step_by_two_clip_norms(noise):
    """The epsilon of the quieter release is 0 at the delta of its guarantee, which any noise above it has too."""
    mechanism = {"kind": "group", "noise_multiplier": noise, "clip_norm": 1, "steps": 1, "sampling": {"scheme": "full"}}
    found = entry_of(audited(mechanism, "replace-one"), "declared", "a.yaml", 5e-5, load_catalog())
    assert tuple(map(dict, found.releases)) == ({"kind": "gaussian", "sigma": noise, "times": 1, "sensitivity": 2.0},)


def test_a_composition_below_the_lower_end_of_a_bound_is_not_entered():
    """An attained bound is exact: steps of a smaller epsilon, however close, are other steps."""
    audit = audited(
        {"kind": "group", "noise_multiplier": 2, "clip_norm": 1, "steps": 50, "sampling": {"scheme": "full"}}
    )
    charged = [
        dataclasses.replace(f, value=1.001 * f.value, lower=1.001 * f.lower)
        if (f.quantity, f.bound) == ("epsilon", "upper") and f.lower is not None
        else f
        for f in audit.findings
    ]
    (guarantee,) = entry_of(
        dataclasses.replace(audit, findings=tuple(charged)), "declared", "a.yaml", 1e-6, load_catalog()
    ).releases
    assert guarantee["kind"] == "approx-dp"


def test_other_mechanisms_are_entered_as_a_guarantee():
    """A sample of fixed size is no release at a known rate: its certified epsilon is entered, never a smaller one."""
    sampled = {"kind": "group", "noise_multiplier": 2, "clip_norm": 1, "steps": 5}
    audit = audited({**sampled, "sampling": {"scheme": "fixed", "batch_size": 10}})
    with pytest.raises(LedgerError, match=r"at least 99: set threat_model\.min_records"):
        entry_of(audit, "declared", "a.yaml", 1e-3, load_catalog())
    (guarantee,) = entry_of(audit, "declared", "a.yaml", 1e-3, load_catalog(), Scope(min_records=99)).releases
    assert set(guarantee) == {"kind", "epsilon", "delta", "scope"}
    assert guarantee["delta"] <= 1e-4
    certified = [
        f.value
        for f in audit.findings
        if (f.quantity, f.bound, f.at.get("delta")) == ("epsilon", "upper", guarantee["delta"])
    ]
    assert guarantee["epsilon"] == min(certified)


def test_a_composition_covers_no_more_than_its_guarantees():
    """One record of 100 is drawn. Of 100 records, of which fair coins keep half, an attacker is right about 50.8.

    Measured with orthogonal gradients: 50.77, with a standard error of 0.02. A bound for all datasets would allow 50.6.
    """
    from dpspec.reporters.risk import rates

    sampled = {"kind": "group", "noise_multiplier": 0.42, "clip_norm": 1, "steps": 1}
    audit = audited(
        {**sampled, "sampling": {"scheme": "fixed", "batch_size": 1}},
        claims=[{"kind": "approx-dp", "epsilon": 1, "delta": 0.00983, "min_records": 99}],
    )
    audit = dataclasses.replace(audit, document={**audit.document, "claims": ()})  # delta 1 / records is a caution
    entered = entry_of(audit, "declared", "a.yaml", 0.0983, load_catalog(), Scope(min_records=99))
    assert entered.releases[0] == {
        "kind": "approx-dp",
        "epsilon": 1e-15,  # 0 is not a guarantee's
        "delta": 0.00983,
        "scope": {"min_records": 99},
    }
    document = new_ledger(name="ledger", records=100, scope=Scope(min_records=99), epsilon=1.0, delta=0.0983)
    (composed,) = judge(ledgers.with_entries(document, [entered], DAY), load_catalog()).audits
    assert composed.verdicts[0].verdict == "proved"
    assert {(rate.bound_scope.data, rate.bound_scope.min_records) for rate in rates(composed)} == {
        ("all", 99),
        ("this", 0),
    }
    assert not any(rate.of_many() for rate in rates(composed))


@pytest.mark.parametrize(
    ("scopes", "claim", "verdict"),
    [
        ([{}, {"min_records": 99}], {"min_records": 99}, "proved"),
        ([{}, {"min_records": 99}], {}, "supported"),
        ([{}, {"min_records": 99}], {"over": "this"}, "proved"),
        ([{"min_records": 100}], {"over": "this"}, "open"),  # a neighbor has 99
        ([{}, {"data": "this"}], {}, "supported"),
        ([{}, {"data": "this"}], {"over": "this"}, "proved"),
        ([{"data": "this"}], {"over": "this", "group_size": 2}, "open"),  # two records leave one after another
        ([{"min_records": 98}], {"min_records": 98, "group_size": 2}, "proved"),
        ([{"data": "this"}, {"data": "collection"}], {"over": "this"}, "open"),
        ([{}, {"access": "final-model"}], {}, "open"),
        ([{}, {"access": "final-model"}], {"access": "final-model"}, "proved"),
        ([{"adversary": "record"}], {}, "open"),
        ([{"neighbours": "same-missing-values"}], {}, "open"),
        ([{"neighbours": "same-missing-values"}], {"neighbours": "same-missing-values"}, "proved"),
    ],
)
def test_the_scope_of_a_composition_is_the_common_one(scopes, claim, verdict):
    mechanism = {
        "kind": "composition",
        "releases": [
            {"kind": "approx-dp", "epsilon": 0.5, "delta": 1e-8, **({"scope": s} if s else {})} for s in scopes
        ],
    }
    claims = [{"id": "all", "kind": "approx-dp", "epsilon": 9.0, "delta": 1e-5, **claim}]
    audit = audited(mechanism, claims=claims, threat_model={"adjacency": "add-remove", "group_size": [1, 2]})
    assert audit.verdicts[0].verdict == verdict


def test_steps_with_a_larger_bound_than_their_noise_are_a_guarantee():
    """A bound that is charged with more than noise, rate and steps, as of pre-processing, stays whole."""
    audit = audited(
        {"kind": "group", "noise_multiplier": 2, "clip_norm": 1, "steps": 50, "sampling": {"scheme": "full"}}
    )
    charged = [
        dataclasses.replace(f, value=1.1 * f.value) if (f.quantity, f.bound) == ("epsilon", "upper") else f
        for f in audit.findings
    ]
    (guarantee,) = entry_of(
        dataclasses.replace(audit, findings=tuple(charged)), "declared", "a.yaml", 1e-6, load_catalog()
    ).releases
    assert guarantee["kind"] == "approx-dp"


@pytest.mark.family
@pytest.mark.parametrize(
    "narrowed",
    [
        {"access": "final-model"},
        {"adversary": "record"},
        {"data": "this"},
        {"record": 3},
        {"neighbours": "same-missing-values"},
        {"direction": "add"},
    ],
)
def test_a_narrow_guarantee_is_refused(narrowed):
    audit = audited({"kind": "composition", "releases": [{"kind": "gdp", "mu": 1.0}]})
    findings = [dataclasses.replace(f, scope=dataclasses.replace(f.scope, **narrowed)) for f in audit.findings]
    audit = dataclasses.replace(audit, findings=tuple(findings))
    with pytest.raises(
        LedgerError, match=r"a\.yaml: 'audited' has no certified epsilon of one record in the scope of the budget"
    ):
        entry_of(audit, "declared", "a.yaml", 1e-6, load_catalog())
    assert entry_of(audit, "declared", "a.yaml", 1e-6, load_catalog(), audit.findings[0].scope).scope.adjacency


@pytest.mark.ci
@pytest.mark.recorder
def test_a_recorded_training_is_entered_by_its_steps(tmp_path):
    from support.plain_loop import RATE, RECORDS

    audit = recorded(tmp_path / "run", 60)
    found = entry_of(audit, "declared", "run", 1e-6, load_catalog())
    assert tuple(map(dict, found.releases)) == ({"kind": "gaussian", "sigma": 1.0, "rate": RATE, "times": 60},)
    assert (found.evidence, found.records, found.digest) == ("recorded", RECORDS, audit.recording.digest)


@pytest.mark.ci
@pytest.mark.recorder
@pytest.mark.parametrize("federated", [False, True])
def test_a_training_with_charged_bounds_is_a_guarantee_and_clients_are_no_records(federated, tmp_path):
    """A small charge to delta, as for omitted batches, hides in the width of epsilon at one delta."""
    audit = recorded(tmp_path / "run", 20)
    origin = dataclasses.replace(audit.recording.origin, federated=federated)
    charged = dataclasses.replace(audit.recording, phases_alone=False, origin=origin)
    found = entry_of(dataclasses.replace(audit, recording=charged), "declared", "run", 1e-6, load_catalog())
    assert [release["kind"] for release in found.releases] == ["approx-dp"]
    assert found.scope.unit == ("client" if federated else "record")


@pytest.mark.ci
@pytest.mark.recorder
def test_a_training_that_deviates_is_not_entered(tmp_path):
    audit = recorded(tmp_path / "run", 60, scales=(0.5, 0.5))
    with pytest.raises(LedgerError, match="run: 'run' cannot be entered: conformance: deviates"):
        entry_of(audit, "declared", "run", 1e-6, load_catalog())


def test_open_channels_of_a_recording_are_named():
    audit = audited({"kind": "composition", "releases": [{"kind": "gdp", "mu": 1.0}]})
    point = Channel(name="constants", status="open", text="the rate may be 1 over the number of batches")
    found = dataclasses.replace(audit, findings=(), recording=ExecutedSection(open=(point,), digest="d"))
    words = r"leaves constants open: `dpspec check run --adjacency add-remove` says why"
    with pytest.raises(LedgerError, match=words):
        entry_of(found, "declared", "run", 1e-6, load_catalog(), ledgers.DEFAULT_SCOPE)


def test_an_audit_with_an_open_caution_is_not_entered():
    audit = audited({"kind": "composition", "releases": [{"kind": "gdp", "mu": 1.0}]})
    for accepted in ("", "the seed is destroyed"):
        rule = FiredRule(name="guessable-seed", text="t", why="w", fix="f", accepted=accepted)
        recording = ExecutedSection(rules=(rule,), digest="d", assumed=("noise-law",))
        found = dataclasses.replace(audit, recording=recording)
        if accepted:
            entered = entry_of(found, "declared", "run", 1e-6, load_catalog())
            assert (entered.digest, entered.assumes) == ("d", ("noise-law", "guessable-seed"))
            assert ledger(entered)["mechanism"]["releases"][0]["origin"]["assumes"] == [*entered.assumes]
        else:
            with pytest.raises(LedgerError, match="the caution guessable-seed is open"):
                entry_of(found, "declared", "run", 1e-6, load_catalog())


def test_doubts():
    begun = ledger(entry(data="d1"))
    assert [*doubts(begun, [entry(digest="bb", data="d1"), entry(digest="cc")])] == []
    for new, says in (
        (entry(), "counts.yaml: entered before, from counts.yaml; --again"),
        (entry(digest="bb", data="d2"), "another digest than the ledger's; --same-data"),
        (entry(digest="bb", records=7), "its data have 7 records, and the ledger's 100; --same-data"),
        (
            entry(digest="bb", scope=Scope(adjacency="zero-out")),
            "for adjacency zero-out, and the ledger's for add-remove",
        ),
        (entry(digest="bb", scope=Scope(unit="user (at most 8 records)")), "a user (at most 8 records)"),
    ):
        (found,) = doubts(begun, [new])
        assert says in found
    assert [*doubts(begun, [entry(data="d2", records=7)], again=True, same_data=True)] == []
    twice = entry(digest="bb")
    assert len([*doubts(begun, [twice, twice])]) == 1


BLOCK = """\
dpspec: 1   # the format
mechanism:
  kind: composition
  releases:
{releases}
  delta: 1e-6

# the budget
claims: [{{id: budget, kind: approx-dp, epsilon: 8, delta: 1e-6}}]
"""


@pytest.mark.parametrize(
    "releases",
    [
        "    - {name: a, kind: gaussian, sigma: 3}   # ours",
        "  - name: a\n    kind: gaussian\n    sigma: 3\n\n    # after the last one",
        "  - kind: zcdp\n    rho: 0.1\n    origin: {evidence: declared, file: 'é', digest: d, added: x}",
        "    - kind: gaussian-mixture\n      sigma: 1\n      probabilities: [1]\n      shifts:\n      - 1\n",
    ],
)
def test_a_file_keeps_every_line(releases):
    text = BLOCK.format(releases=releases)
    changed = text_with_entries(text, [entry(release(), release(sigma=7.0))], DAY)
    kept = iter(changed.splitlines())
    assert all(line in kept for line in text.splitlines())  # in order
    before, after = (plain(read_yaml(part, "l").root) for part in (text, changed))
    added = after["mechanism"]["releases"][len(before["mechanism"]["releases"]) :]
    assert [(r["name"], r["sigma"]) for r in added] == [("counts, part 1 of 2", 5.0), ("counts, part 2 of 2", 7.0)]
    assert added[0]["origin"] == {"evidence": "declared", "file": "counts.yaml", "digest": "aa", "added": "2026-01-02"}
    assert {**after, "mechanism": None} == {**before, "mechanism": None}


def test_a_file_without_a_last_newline():
    text = to_yaml(ledger(entry())).rstrip("\n")
    changed = text_with_entries(text, [entry(digest="bb")], DAY)
    assert plain(read_yaml(changed, "l").root) == ledger(entry(), entry(digest="bb"))


@pytest.mark.parametrize("releases", ["[{kind: zcdp, rho: 0.1}]", "[]", "7"])
def test_releases_in_brackets_are_refused(releases):
    with pytest.raises(UsageError, match="one entry below another"):
        text_with_entries(f"mechanism:\n  releases: {releases}\n", [entry()], DAY)


@pytest.mark.ci
def test_what_is_left_fits_and_a_little_more_does_not():
    begun = ledger(entry())
    for fit in left(begun, load_catalog()):
        less, more = (fit.value * (1.0 + sign * 0.03) for sign in ((-1, 1) if fit.at_most else (1, -1)))
        for value, exit_code in ((fit.value, 0), (less, 0), (more, 1)):
            tried = entry({"kind": fit.kind, fit.key: value}, digest="bb")
            assert judge(ledger(entry(), tried), load_catalog()).exit_code == exit_code, fit


def test_nothing_is_left_of_a_budget_that_is_used_up():
    assert [*left(ledger(entry(), epsilon=0.5), load_catalog())] == []


@pytest.mark.ci
def test_the_numbers_with_which_an_entry_would_fit():
    too_much = entry(release(sigma=0.5, times=9), digest="bb")
    by_key = {fit.key: fit for fit in fitting(ledger(entry()), too_much, load_catalog())}
    assert not by_key["sigma"].at_most
    for key, fit in by_key.items():
        value = int(fit.value) if key == "times" else fit.value
        numbers = {"sigma": 0.5, "times": 9, key: value}
        assert judge(ledger(entry(), entry(release(**numbers), digest="bb")), load_catalog()).exit_code == 0


def test_a_third_partys_bound_is_named():
    audit = audited({"kind": "composition", "releases": [{"kind": "gdp", "mu": 1.0}]})
    findings = tuple(dataclasses.replace(f, origin="acme 1.2") for f in audit.findings)
    found = entry_of(dataclasses.replace(audit, findings=findings), "declared", "a.yaml", 1e-6, load_catalog())
    assert ledger(found)["mechanism"]["releases"][0]["origin"]["certified_by"] == "acme 1.2"


def test_a_ledger_has_a_budget():
    spec = from_document({**ledger(entry()), "claims": []}, load_catalog())
    with pytest.raises(UsageError, match=r"l\.yaml has no budget: add the claim"):
        ledgers.ledger_of([spec], ledgers.Path("l.yaml"))
    assert FrozenMap(ledgers.budget_of(from_document(ledger(entry()), load_catalog())).options)["delta"] == 1e-6


def test_a_file_without_one_ledger_is_refused():
    spec = from_document(ledger(entry()), load_catalog())
    other = dataclasses.replace(spec, mechanism=dataclasses.replace(spec.mechanism, kind="dp-sgd"))
    for specs in ([spec, spec], [], [other]):
        with pytest.raises(UsageError, match=r"l\.yaml is not a ledger: it needs one mechanism"):
            ledgers.ledger_of(specs, ledgers.Path("l.yaml"))
