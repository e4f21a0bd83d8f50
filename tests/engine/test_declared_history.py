"""Histories of accountants: their certified epsilon against closed forms, and files that are refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special

import dpspec
from dpspec.contract.results import Result
from dpspec.engine.declared_history import History, differences, read_history
from dpspec.errors import HistoryError, NothingToRunError, UsageError

MODULE = "dp_accounting.dp_event"


def event(name: str, *fields: Any) -> list[Any]:
    """The JSON of ``event.to_named_tuple()``."""
    return [MODULE, name, *fields]


def gaussian(noise: float) -> list[Any]:
    return event("GaussianDpEvent", noise)


def interval(result: Result, delta: float = 1e-5, group_size: int = 1) -> tuple[float, float]:
    at = {"delta": delta, "group_size": group_size}
    ends = {f.bound: f.value for f in result.audits[0].findings if f.quantity == "epsilon" and dict(f.at) == at}
    return ends.get("lower", 0.0), ends["upper"]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The closed form of Balle and Wang (2018)."""

    def excess(e: float) -> float:
        return float(special.ndtr(mu / 2 - e / mu) - np.exp(e + special.log_ndtr(-mu / 2 - e / mu))) - delta

    return float(optimize.brentq(excess, 0.0, 200.0, xtol=1e-12))


def test_a_history_of_opacus_has_the_epsilon_of_its_schedule() -> None:
    state = {"mechanism": "rdp", "history": [(1.1, 0.01, 600), (1.1, 0.01, 400)]}
    result = dpspec.check_history(state, epsilon=1.6)
    expected = dpspec.epsilon(noise_multiplier=1.1, rate=0.01, steps=1000, width=1e-4)
    assert interval(result) == pytest.approx((expected.lower, expected.upper), rel=2e-4)
    assert result.audits[0].verdicts[0].verdict == "proved"
    assert result.audits[0].document["description"].startswith("Declared, not observed: 1,000 releases")
    assert len(result.audits[0].document["mechanism"]["releases"]) == 1


def nodes_of_first_leaf(steps: int) -> int:
    """The complete nodes of a binary tree that contain the first of ``steps`` leaves, by enumeration."""
    return sum(1 for size in (2**level for level in range(40)) if size <= steps)


@pytest.mark.parametrize(
    ("content", "mu"),
    [
        (gaussian(2.0), 0.5),
        (event("SelfComposedDpEvent", gaussian(4.0), 16), 1.0),
        (event("ComposedDpEvent", [gaussian(2.0), event("NoOpDpEvent"), gaussian(1.0)]), math.sqrt(1.25)),
        (event("PoissonSampledDpEvent", 1.0, gaussian(2.0)), 0.5),
        (event("ComposedDpEvent", [event("PoissonSampledDpEvent", 0.0, gaussian(1e-3)), gaussian(2.0)]), 0.5),
        ({"module_name": MODULE, "class_name": "GaussianDpEvent", "noise_multiplier": 2}, 0.5),
    ],
)
def test_events_of_gaussian_noise_have_the_closed_form(content: Any, mu: float) -> None:
    is_gaussian(content, mu, "add-remove")


def is_gaussian(content: Any, mu: float, adjacency: str) -> None:
    lower, upper = interval(dpspec.check_history(content, adjacency=adjacency))
    exact = gaussian_epsilon(mu, 1e-5)
    assert lower <= exact * (1.0 + 1e-9)
    assert exact * (1.0 - 1e-9) <= upper
    assert upper - lower < 2e-4 * exact


@pytest.mark.parametrize(("counts", "steps"), [([100, 63], 100), (64, 64)])
def test_trees_have_the_closed_form_for_null_records_alone(counts: Any, steps: int) -> None:
    tree = event("SingleEpochTreeAggregationDpEvent", 5.0, counts)
    is_gaussian(tree, math.sqrt(nodes_of_first_leaf(steps)) / 5, "zero-out")
    is_gaussian(event("SingleEpochTreeAggregationDpEvent", 5.0, 1), 0.2, "zero-out")  # a tree of one step
    with pytest.raises(HistoryError, match="tree aggregation has a bound for zero-out, not for add-remove"):
        read_history(tree)
    with pytest.raises(HistoryError, match="step_counts: step_counts must have at least one number"):
        read_history(event("SingleEpochTreeAggregationDpEvent", 5.0, []), "zero-out")


