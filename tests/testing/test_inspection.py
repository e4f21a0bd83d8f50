"""The inspection of an installed plugin: every promise, with what is broken."""

import dataclasses
from collections.abc import Iterator

from dpspec.registry.loader import resolve
from dpspec.testing.inspection import inspect


def test_it_tells_every_promise(demo):
    promises = list(inspect(demo, "mechanism", "conformdemo"))
    assert [p for p in promises if p.broken] == []
    assert promises[-1].left_out.startswith("only the plugin's own tests can")
    assert {p.provider for p in promises} == {"mechanism conformdemo"}
    assert promises[0].demand.startswith("The plugin is not listed as broken")


def test_it_tells_what_is_broken(with_audit):
    class Odd(resolve("dpspec_conformdemo:Conformdemo")):  # type: ignore[misc]
        def bound(self, spec: object, context: object) -> Iterator[object]:
            yield from (dataclasses.replace(found, source="") for found in super().bound(spec, context))

    promises = inspect(with_audit(Odd), "mechanism", "conformdemo")
    (broken,) = [p.broken for p in promises if p.demand.startswith("Findings, series, checks and evidence a")]
    assert "its source is empty" in broken


def test_a_dataset_gets_the_common_suite(demo):
    promises = list(inspect(demo, "dataset", "digits"))
    assert {p.provider for p in promises} == {"dataset digits"}
    assert not [p for p in promises if p.broken]
