from __future__ import annotations

from collections.abc import Callable

import pytest

from dpspec.contract import Claim
from dpspec.language.load import Loaded

Load = Callable[..., Loaded]


@pytest.fixture
def claim(load: Load, valid: str) -> Callable[..., Loaded]:
    """Load a spec with one claim, given as flow YAML; ``threat_model`` replaces that of the valid spec."""

    def run(text: str, threat_model: str = "{group_size: [1, 4]}") -> Loaded:
        head, middle, tail = valid.index("threat_model:"), valid.index("claims:"), valid.index("audit:")
        assert head < middle < tail
        return load(f"{valid[:head]}threat_model: {threat_model}\nclaims: [{text}]\n{valid[tail:]}")

    return run


def only(loaded: Loaded) -> Claim:
    assert loaded.diagnostics == ()
    (found,) = loaded.specs[0].claims
    return found


@pytest.mark.parametrize(
    "text",
    [
        "{kind: approx-dp, epsilon: 1, delta: 1e-5}",
        "{kind: approx-dp, epsilon: 1, delta: 1e-5, note: from the paper}",
        "{kind: pure-dp, epsilon: 1}",
        "{kind: renyi-dp, alpha: 2, epsilon: 1}",
        "{kind: gdp, mu: 1}",
        "{kind: tradeoff, points: [{fpr: 0.01, tpr: 0.05}, {fpr: 0.1, tpr: 0.1}]}",
        "{kind: rero, kappa: 0.1, gamma: 0.2}",
        "{kind: per-instance-dp, epsilon: 1, delta: 1e-5, record: 3}",
        "{kind: per-instance-dp, epsilon: 1, delta: 1e-5, fraction: 0.9, population: train}",
        "{kind: membership, tpr: 0.1, fpr: 0.01}",
        "{kind: membership, advantage: 0.1}",
        "{kind: fairness, gap: 0.1}",
        "{kind: gdp, mu: 1, over: collection, direction: add, access: final-model, adjacency: replace-one}",
    ],
)
def test_kinds(claim: Callable[..., Loaded], text: str) -> None:
    assert only(claim(text)).id == "claim-1"


@pytest.fixture
def metric(load: Load, valid: str) -> Callable[[str], Loaded]:
    """Load a spec with one claim of kind metric, given by its other keys."""
    head, middle, tail = valid.index("mechanism:"), valid.index("data:"), valid.index("claims:")

    def run(keys: str) -> Loaded:
        claims = f"claims: [{{kind: metric, {keys}}}]\n"
        return load(valid[:head] + "mechanism: {kind: single, scale: 1}\n" + valid[middle:tail] + claims)

    return run


@pytest.mark.parametrize("name", ["accuracy", "accuracy-same-epsilon", "loss", "almost-mu"])
def test_names_of_metrics(metric: Callable[[str], Loaded], name: str) -> None:
    assert only(metric(f"name: {name}, at_most: 1, about: model")).options["about"] == "model"


@pytest.mark.parametrize("name", ["epsilon", "Delta", "mu", "gamma", "tpr", "advantage", "alpha", "epsilon-total", "ε"])
def test_a_metric_is_not_named_like_a_privacy_quantity(metric: Callable[[str], Loaded], name: str) -> None:
    (found,) = metric(f"name: {name}, at_most: 1").diagnostics
    assert (found.code, found.path) == ("bad-value", ("claims", 0, "name"))
    assert found.span is not None
    assert "pure-dp" in str(found.help)


@pytest.mark.parametrize(("bound", "help"), [("at_least: 80", "0.8 for 80 percent"), ("at_most: -0.1", "a fraction")])
def test_an_accuracy_is_a_share(metric: Callable[[str], Loaded], bound: str, help: str) -> None:
    assert only(metric("name: accuracy, at_least: 0.9")).options["name"] == "accuracy"
    (found,) = metric(f"name: accuracy, {bound}").diagnostics
    assert (found.code, found.path) == ("bad-value", ("claims", 0, bound.partition(":")[0]))
    assert help in str(found.help)


def test_scope_keys_and_numbers_are_kept_apart(claim: Callable[..., Loaded]) -> None:
    found = only(
        claim("{id: x, kind: gdp, mu: 1, group_size: 4, record: 3, over: collection, expect: refuted, direction: add}")
    )
    assert found.options == {"mu": 1.0}
    assert (found.group_size, found.record, found.over, found.expect) == (4, 3, "collection", ("refuted",))
    assert (found.adjacency, found.access, found.direction) == ("add-remove", "all-iterates", "add")


