"""``ledger add`` and ``check``: what is entered, what is refused, and what a reader sees."""

import re

import pytest
import yaml

from dpspec.engine import ledger as ledgers

SPEC = """\
dpspec: 1
name: {name}
mechanism: {{kind: composition, releases: [{release}]}}
data: {{kind: declared, records: 500}}
threat_model: {{adjacency: {adjacency}}}
"""


@pytest.fixture
def source(tmp_path):
    def write(name, release, adjacency="zero-out"):
        text = SPEC.format(name=name, release=release, adjacency=adjacency)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return f"{name}.yaml"

    return write


@pytest.fixture
def begun(dpspec, source, tmp_path):
    counts = source("counts", "{kind: gaussian, sigma: 5, times: 12}")
    ended = dpspec("ledger", "add", counts, "--epsilon", 8, "--delta", "1e-6")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("entered counts: gaussian (noise 5, 12 times) [declared]\nWITHIN BUDGET: epsilon <= 8")
    return tmp_path / "ledger.yaml"


def names(file):
    return [release["name"] for release in yaml.safe_load(file.read_text())["mechanism"]["releases"]]


@pytest.mark.ci  # two searches for what is left
@pytest.mark.recorder
def test_a_training_a_result_and_a_declared_release(dpspec, source, begun, tmp_path):
    from support.plain_loop import RECORDS, plain_loop

    plain_loop(tmp_path / "night", 20, seed=0x5EED_0F_7E57)
    statistic = source("statistic", "{kind: approx-dp, epsilon: 0.5, delta: 1e-9}")
    assert dpspec("run", statistic, "--report", "json=statistic.json").code == 0
    ended = dpspec("ledger", "add", "night")  # no record moves the sums of this loop
    assert ended.code == 1
    assert "leaves sensitivity open" in ended.err
    assert "--accept settles this, write the result" in ended.err
    checked = dpspec("check", "night", "--delta", "1e-7", "--accept", "not-replayed", "--report", "json=night.json")
    assert checked.code == 5, checked.err  # it claims nothing
    ended = dpspec("ledger", "add", "night.json", "statistic.json")
    assert ended.code == 0, ended.err
    assert "entered night: gaussian (noise 1, rate 0.1, 20 times) [recorded]" in ended.out
    assert names(begun) == ["counts", "night", "statistic"]
    assert yaml.safe_load(begun.read_text())["data"]["records"] == RECORDS
    ended = dpspec("ledger", "check")
    assert ended.code == 0
    assert "- night: gaussian (noise 1, rate 0.1, 20 times); 20" in ended.out
    assert "Left: one more release fits, for example approx-dp with epsilon at most" in " ".join(ended.out.split())
    assert max(map(len, ended.out.splitlines())) <= 80
    by_run = dpspec("run", begun)  # a ledger is a spec
    total = next(line for line in ended.out.splitlines() if line.startswith("WITHIN BUDGET"))
    assert by_run.code == 0
    assert "PROVED" in by_run.out
    assert total.split("epsilon <= ")[1][:1] == "8"


@pytest.mark.parametrize(
    ("sample", "scope"),
    [
        ("batch_size: 50, records: 500", "in datasets of at least 499 records"),
        ("rate: 0.1, max_batch: 70, records: 500", "for this dataset"),
    ],
)
def test_a_first_release_that_depends_on_the_number_of_records_narrows_the_budget(dpspec, source, sample, scope):
    sampled = source("sampled", f"{{kind: gaussian, sigma: 2, {sample}}}", "add-remove")
    ended = dpspec("ledger", "add", sampled, "--epsilon", 8, "--delta", "1e-5")
    assert ended.code == 0, ended.err
    assert scope in " ".join(ended.out.split())
    assert dpspec("ledger", "check").code == 0


def test_a_ledger_is_not_entered_into_itself(dpspec, begun):
    before = begun.read_bytes()
    ended = dpspec("ledger", "add", "ledger.yaml", "counts.yaml")
    assert (ended.code, begun.read_bytes()) == (2, before)
    assert "ledger.yaml is the ledger: name the releases only" in ended.err


@pytest.mark.ci
def test_the_same_release_is_asked_for(dpspec, begun):
    before = begun.read_bytes()
    ended = dpspec("ledger", "add", "counts.yaml")
    assert (ended.code, begun.read_bytes()) == (2, before)
    assert "counts.yaml: entered before, from counts.yaml; --again" in ended.err
    assert dpspec("ledger", "add", "counts.yaml", "--again").code == 0
    assert names(begun) == ["counts", "counts"]


