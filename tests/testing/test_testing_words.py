"""Plugins that are wrong in ways authors are: each is told what is wrong, where, and what to do, in one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from dpspec.contract import Check, Evidence, Finding, FrozenMap, Scope, Series
from dpspec.registry.foreign_code import resolve
from dpspec.registry.loader import Registry
from dpspec.testing import MechanismSuite, decreasing
from dpspec.testing.inspection import Promise, inspect

SMALL = ("audit.releases=300",)


@pytest.fixture
def told(with_audit: Callable[..., Registry], demo: Registry) -> Callable[..., str]:
    """Everything that the suite says of the scaffolded plugin with another audit."""

    def tell(audit: type | None = None, **fields: object) -> str:
        registry = with_audit(audit, **fields)
        found = {
            "kind": "conformdemo",
            "registry": classmethod(lambda cls: registry),
            "overrides": SMALL,
            "monotone": {"mechanism.scale": decreasing(0.5, 2.0)},
        }
        suite = type("Suite", (MechanismSuite,), found)()
        said = []
        for name in [n for n in dir(suite) if n.startswith("test_") and "imports" not in n and "light" not in n]:
            try:
                getattr(suite, name)()
            except AssertionError as error:
                said.append(str(error))
        return "\n".join(said)

    return tell


@pytest.fixture
def base(demo: Registry) -> type:
    return resolve("dpspec_conformdemo.audit:ConformdemoAudit")  # type: ignore[return-value]


def bounding(base: type, change: Callable[[Finding], object]) -> type:
    class Odd(base):
        def bound(self, spec: object, context: object) -> Iterator[object]:
            yield from map(change, super().bound(spec, context))

    return Odd


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: dataclasses.replace(f, value=1.0 / f.value), "at delta 0.0, group_size 1 is not decreasing: 0.5 at"),
        (lambda f: dataclasses.replace(f, value=f.value / 3.0), "theory, implementation or attack is wrong"),
        (
            lambda f: dataclasses.replace(f, bound="lower"),
            "claim 'one' needs an upper bound of epsilon, which is",
        ),
        (lambda f: dataclasses.replace(f, bound="uper"), "it.bound must be one of upper, lower, estimate"),
        (lambda f: dataclasses.replace(f, source=" "), "the audit yields finding 'epsilon': its source is empty"),
        (
            lambda f: dataclasses.replace(f, value=float("nan")),
            "its value is NaN: if nothing can be computed, yield",
        ),
        (lambda f: dataclasses.replace(f, quantity="epsilonn"), "no quantity 'epsilonn'; did you mean 'epsilon'?"),
        (lambda f: dataclasses.replace(f, rigor="statistical"), "it is statistical and states no confidence"),
        (
            lambda f: dataclasses.replace(f, scope=Scope(adjacency="replace-one")),
            "does not apply to it: its adjacency is 'replace-one', and the claim's 'add-remove'",
        ),
        (lambda f: dataclasses.replace(f, scope=Scope(data="some")), "its scope's data is 'some' (valid: all, coll"),
        (lambda f: {"epsilon": f.value}, "yields a dict, not a Finding, Series, Check or Evidence"),
    ],
)
def test_bounds_that_are_wrong(told, base, change, says):
    assert says in told(bounding(base, change))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("check", "check raises ZeroDivisionError: of all things (testing/test_testing_words.py:"),
        ("trials", "the run raises ZeroDivisionError: of all things (testing/test_testing_words.py:"),
    ],
)
def test_steps_that_raise(told, base, step, says):
    def fails(*arguments: object) -> object:
        raise ZeroDivisionError("of all things")

    fails.__name__ = fails.__qualname__ = step
    code = fails.__code__.replace(co_name=step)
    fails.__code__ = code
    said = told(type("Odd", (base,), {step: fails}))
    assert says in said
    assert "the example does not run to its end: another test of this suite says why" in said


def test_a_descriptor_that_cannot_travel(told):
    summary = type("Text", (str,), {})("a local class")
    assert "cannot be pickled, which other processes need" in told(summary=summary)


def test_evidence_and_checks_that_are_wrong(told, base):
    scope = Scope(data="this", pipeline="executed")

    class Odd(base):
        def conclude(self, spec, trials):
            yield from super().conclude(spec, trials)
            yield Check(assumption="noise-scale", test="", p_value=0.5, observed="measured")
            statistics = FrozenMap({"trials": 5, "successes": "5"})
            yield Evidence(
                id="e", kind="binomial", statistics=statistics, scope=scope, method="m", source="s", quantity="q"
            )

    said = told(Odd)
    assert "check 'noise-scale': its test is empty" in said
    assert "evidence 'e' of kind 'binomial' lacks the counts successes" in said


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ([1], "the series 's', which cannot be kept: its columns must be lists of equal length, got [1, 2]"),
        ([1, 2], "series 's': its columns y have no unit"),
    ],
)
def test_series_that_are_wrong(told, base, column, says):
    class Odd(base):
        def bound(self, spec, context):
            yield from super().bound(spec, context)
            yield Series(
                name="s",
                title="s",
                columns=FrozenMap({"x": [1, 2], "y": column}),
                units=FrozenMap({"x": ""}),
                rigor="theorem",
                source="here",
            )

    assert says in told(Odd)


def test_the_inspection_tells_every_promise(demo):
    promises = list(inspect(demo, "dpspec-conformdemo", "conformdemo"))
    assert [p for p in promises if p.broken] == []
    assert promises[-1].left_out.startswith("only the plugin's own tests can")
    assert {p.provider for p in promises} == {"mechanism conformdemo"}
    assert promises[0].demand.startswith("The plugin is not listed as broken")


def test_the_inspection_tells_what_is_broken(with_audit, base):
    registry = with_audit(bounding(base, lambda f: dataclasses.replace(f, source="")))
    broken: list[Promise] = [p for p in inspect(registry, "dpspec-conformdemo", "conformdemo") if p.broken]
    assert "Findings, series, checks and evidence a" in [p.demand[:39] for p in broken]
    assert all("raises" not in p.broken for p in broken if p.demand.startswith("Findings"))


def test_the_inspection_of_one_kind_leaves_the_others_alone(demo):
    promises = list(inspect(demo, "dpspec", "builtin", "digits"))
    assert {p.provider for p in promises} == {"dataset digits"}
    assert not [p for p in promises if p.broken]