def test_a_replaced_record_changes_a_sum_by_two_norms() -> None:
    _, upper = interval(dpspec.check_history(gaussian(2.0), adjacency="replace-one"))
    assert upper == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=2e-4)


def test_a_sample_of_fixed_size_is_that_of_a_schedule() -> None:
    sampled = event("SampledWithoutReplacementDpEvent", 1000, 50, gaussian(2.0))
    result = dpspec.check_history(event("SelfComposedDpEvent", sampled, 100), group_size=[1, 4])
    for size in (1, 4):
        options = {"sampling": "fixed", "batch_size": 50, "records": 1000, "group_size": size}
        expected = dpspec.epsilon(noise_multiplier=2.0, steps=100, width=1e-4, **options)
        assert interval(result, 1e-5, size) == pytest.approx((expected.lower, expected.upper), rel=2e-4)


def test_a_sample_of_all_records_is_no_full_batch() -> None:
    """With one record more, the sample leaves another one out: the sum moves by two norms."""
    sampled = event("SampledWithoutReplacementDpEvent", 1000, 1000, gaussian(1.0))
    lower, upper = interval(dpspec.check_history(sampled))
    assert 9.98 < lower < gaussian_epsilon(2.0, 1e-5) <= upper < 10.0
    with pytest.raises(HistoryError, match="no bound is known for DiscreteLaplaceDpEvent on this sample"):
        read_history(event("SampledWithoutReplacementDpEvent", 10, 10, event("DiscreteLaplaceDpEvent", 1.0, 1)))


def test_a_sample_needs_a_dataset_of_two_records() -> None:
    assert read_history(event("SampledWithoutReplacementDpEvent", 2, 1, gaussian(1.0))).releases
    with pytest.raises(HistoryError, match="the size must be an integer from 2 "):
        read_history(event("SampledWithoutReplacementDpEvent", 1, 1, gaussian(1.0)))


def truncated(records: int, rate: float, cap: int, noise: float) -> list[Any]:
    return event("TruncatedSubsampledGaussianDpEvent", records, rate, cap, noise)


def pld_epsilon(content: Any) -> float:
    dp = pytest.importorskip("dp_accounting")
    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-3)  # of 1e-4, its values take ten times as long
    accountant.compose(content)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.ci
def test_a_cap_that_never_or_always_binds_has_the_epsilon_of_poisson_or_fixed_batches() -> None:
    always = dpspec.check_history(event("SelfComposedDpEvent", truncated(50, 1.0, 20, 3.0), 10))
    fixed = dpspec.epsilon(noise_multiplier=3.0, steps=10, sampling="fixed", batch_size=20, records=50, width=1e-4)
    assert interval(always)[1] == pytest.approx(fixed.upper, rel=2e-4)
    never = dpspec.check_history(truncated(50, 0.2, 51, 1.0))
    assert interval(never)[1] == pytest.approx(
        dpspec.epsilon(noise_multiplier=1.0, rate=0.2, steps=1, width=1e-4).upper, rel=2e-4
    )
    assert interval(never)[0] == pytest.approx(interval(never)[1], rel=2e-4)
    for nothing in (truncated(50, 0.0, 5, 1.0), truncated(50, 0.2, 0, 1.0), truncated(0, 0.2, 5, 1.0)):
        with pytest.raises(NothingToRunError):
            read_history(nothing)
    with pytest.raises(HistoryError, match="a truncated Poisson sample has a bound for add-remove, not for zero-out"):
        read_history(truncated(50, 0.2, 5, 1.0), "zero-out")


@pytest.mark.ci
@pytest.mark.parametrize("cap", [30])
def test_a_truncated_sample_costs_no_more_than_dp_accounting_says_and_no_less_than_its_pair(cap: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    step = dp.dp_event.TruncatedSubsampledGaussianDpEvent(500, 0.05, cap, 1.0)
    lower, upper = interval(dpspec.check_history(dp.SelfComposedDpEvent(step, 20).to_named_tuple()))
    assert 0.0 < lower <= upper <= pld_epsilon(dp.SelfComposedDpEvent(step, 20)) * (1.0 + 1e-4)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("noise", "shifts", "chances"),
    [(2.0, [0, 1, 2], [0.9, 0.08, 0.02])],
)
def test_a_mixture_contains_the_value_of_dp_accounting(noise: float, shifts: list[float], chances: list[float]) -> None:
    dp = pytest.importorskip("dp_accounting")
    mixture = dp.SelfComposedDpEvent(dp.dp_event.MixtureOfGaussiansDpEvent(noise, shifts, chances), 50)
    lower, upper = interval(dpspec.check_history(mixture.to_named_tuple()))
    theirs = pld_epsilon(mixture)
    assert lower <= theirs * (1.0 + 2e-4)
    assert theirs * (1.0 - 2e-4) <= upper < lower * (1.0 + 2e-4)


