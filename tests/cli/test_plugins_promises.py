"""``dpspec plugins --check NAME``: every promise reported, and an exit code that a pipeline can act on."""

import dataclasses
from types import SimpleNamespace

import pytest

from dpspec.contract.catalog import BrokenPlugin
from dpspec.registry import loader
from dpspec.testing import inspection


@pytest.fixture
def promising(monkeypatch):
    def promise(*promises: inspection.Promise) -> None:
        monkeypatch.setattr(inspection, "inspect", lambda *asked: iter(promises))

    return promise


KEPT = inspection.Promise(provider="dataset digits", demand="It is listed.")


def test_a_kind_that_keeps_its_promises(dpspec):
    ended = dpspec("plugins", "--check", "declared")
    assert ended.code == 0, ended.out
    assert ended.out.startswith("dpspec: plugin builtin\n  ok    dataset declared: The plugin is not listed as broken")
    assert "its options have no default: records" in ended.out
    assert ended.out.rstrip().endswith("5 kept, 5 not tried")
    assert all(len(line) <= 80 for line in ended.out.splitlines())


def test_a_broken_promise_fails_and_says_what_was_found(dpspec, promising):
    broken = dataclasses.replace(KEPT, demand="It is light.", broken="it imports torch\n\x1b[31mand\ttabs")
    left_out = dataclasses.replace(KEPT, demand="It moves.", left_out="monotone names no key")
    promising(KEPT, broken, left_out)
    ended = dpspec("plugins", "--check", "digits")
    assert ended.code == 4
    assert "  FAILS dataset digits: It is light.\n          it imports torch\n          \\x1b[31mand" in ended.out
    assert "  -     dataset digits: It moves.\n          monotone names no key\n" in ended.out
    assert ended.out.rstrip().endswith("1 kept, 1 broken, 1 not tried")


@pytest.mark.parametrize(("asked", "says"), [("digist", "did you mean 'digits'?"), ("zzz", "see `dpspec plugins`")])
def test_an_unknown_name_is_a_usage_error(dpspec, asked, says):
    ended = dpspec("plugins", "--check", asked)
    assert (ended.code, ended.out) == (2, "")
    assert f"unknown plugin '{asked}'; {says}" in ended.err


def test_a_plugin_that_cannot_be_used_says_why(dpspec, monkeypatch):
    odd = BrokenPlugin(plugin="odd", distribution="dpspec-odd", version="2.0", reason="it speaks plugin API 2")
    ours = loader.load_registry()
    registry = SimpleNamespace(catalog=dataclasses.replace(ours.catalog, broken=(odd,)), manager=ours.manager)
    monkeypatch.setattr(loader, "load_registry", lambda: registry)
    for name in ("odd", "dpspec-odd"):
        ended = dpspec("plugins", "--check", name)
        assert ended.code == 4
        assert ended.out == "dpspec-odd 2.0: plugin odd cannot be used\n          it speaks plugin API 2\n"