def test_scope_defaults_to_the_threat_model(claim: Callable[..., Loaded]) -> None:
    found = only(claim("{kind: gdp, mu: 1}", "{adjacency: zero-out, access: final-model, direction: remove}"))
    assert (found.adjacency, found.access, found.direction) == ("zero-out", "final-model", "remove")
    assert found.expect == ("proved",)


def test_a_misspelt_data_set_is_no_collection(claim: Callable[..., Loaded]) -> None:
    """It used to stand for the declared collection, whose bounds say less than a claim about this data set."""
    for over in ("all", "collection", "this"):
        assert only(claim(f"{{kind: gdp, mu: 1, over: {over}}}")).over == over
    (diagnostic,) = claim("{kind: gdp, mu: 1, over: thsi}").diagnostics
    assert (diagnostic.code, diagnostic.severity) == ("bad-choice", "error")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("{epsilon: 1}", ["missing-key"]),
        ("{kind: 3}", ["wrong-type"]),
        ("3", ["wrong-type"]),
        ("{kind: aprox-dp, epsilon: 1}", ["bad-choice"]),
        ("{kind: metric, name: accuracy, at_least: 1}", ["claim-not-judged"]),
        ("{kind: metric, name: accuracy}", ["missing-key", "claim-not-judged"]),
        ("{kind: approx-dp, epsilon: 1}", ["missing-key"]),
        ("{kind: pure-dp, epsilon: 1, delta: 0.1}", ["unknown-key"]),
        ("{kind: renyi-dp, alpha: 1, epsilon: 1}", ["out-of-range"]),
        ("{kind: tradeoff, points: []}", ["bad-length"]),
        ("{kind: tradeoff, points: [{fpr: 0.2, tpr: 0.1}]}", ["bad-value"]),
        ("{kind: membership, tpr: 0.1, fpr: 0.2}", ["bad-value"]),
        ("{kind: membership, tpr: 0.1}", ["missing-key"]),
        ("{kind: membership, advantage: 0.1, tpr: 0.1}", ["conflicting-key"]),
        ("{kind: per-instance-dp, epsilon: 1, delta: 0.1, record: 1, fraction: 0.5}", ["conflicting-key"]),
        ("{kind: per-instance-dp, epsilon: 1, delta: 0.1, fraction: 0.5}", ["missing-key"]),
        ("{kind: gdp, mu: 1, id: a b}", ["bad-format"]),
        ('{kind: gdp, mu: 1, id: "ab\\n"}', ["bad-format"]),
        ("{kind: gdp, mu: 1, expect: prooved}", ["bad-choice"]),
        ("{kind: gdp, mu: 1, expect: [proved, true]}", ["bad-choice"]),
        ("{kind: gdp, mu: 1, expect: []}", ["bad-length"]),
        ("{kind: gdp, mu: 1, group_size: 5}", ["claim-outside-threat-model"]),
        ("{kind: gdp, mu: 1, group_size: 3}", []),
    ],
)
def test_refused(claim: Callable[..., Loaded], text: str, codes: list[str]) -> None:
    assert [d.code for d in claim(text).diagnostics] == codes


@pytest.mark.parametrize(
    ("threat_model", "text", "fits"),
    [
        ("{access: final-model}", "access: all-iterates", False),
        ("{access: all-iterates}", "access: final-model", True),
        ("{direction: add}", "direction: both", False),
        ("{direction: add}", "direction: remove", False),
        ("{direction: both}", "direction: remove", True),
    ],
)
def test_claims_narrow_the_threat_model(claim: Callable[..., Loaded], threat_model: str, text: str, fits: bool) -> None:
    found = [d.code for d in claim(f"{{kind: gdp, mu: 1, {text}}}", threat_model).diagnostics]
    assert found == ([] if fits else ["claim-outside-threat-model"])


def test_a_wrong_threat_model_is_told_alone(claim: Callable[..., Loaded]) -> None:
    loaded = claim("{kind: gdp, mu: 1, access: final-model}", "{access: [x], group_size: many}")
    assert [d.code for d in loaded.diagnostics] == ["bad-choice", "wrong-type"]