def test_a_mixture_of_one_shift_has_the_closed_form_and_one_without_shift_costs_nothing() -> None:
    is_gaussian(event("MixtureOfGaussiansDpEvent", 4.0, [2.0], [1.0]), 0.5, "add-remove")
    assert interval(dpspec.check_history(event("MixtureOfGaussiansDpEvent", 4.0, [0.0], [1.0]))) == (0.0, 0.0)


def test_randomized_response_and_laplace_have_pure_epsilons() -> None:
    answers = event("RandomizedResponseDpEvent", 0.5, 4)
    lower, upper = interval(dpspec.check_history(answers, adjacency="replace-one", delta=1e-9), 1e-9)
    exact = math.log(5.0 - 8e-9)  # 5/8 - e^epsilon / 8 = delta
    assert lower <= exact * (1.0 + 1e-12)
    assert exact * (1.0 - 1e-12) <= upper < exact * (1.0 + 1e-4)
    _, upper = interval(dpspec.check_history(event("DiscreteLaplaceDpEvent", 0.25, 2), delta=1e-9), 1e-9)
    assert upper == pytest.approx(0.5, abs=1e-8)
    lower, upper = interval(dpspec.check_history(event("LaplaceDpEvent", 2.0), delta=1e-9), 1e-9)
    assert lower <= 0.5 <= upper * (1.0 + 1e-8)
    assert upper - lower < 1e-4


def test_a_guarantee_alone_has_no_lower_end() -> None:
    lower, upper = interval(dpspec.check_history(event("ZCDpEvent", 0.5, 0.0), delta=1e-6), 1e-6)
    assert lower == 0.0
    assert 5.0 < upper < 5.23


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            event("ComposedDpEvent", [gaussian(1.0), event("NonPrivateDpEvent")]),
            "events[1]: an operation without noise",
        ),
        (event("MixtureOfGaussiansDpEvent", 1.0, [0, 1], [0.5, 0.4]), "sampling_probs: must sum to 1, got 0.9"),
        (event("MixtureOfGaussiansDpEvent", 1.0, [0, 1], [1.0]), "sampling_probs: must have a probability for each"),
        (event("MixtureOfGaussiansDpEvent", 1.0, [0, -1], [0.5, 0.5]), "sensitivities[1]: sensitivities must be"),
        (event("TruncatedSubsampledGaussianDpEvent", 9, 0.5, 4, 0.0), "noise_multiplier: noise 0 has no finite"),
        (event("RepeatAndSelectDpEvent", gaussian(1.0), 4.0, 1.0), "a random number of runs has no bound here"),
        (["os", "system", "true"], "no bound is known for the event 'system' of 'os'"),
        (event("SelfComposedDpEvent", gaussian(1.0), True), "count: count must be an integer"),
        (event("SelfComposedDpEvent", event("SelfComposedDpEvent", gaussian(1.0), 10**9), 9), "event.count: the event"),
        (event("PoissonSampledDpEvent", 1.5, gaussian(1.0)), "sampling_probability: rate must be a number from 0 to 1"),
        (event("PoissonSampledDpEvent", 0.1, event("ZCDpEvent", 1.0, 0)), "event: no bound is known for ZCDpEvent"),
        (event("GaussianDpEvent", math.nan), "noise_multiplier: noise_multiplier must be a number"),
        (event("GaussianDpEvent"), "GaussianDpEvent has 1 fields, got 0"),
        ({"class_name": "GaussianDpEvent", "sigma": 1.0}, "noise_multiplier: missing field"),
        ({"noise_multiplier": 1.0}, "needs class_name"),
        (event("ZCDpEvent", 1.0, 0.5), "xi: only xi = 0"),
        (event("RandomizedResponseDpEvent", 0.5, 2), "has a bound for replace-one and zero-out, not for add-remove"),
        ({"history": [[1.0, 0.1]], "mechanism": "rdp"}, "history[0]: must be [noise"),
        ({"history": [[1.0, 0.1, 1], [1.0, 0.0, 1]], "mechanism": "rdp"}, "history[1][1]: rate must be"),
        ({"history": [[0, 0.1, 1]], "mechanism": "rdp"}, "history[0][0]: noise 0"),
        ({"history": [[1.0, 0.1, 1]], "mechanism": "moments"}, "mechanism: must be rdp, prv or gdp"),
        (3, "neither an event nor a history"),
    ],
)
def test_what_has_no_bound_is_refused_with_its_place(content: Any, message: str) -> None:
    with pytest.raises(HistoryError) as caught:
        read_history(content)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ("{", "not JSON"),
        ('{"mechanism": "rdp", "history": [[1, 0.1, 9]], "history": [[9, 0.1, 9]]}', "'history' occurs 2 times"),
        ('{"mechanism": "rdp", "history": [[Infinity, 0.1, 3]]}', "history[0][0]"),
    ],
)
def test_hostile_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HistoryError, match="history") as caught:
        read_history(path)
    assert message in str(caught.value)