def test_an_edited_result_is_not_entered(dpspec, source, begun, tmp_path):
    statistic = source("statistic", "{kind: approx-dp, epsilon: 0.5, delta: 1e-9}")
    assert dpspec("run", statistic, "--report", "json=statistic.json").code == 0
    text = (tmp_path / "statistic.json").read_text(encoding="utf-8")
    (tmp_path / "statistic.json").write_text(re.sub(r'"value":0[.](?=4)', '"value":0.0', text), encoding="utf-8")
    ended = dpspec("ledger", "add", "statistic.json")
    assert (ended.code, names(begun)) == (1, ["counts"])
    assert "statistic.json does not verify" in ended.err


def test_an_entry_of_another_process_is_not_lost(dpspec, source, begun, monkeypatch):
    def judged(document, catalog, **options):
        begun.write_text(begun.read_text() + "# another process\n", encoding="utf-8")
        return judge(document, catalog, **options)

    judge = ledgers.judge
    monkeypatch.setattr(ledgers, "judge", judged)
    ended = dpspec("ledger", "add", source("statistic", "{kind: approx-dp, epsilon: 0.5}"))
    assert (ended.code, names(begun)) == (2, ["counts"])
    assert "ledger.yaml was changed meanwhile: run the command again" in ended.err


@pytest.mark.ci
def test_too_much_is_refused_with_what_would_fit(dpspec, source, begun):
    before = begun.read_bytes()
    large = source("large", "{kind: approx-dp, epsilon: 9}")
    ended = dpspec("ledger", "add", large)
    assert (ended.code, begun.read_bytes()) == (1, before)
    assert "NOT WITHIN BUDGET: epsilon <= 8 at delta = 1e-6" in ended.err
    assert "large would fit alone, its other numbers unchanged: approx-dp with epsilon at most 4.7" in ended.err
    ended = dpspec("ledger", "check", "--with", large)
    assert (ended.code, begun.read_bytes()) == (1, before)
    assert "NOT WITHIN BUDGET" in ended.out


def test_a_release_that_happened_counts_also_beyond_the_budget(dpspec, source, begun):
    large = source("large", "{kind: approx-dp, epsilon: 9}")
    assert (
        "Nothing was entered. If the release has happened, it counts: --released" in dpspec("ledger", "add", large).err
    )
    ended = dpspec("ledger", "add", large, "--released")
    assert (ended.code, names(begun)) == (1, ["counts", "large"])
    assert "NOT WITHIN BUDGET: epsilon <= 8 at delta = 1e-6; certified: epsilon <= 12." in " ".join(ended.out.split())
    ended = dpspec("ledger", "check")
    assert ended.code == 1
    assert "Left: nothing; the entered releases exceed the budget." in ended.out
    assert "Left: nothing" in dpspec("ledger", "add", source("small", "{kind: approx-dp, epsilon: 0.1}")).err


def test_a_tiny_release_on_a_full_ledger_gets_an_answer(dpspec, source):
    full = source("full", "{kind: approx-dp, epsilon: 0.1, delta: 1e-7}")
    assert dpspec("ledger", "add", full, "--epsilon", 0.1, "--delta", "1e-7").code == 0
    ended = dpspec("ledger", "add", source("tiny", "{kind: approx-dp, epsilon: 1e-12}"))
    assert ended.code == 1
    assert "NOT WITHIN BUDGET: epsilon <= 0.1 at delta = 1e-7; certified: epsilon <= 0.100000000001" in ended.err
    ended = dpspec("ledger", "add", source("noise", "{kind: gaussian, sigma: 1e7}"))
    assert ended.code == 1
    assert "The deltas of the entries add up to 1e-7 of 1e-7: nothing is left for" in ended.err
    assert dpspec("ledger", "check", "--with", "tiny.yaml").code == 1


