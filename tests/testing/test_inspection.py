"""The inspection of an installed plugin: every promise, with what is broken."""

import dataclasses
from collections.abc import Iterator

import pytest
from support import wrong_votes
from support.votes_suite import registry

from dpspec.registry import loader
from dpspec.registry.loader import load_registry, resolve
from dpspec.registry.project import project_files
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


@pytest.mark.ci
def test_a_format_that_always_fails_is_broken(demo, monkeypatch):
    def crash(result: object, *, internal: bool) -> str:
        raise ZeroDivisionError("no page")

    monkeypatch.setattr("dpspec.reporters.markdown.render", crash)
    (broken,) = [promise.broken for promise in inspect(demo, "reporter", "markdown") if promise.broken]
    assert broken.startswith("it raises ZeroDivisionError: no page")


@pytest.mark.ci
def test_a_model_is_built_with_records_that_fit(demo, monkeypatch):
    promises = list(inspect(demo, "model", "linear"))
    assert not [promise for promise in promises if promise.broken or promise.left_out]
    monkeypatch.setattr("dpspec.models.architectures.Linear.parameters", lambda self: 1)
    broken = [promise.broken for promise in inspect(demo, "model", "linear") if promise.broken]
    assert broken == ["parameters() says 1, the module has 650"]


@pytest.mark.ci
@pytest.mark.parametrize("audit", [wrong_votes.SeedOfHash, wrong_votes.SeedOfTheDay])
def test_one_other_process_finds_seeds_of_hashes_and_clocks(audit):
    promises = inspect(registry(audit), "mechanism", "votes")
    (broken,) = [promise.broken for promise in promises if promise.demand.startswith("Processes with other hash seeds")]
    assert "use no hash(), no clock" in broken


@pytest.mark.ci
@pytest.mark.parametrize(("audit", "found"), [("Votes", False), ("SeedOfHash", True)])
def test_another_process_uses_the_files_of_a_project(audit, found, tmp_path, monkeypatch):
    module = "votes" if audit == "Votes" else "wrong_votes"
    (tmp_path / "mechanism.py").write_text(
        f"import dpspec.contract as dps\nfrom support.{module} import {audit} as Audit\n\nDPSPEC_API = 1\n\n\n"
        "@dps.hookimpl\ndef dpspec_mechanisms():\n    yield Audit.offer()\n"
    )
    monkeypatch.setattr(loader, "_project", ())
    loader.use_project(project_files([], [tmp_path / "mechanism.py"]))
    promises = inspect(load_registry(), "mechanism", "votes")
    (promise,) = [promise for promise in promises if promise.demand.startswith("Processes with other hash seeds")]
    assert (bool(promise.broken), promise.left_out) == (found, "")


@pytest.mark.parametrize(
    ("family", "kind", "reason"),
    [
        ("backend", "matrix", "it trains no Poisson batches"),
        pytest.param("mechanism", "recorded", "its example reads a recorded run", marks=pytest.mark.recorder),
    ],
)
def test_what_needs_more_than_the_suite_has_is_named_and_not_broken(family, kind, reason):
    promises = list(inspect(load_registry(), family, kind))
    assert [promise.broken for promise in promises if promise.broken] == []
    assert any(reason in promise.left_out for promise in promises)