def test_files_that_cannot_be_read_and_empty_histories(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_history(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="folder"):
        read_history(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\x80\x04\x95")
    with pytest.raises(HistoryError, match="not UTF-8"):
        read_history(tmp_path / "bytes.json")
    with pytest.raises(NothingToRunError):
        read_history({"history": [], "mechanism": "rdp"})
    with pytest.raises(NothingToRunError):
        read_history(event("NoOpDpEvent"))


def test_a_poisson_sample_has_no_bound_for_a_replaced_record() -> None:
    with pytest.raises(HistoryError, match=r"history\[0\]\[1\]: a Poisson sample has a bound for"):
        read_history({"history": [[1.0, 0.1, 3]], "mechanism": "rdp"}, "replace-one")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mechanism", "text"),
    [("rdp", "above the certified interval"), ("gdp", "below the certified interval")],
)
def test_the_figure_of_opacus_is_explained(mechanism: str, text: str) -> None:
    history = read_history({"mechanism": mechanism, "history": [[0.8, 0.01, 1000]]})
    result = dpspec.check_history(history, epsilon=3.1)
    sentences = [*differences(history, result, 1e-5)]
    assert sentences[0].startswith(f"Opacus' {mechanism} reports epsilon")
    assert text in sentences[0]
    assert sentences[-1].startswith("The claim is 1.3% below the certified interval")


def test_equal_entries_are_merged_and_too_many_are_refused() -> None:
    history = read_history(event("ComposedDpEvent", [gaussian(2.0), gaussian(1.0), gaussian(2.0)]))
    assert isinstance(history, History)
    assert [(release["sigma"], release["times"]) for release in history.releases] == [(2.0, 2), (1.0, 1)]
    assert history.runs == 3
    with pytest.raises(HistoryError, match="more than 1000"):
        read_history(event("ComposedDpEvent", [gaussian(1.0 + i) for i in range(1001)]))


def test_events_of_the_library_are_read(tmp_path: Path) -> None:
    """The tuple form of every event that is supported, in memory and through JSON."""
    dp = pytest.importorskip("dp_accounting")
    noisy, names = dp.GaussianDpEvent(2.0), dp.dp_event
    events = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.5, noisy), 3),
            dp.SelfComposedDpEvent(names.SampledWithoutReplacementDpEvent(100, 10, noisy), 2),
            dp.PoissonSampledDpEvent(0.5, dp.LaplaceDpEvent(3.0)),
            names.DiscreteLaplaceDpEvent(0.5, 1),
            names.ZCDpEvent(0.25),
            dp.NoOpDpEvent(),
        ]
    )
    (tmp_path / "event.json").write_text(json.dumps(events.to_named_tuple()), encoding="utf-8")
    history = read_history(tmp_path / "event.json")
    assert history.releases == read_history(events.to_named_tuple()).releases
    assert [dict(release) for release in history.releases] == [
        {"kind": "gaussian", "sigma": 2.0, "rate": 0.5, "times": 3},
        {"kind": "gaussian", "sigma": 2.0, "batch_size": 10, "records": 100, "times": 2},
        {"kind": "laplace", "scale": 3.0, "rate": 0.5, "times": 1},
        {"kind": "approx-dp", "epsilon": 0.5 * (1.0 + 1e-15), "times": 1},
        {"kind": "zcdp", "rho": 0.25, "times": 1},
    ]
    tree = names.SingleEpochTreeAggregationDpEvent(4.0, [8, 3])
    (release,) = read_history(tree.to_named_tuple(), "zero-out").releases
    assert dict(release) == {"kind": "gaussian", "sigma": 4.0, "times": 4}
