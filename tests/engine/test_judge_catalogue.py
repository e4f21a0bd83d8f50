"""The catalogue of claims: each kind, narrowed in each way, against every number that could be taken for its proof.

The judge is walked through the whole table and compared with an oracle that knows sets of situations and no order of
scopes (``support.claims_oracle``). Tables: numbers made by hand of every quantity, side, rigor, condition and scope,
and attacks and measurements of every scope.
"""

import dataclasses
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from support import audits, claims_oracle

from dpspec.contract import Assumption, Claim, Evidence, Finding, FrozenMap, Scope, Spec
from dpspec.engine.judging.judge import judge

Item = TypeVar("Item")

#: Each part of a scope with the values that differ from its default.
SCOPES: dict[str, Sequence[Any]] = {
    "adjacency": ("replace-one", "zero-out"),
    "unit": ("person",),
    "direction": ("add", "remove"),
    "access": ("final-model",),
    "adversary": ("record", "none"),
    "data": ("collection", "this", "planted"),
    "record": (3, 4),
    "pipeline": ("executed",),
    "min_records": (64, 569),
    "neighbours": ("same-missing-values",),
}

#: Each way to narrow a claim, with its values; ``unit`` and ``adversary`` are the threat model's.
NARROWED: dict[str, Sequence[Any]] = {
    "adjacency": ("replace-one", "zero-out"),
    "access": ("final-model",),
    "direction": ("add", "remove"),
    "group_size": (4,),
    "record": (3,),
    "over": ("collection", "this", "patients"),
    "min_records": (64, 1000),
    "neighbours": ("same-missing-values",),
    "unit": ("person",),
    "adversary": ("record", "none"),
}
#: Each kind of claim: its options, the quantity and condition that it is about, with weaker and stronger conditions.
KINDS: dict[str, tuple[dict[str, Any], str, str, tuple[float, ...]]] = {
    "approx-dp": ({"epsilon": 1.0, "delta": 1e-6}, "epsilon", "delta", (1e-9, 1e-6, 1e-3)),
    "pure-dp": ({"epsilon": 1.0}, "epsilon", "delta", (0.0, 1e-6)),
    "renyi-dp": ({"epsilon": 1.0, "alpha": 8.0}, "epsilon", "alpha", (4.0, 8.0, 16.0)),
    "zcdp": ({"rho": 1.0}, "rho", "", ()),
    "gdp": ({"mu": 1.0}, "mu", "", ()),
    "tradeoff": ({"points": ({"fpr": 0.01, "tpr": 1.0},)}, "tpr", "fpr", (0.001, 0.01, 0.1)),
    "rero": ({"kappa": 0.1, "gamma": 1.0}, "gamma", "kappa", (0.01, 0.1, 0.2)),
    "per-instance-dp": ({"epsilon": 1.0, "delta": 1e-6, "record": 3}, "epsilon", "delta", (1e-9, 1e-6, 1e-3)),
    "membership": ({"tpr": 1.0, "fpr": 0.01}, "tpr", "fpr", (0.001, 0.01, 0.1)),
    "advantage": ({"advantage": 1.0}, "advantage", "", ()),
}

#: Metrics by the names of privacy quantities, and by others.
METRICS = ("epsilon", "delta", "mu", "gamma", "tpr", "advantage", "alpha", "accuracy", "loss")

RIGORS = ("certified", "theorem", "statistical", "approximate")
BOUNDS = ("upper", "lower", "estimate")


def deviating(parts: Mapping[str, Sequence[Any]], most: int) -> Iterator[dict[str, Any]]:
    for count in range(most + 1):
        for names in itertools.combinations(parts, count):
            for values in itertools.product(*(parts[name] for name in names)):
                yield dict(zip(names, values, strict=True))


def stated(kind: str, options: Mapping[str, Any], narrowed: Mapping[str, Any]) -> tuple[Spec, Claim]:
    threat: dict[str, Any] = {}
    if "unit" in narrowed:
        threat["unit"] = narrowed["unit"]
    if "adversary" in narrowed:
        threat["options"] = FrozenMap({"adversary": narrowed["adversary"]})
    own = {key: value for key, value in narrowed.items() if key not in ("unit", "adversary")}
    claim = audits.claim("membership" if kind == "advantage" else kind, **{**options, **own})
    return audits.spec(claim, **threat), claim


def verdict(spec: Spec, *outcomes: Finding | Evidence) -> str:
    return judge([audits.unjudged(spec, *outcomes)])[0].verdicts[0].verdict