def test_the_spent_delta_is_the_one_of_the_sampled_guarantee(dpspec, source):
    """50 of 500 records: a tenth of the delta on the sample."""
    sampled = "{kind: approx-dp, epsilon: 1, delta: 1e-5, batch_size: 50, records: 500}"
    assert (
        dpspec("ledger", "add", source("sampled", sampled, "replace-one"), "--epsilon", 3, "--delta", "1e-6").code == 0
    )
    ended = dpspec("ledger", "add", source("noise", "{kind: gaussian, sigma: 50}", "replace-one"))
    assert ended.code == 1
    assert "The deltas of the entries add up to 1e-6 of 1e-6: nothing is left for" in ended.err


def test_a_budget_in_rho(dpspec, source, tmp_path):
    part = source("part", f"{{kind: zcdp, rho: {0.1 / 7!r}}}")
    ended = dpspec("ledger", "add", part, "--rho", 0.1)
    assert ended.code == 0, ended.err
    assert "WITHIN BUDGET: zCDP rho <= 0.1. Certified: rho <= 0.01429, within the claim." in ended.out
    for _ in range(6):
        ended = dpspec("ledger", "add", part, "--again")
    assert ended.code == 0, ended.err
    said = " ".join(ended.out.split())
    assert "rho <= 0.10000000000000002, equal to the claim up to the rounding of declared numbers (1e-15" in said
    ended = dpspec("ledger", "check")
    assert (ended.code, "Left: nothing" in ended.out) == (0, True)
    ended = dpspec("ledger", "check", "--rho", 0.2)
    assert ended.code == 0
    assert "Left: one more release fits, for example zcdp with rho at most 0.1" in ended.out
    ended = dpspec("ledger", "check", "--with", source("pair", "{kind: approx-dp, epsilon: 0.1, delta: 1e-9}"))
    assert ended.code == 1
    assert "NOT WITHIN BUDGET: zCDP rho <= 0.1; no finite rho is certified" in ended.out
    for arguments in (("--rho", 0.1, "--delta", "1e-6"), ("--rho", 0)):
        assert dpspec("ledger", "add", part, "--ledger", "other.yaml", *arguments).code == 2
    assert not (tmp_path / "other.yaml").exists()


def test_pure_noise_is_entered_as_itself_and_not_as_its_guarantee(dpspec, source, begun):
    ended = dpspec("ledger", "add", source("ages", "{kind: laplace, scale: 2, sensitivity: 1}"))
    assert ended.code == 0, ended.err
    assert "entered ages: laplace (scale 2, sensitivity 1) [declared]" in ended.out


@pytest.mark.ci  # a search for what is left
def test_another_budget(dpspec, begun):
    assert dpspec("ledger", "check", "--epsilon", 20).code == 0
    ended = dpspec("ledger", "check", "--epsilon", 0.5, "--report", "json=-")
    assert ended.code == 1
    assert ended.out.startswith("{")
    assert dpspec("ledger", "check", "--delta", 2).code == 3
    ended = dpspec("ledger", "add", "counts.yaml", "--epsilon", 8)
    assert (ended.code, "ledger.yaml has a budget" in ended.err) == (2, True)


def test_what_begins_no_ledger(dpspec, source, tmp_path):
    counts = source("counts", "{kind: gaussian, sigma: 5}")
    for arguments, says in (
        ((counts,), "ledger.yaml does not exist: give --epsilon and --delta"),
        ((counts, "--epsilon", 1, "--delta", 1), "--epsilon must be above 0, and --delta above 0 and below 1"),
        (("gone.json", "--epsilon", 1, "--delta", "1e-6"), "cannot read gone.json"),
    ):
        ended = dpspec("ledger", "add", *arguments)
        assert ended.code == 2
        assert says in ended.err
    assert not (tmp_path / "ledger.yaml").exists()
    ended = dpspec("ledger", "check", "--ledger", "counts.yaml")
    assert ended.code == 2
    assert "counts.yaml has no budget: add the claim {id: budget" in ended.err
    ended = dpspec("ledger", "check")
    assert (ended.code, "ledger.yaml does not exist: `dpspec ledger add SOURCE" in ended.err) == (2, True)


def test_several_audits_are_not_one_release(dpspec, source, begun):
    counts = source("pair", "{kind: gaussian, sigma: 5}")
    sweep = "matrix: {mechanism.delta: [1e-5, 1e-6]}\n"
    with open(counts, "a", encoding="utf-8") as file:
        file.write(sweep)
    ended = dpspec("ledger", "add", counts)
    assert ended.code == 2
    assert "pair.yaml has 2 audits (pair[" in ended.err
    assert "give the result of the released one" in ended.err
