"""The inspection of an installed plugin: every promise, with what is broken."""

import dataclasses
from collections.abc import Iterator

import pytest

from dpspec.registry.loader import resolve
from dpspec.testing.inspection import inspect


@pytest.mark.ci
def test_it_tells_every_promise(demo):
    promises = list(inspect(demo, "mechanism", "conformdemo"))
    assert [p for p in promises if p.broken] == []
    left_out = {p.left_out.partition(":")[0] for p in promises if p.left_out}
    assert left_out == {
        "only the plugin's own tests can",
        "only the author knows two neighbors",
        "release() returns no `values` of the form of the `neighbors`' outputs",
    }
    assert promises[-1].demand == "How wrong a bound would still pass"
    assert "would pass this attack" in promises[-1].remark
    assert {p.provider for p in promises} == {"mechanism conformdemo"}
    assert promises[0].demand.startswith("The plugin is not listed as broken")


@pytest.mark.ci
def test_it_tells_what_is_broken(with_audit):
    class Odd(resolve("dpspec_conformdemo:Conformdemo")):  # type: ignore[misc]
        def bound(self, spec: object, context: object) -> Iterator[object]:
            yield from (dataclasses.replace(found, source="") for found in super().bound(spec, context))

    promises = inspect(with_audit(Odd), "mechanism", "conformdemo")
    (broken,) = [p.broken for p in promises if p.demand.startswith("Findings, series, checks and evidence a")]
    assert "its source is empty" in broken


def test_a_format_that_always_fails_is_broken(demo, monkeypatch):
    def crash(result: object, *, internal: bool) -> str:
        raise ZeroDivisionError("no page")

    monkeypatch.setattr("dpspec.reporters.markdown.render", crash)
    (broken,) = [promise.broken for promise in inspect(demo, "reporter", "markdown") if promise.broken]
    assert broken.startswith("it raises ZeroDivisionError: no page")


def test_a_model_is_built_with_records_that_fit(demo, monkeypatch):
    promises = list(inspect(demo, "model", "linear"))
    assert not [promise for promise in promises if promise.broken or promise.left_out]
    monkeypatch.setattr("dpspec.models.architectures.Linear.parameters", lambda self: 1)
    broken = [promise.broken for promise in inspect(demo, "model", "linear") if promise.broken]
    assert broken == ["parameters() says 1, the module has 650"]