@dataclasses.dataclass
class Walk:
    combinations: int = 0
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def step(self, spec: Spec, claim: Claim, *findings: Finding) -> None:
        ours, theirs = verdict(spec, *findings), claims_oracle.decided(spec, claim, findings)
        self.combinations += 1
        self.found[theirs] += 1
        if ours != theirs:
            self.wrong.append(f"{ours}, and should be {theirs}: {claim} by {findings[:2]}")

    def conclude(self, least: int) -> None:
        print(f"{self.combinations} combinations: {dict(self.found)}, {len(self.wrong)} wrong")
        assert not self.wrong, f"{len(self.wrong)} of {self.combinations}, such as\n" + "\n".join(self.wrong[:5])
        assert self.combinations >= least
        assert min(self.found[name] for name in ("proved", "supported", "refuted", "open")) > 0


def numbers(
    quantity: str, conditions: Sequence[Mapping[str, Any]], scopes: Sequence[Scope]
) -> list[Callable[[], Finding]]:
    """Return functions that make a number each: of most lists a few are taken."""

    def made(scope: Scope, at: Mapping[str, Any], side: Any, rigor: Any) -> Finding:
        return Finding(
            quantity=quantity,
            value=1.5 if side == "lower" else 0.5,
            bound=side,
            rigor=rigor,
            method="by hand",
            source="",
            at=FrozenMap(at),
            scope=scope,
            confidence=0.95 if rigor == "statistical" else None,
        )

    return [functools.partial(made, *parts) for parts in itertools.product(scopes, conditions, BOUNDS, RIGORS)]


class OneIn:
    """Of a sequence of lists, one item in ``every``, counted through all of them."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._passed = 0

    def __call__(self, items: Sequence[Item]) -> Sequence[Item]:
        first = -self._passed % self._every
        self._passed += len(items)
        return items[first :: self._every]


def conditions(key: str, values: Sequence[float]) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = [{key: value} for value in values] if key else [{}]
    at = cases[len(cases) // 2]
    return [*cases, {}, {**at, "group_size": 4}, {**at, "group_size": 8}, {**at, "step": 7}]


def scopes(most: int) -> list[Scope]:
    return [Scope(**changes) for changes in deviating(SCOPES, most)]


def with_ci(*arguments: int) -> Any:
    return pytest.param(*arguments, marks=pytest.mark.ci)


def in_full(*arguments: int) -> Any:
    return pytest.param(*arguments, marks=pytest.mark.slow)


@pytest.mark.family
@pytest.mark.parametrize(("every", "least"), [(1201, 1_200), with_ci(293, 5_000), in_full(1, 1_500_000)])
def test_the_privacy_claims_against_numbers_made_by_hand(every: int, least: int) -> None:
    """Claims narrowed in one way, against scopes that differ in two parts; of all steps one in ``every``."""
    walk, chosen = Walk(), OneIn(every)
    for kind, (options, quantity, key, values) in KINDS.items():
        every_number = numbers(quantity, conditions(key, values), scopes(2))
        for narrowed in deviating(NARROWED, 1):
            spec, claim = stated(kind, options, narrowed)
            for number in chosen(every_number):
                walk.step(spec, claim, number())
    walk.conclude(least)


@pytest.mark.parametrize("count", [1_000, pytest.param(5_000, marks=pytest.mark.ci)])
def test_any_claims_against_any_numbers(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from everything at once: any number of parts, several findings, assumptions, other quantities.

    Random bounds exclude each other, which :mod:`tests.engine.test_implied_bounds` tests.
    """
    monkeypatch.setattr("dpspec.engine.judging.judge.require_consistent", lambda *_: None)
    draw, walk = random.Random(20), Walk()
    for _ in range(count):
        kind = draw.choice(list(KINDS))
        options, quantity, key, values = KINDS[kind]
        spec, claim = stated(kind, options, _some(draw, NARROWED))
        found = []
        for _ in range(draw.randint(1, 4)):
            made = draw.choice(_few(quantity, key, values))
            near = {"adjacency": claim.adjacency, "unit": spec.threat_model.unit} if draw.random() < 0.8 else {}
            scope = dataclasses.replace(
                Scope(**near), **_some(draw, {k: v for k, v in SCOPES.items() if k not in near})
            )
            status = draw.choice(("declared", "not-rejected", "unchecked", "false"))
            found.append(
                dataclasses.replace(
                    made,
                    scope=scope,
                    value=draw.choice((0.5, 1.0, 1.5, float("inf"))),
                    quantity=quantity if draw.random() < 0.9 else draw.choice(METRICS),
                    assumptions=(Assumption(name="a", status=status),) if draw.random() < 0.5 else (),  # type: ignore[arg-type]
                )
            )
        walk.step(spec, claim, *found)
    walk.conclude(count)


@functools.cache
def _few(quantity: str, key: str, values: tuple[float, ...]) -> list[Finding]:
    return [number() for number in numbers(quantity, conditions(key, values), [Scope()])]


def _some(draw: random.Random, parts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: draw.choice(values) for name, values in parts.items() if draw.random() < 0.2}


@pytest.mark.ci
@pytest.mark.parametrize(("every", "least"), [(89, 5_000), with_ci(61, 4_500), in_full(1, 300_000)])
def test_the_metrics_against_numbers_made_by_hand(every: int, least: int) -> None:
    """No number with a privacy scope decides a claim without one, whatever its name and rigor."""
    walk, chosen = Walk(), OneIn(every)
    cases = [
        {},
        {"split": "test"},
        {"split": "train"},
        {"about": "model"},
        {"delta": 0.0},
        {"group_size": 1},
        {"step": 7},
    ]
    measured = {"pipeline": "executed", "adversary": "none"}
    measured_scopes = [
        *scopes(2),
        *(Scope(**measured, **c) for c in deviating({k: SCOPES[k] for k in ("data", "record")}, 2)),
    ]
    for name in METRICS:
        every_number = numbers(name, cases, measured_scopes)
        for bound, about in itertools.product(({"at_most": 1.0}, {"at_least": 1.0}), ({}, {"about": "model"})):
            spec, claim = stated("metric", {"name": name, **bound, **about}, {})
            for number in chosen(every_number):
                walk.step(spec, claim, number())
    walk.conclude(least)


def evidences(most: int) -> Iterator[Evidence]:
    for scope, size in itertools.product(scopes(most), (1, 4, 8)):
        at = FrozenMap({"group_size": size})
        yield audits.attack(2000, 2000, 2000, scope=scope, at=at)
        for quantity, key in (("gamma", "kappa"), ("tpr", "fpr"), ("accuracy", ""), ("mu", "")):
            more = {key: 0.1 if key == "kappa" else 1e-6} if key else {}
            yield audits.counts(2000, 2000, quantity, scope=scope, at=FrozenMap({**at, **more}))
    for scope in scopes(most):
        for quantity in ("accuracy", "mu"):
            yield audits.average([2000] * 60, 2000, quantity=quantity, scope=scope)


@pytest.mark.ci
@pytest.mark.family
@pytest.mark.parametrize(("few", "every", "least"), [(1, 101, 400), with_ci(1, 5, 8_000), in_full(2, 1, 300_000)])
def test_attacks_and_measurements_of_every_scope(few: int, every: int, least: int) -> None:
    """A false claim is refuted by exactly the evidence that applies to it; of all steps one in ``every``."""
    walked, refuted, wrong, chosen = 0, 0, [], OneIn(every)
    said = [(kind, _small(options)) for kind, (options, *_) in KINDS.items()]
    said += [
        ("metric", {"name": n, "at_most": 0.5, "about": a}) for n in ("accuracy", "mu") for a in ("model", "pipeline")
    ]
    made = list(evidences(few))
    for kind, options in said:
        for narrowed in deviating(NARROWED if kind != "metric" else {}, 1):
            spec, claim = stated(kind, options, narrowed)
            for evidence in chosen(made):
                ours, theirs = verdict(spec, evidence) == "refuted", claims_oracle.tested(spec, claim, evidence)
                walked, refuted = walked + 1, refuted + theirs
                if ours != theirs:
                    wrong.append(f"{ours}, and should be {theirs}: {claim} by {evidence}")
    print(f"{walked} combinations, {refuted} refuted, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {walked}, such as\n" + "\n".join(wrong[:5])
    assert walked > least
    assert refuted > 100 / every


def _small(options: Mapping[str, Any]) -> dict[str, Any]:
    small = {"epsilon": 0.01, "mu": 0.01, "gamma": 0.2, "tpr": 0.05, "advantage": 0.01}
    found = {key: small.get(key, value) for key, value in options.items()}
    if "points" in found:
        found["points"] = ({"fpr": 1e-6, "tpr": 1e-5},)
    return found
