"""Plugins broken in every way that was met: each is listed with its reason, and the good ones keep working."""

import copy
import dataclasses
import logging
import sys
from importlib import import_module
from types import ModuleType

import pytest

from dpspec.cli.app import run_to_exit_code
from dpspec.contract import Backend, Dataset, Mechanism, Model, Reporter, Schemas
from dpspec.contract.attacks import Canary, Score
from dpspec.contract.catalog import BrokenPlugin, Offered
from dpspec.contract.events import RunFinished
from dpspec.errors import ExitCode, PluginError
from dpspec.registry import loader
from dpspec.registry.loader import FAMILIES, Registry, build, discover, mark, problems, raised_by, resolve

GOOD = """
import dpspec.contract as dps
DPSPEC_API = 1
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}

@dps.hookimpl
def dpspec_datasets():
    yield dps.Dataset(kind="good-rows", summary="Rows.", schema=SCHEMA, source="good.data:Rows")

@dps.hookimpl
def dpspec_models():
    return [dps.Model(kind="good-model", summary="A model.", schema=SCHEMA, factory="good.model:Model")]
"""

HEAD = """
import dpspec.contract as dps
DPSPEC_API = 1
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
def rows(kind="x-rows", **changes):
    values = dict(kind=kind, summary="Rows.", schema=SCHEMA, source="x.data:Rows")
    return dps.Dataset(**{**values, **changes})
"""


#: The beginning of a hook, up to its arguments.
ROWS = HEAD + "@dps.hookimpl\ndef dpspec_datasets"

#: What is really installed where the tests run, dpspec itself included: no part of what is tested here.
REAL = {candidate.distribution for candidate in discover()[0]}


def load() -> Registry:
    candidates, unreadable = discover()
    return build([c for c in candidates if c.distribution not in REAL], unreadable)


def only_broken(registry: Registry, distribution: str) -> BrokenPlugin:
    (found,) = [b for b in registry.catalog.broken if b.distribution == distribution]
    return found


def test_a_good_plugin_is_offered_with_its_distribution(install):
    install("dpspec-good", {"good": GOOD}, version="2.3")
    registry = load()
    assert registry.catalog.broken == ()
    offered = registry.catalog.datasets["good-rows"]
    assert (offered.plugin, offered.distribution, offered.version) == ("good", "dpspec-good", "2.3")
    assert offered.provider.summary == "Rows."
    assert list(registry.catalog.models) == ["good-model"]
    assert registry.module("dpspec-good", "good").DPSPEC_API == 1


BROKEN = {
    "missing module": ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all' (site/"),
    "base exception": ("class Odd(BaseException): pass\nraise Odd('a\\nb\\x1b[31m')\n", "Odd: a b\\x1b[31m"),
    "no api": ("x = 1\n", "DPSPEC_API is missing; this dpspec supports 1"),
    "other api": ("DPSPEC_API = 2\n", "plugin API 2 is not supported; this dpspec supports 1"),
    "no hook": ("DPSPEC_API = 1\n", "no hook is implemented: mark hooks with @dpspec.contract.hookimpl"),
    "misspelt": (
        HEAD + "@dps.hookimpl\ndef dpspec_mechanism(): return []\n",
        "unknown hook 'dpspec_mechanism' in plugin",
    ),
    "unknown argument": (
        ROWS + "(spec): yield rows()\n",
        "Argument(s) {'spec'} are declared in the hookimpl but can not be found in the hookspec",
    ),
    "raises": (
        ROWS + "(): raise RuntimeError('no licence')\n",
        "dpspec_datasets: RuntimeError: no licence (site/broken.py:",
    ),
    "raises late": (
        ROWS + "():\n    yield rows()\n    raise SystemExit\n",
        "dpspec_datasets: SystemExit (site/broken.py:",
    ),
    "not a provider": (ROWS + "(): yield {'kind': 'x'}\n", "dpspec_datasets offers a dict, not a Dataset"),
    "twice": (ROWS + "(): return [rows(), rows()]\n", "dataset 'x-rows' is offered twice"),
    "bad reference": (
        ROWS + "(): yield rows(source='x.data.Rows')\n",
        "dataset 'x-rows': source must name code as 'package.module:Attribute', got 'x.data.Rows'",
    ),
}


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.replace(" ", "-"))
def test_a_broken_plugin_is_listed_and_leaves_nothing_behind(install, case):
    text, reason = BROKEN[case]
    install("dpspec-good", {"good": GOOD})
    install("dpspec-broken", {"broken": text}, version="0.7")
    registry = load()
    broken = only_broken(registry, "dpspec-broken")
    assert reason in broken.reason
    assert "\n" not in broken.reason
    assert (broken.plugin, broken.version) == ("broken", "0.7")
    assert list(registry.catalog.datasets) == ["good-rows"]
    assert [name for name, _ in registry.manager.list_name_plugin()] == ["dpspec-good:good"]


def test_a_conflict_names_both_and_takes_only_the_contested_kind(install):
    install("dpspec-good", {"good": GOOD}, version="1.1")
    install("dpspec-rival", {"rival": ROWS + "(): yield rows('good-rows')\n"})
    registry = load()
    assert list(registry.catalog.datasets) == []
    assert list(registry.catalog.models) == ["good-model"]
    good, rival = only_broken(registry, "dpspec-good"), only_broken(registry, "dpspec-rival")
    assert good.kinds == rival.kinds == ("good-rows",)
    assert "dataset 'good-rows' is also offered by dpspec-rival 1.0 (rival)" in good.reason
    assert "dataset 'good-rows' is also offered by dpspec-good 1.1 (good)" in rival.reason
    assert "neither is used" in good.reason


def test_what_dpspec_itself_offers_cannot_be_taken_over(install):
    install("dpspec-rival", {"rival": ROWS + "(): yield rows('good-rows')\n"})
    install("dpspec-third", {"third": ROWS + "(): yield rows('good-rows')\n"})
    install("DPspec", {"ours": GOOD})
    candidates, _ = discover()
    registry = build([c for c in candidates if c.plugin in ("ours", "rival", "third")])
    assert registry.catalog.datasets["good-rows"].plugin == "ours"
    assert [b.distribution for b in registry.catalog.broken] == ["dpspec-rival", "dpspec-third"]
    for broken in registry.catalog.broken:
        assert broken.reason == "dataset 'good-rows' is also offered by DPspec 1.0 (ours), which keeps it"


def test_kinds_of_a_plugin_that_fails_late_are_known(install):
    late = "@dps.hookimpl\ndef dpspec_models(): raise ValueError\n"
    install("dpspec-late", {"late": ROWS + "(): yield rows()\n" + late})
    registry = load()
    assert only_broken(registry, "dpspec-late").kinds == ("x-rows",)
    assert dict(registry.catalog.datasets) == {}


def test_two_entry_points_on_one_module(install):
    install("dpspec-a", {"shared": GOOD}, {"one": "shared", "two": "shared"})
    registry = load()
    assert registry.catalog.datasets["good-rows"].plugin == "one"
    assert only_broken(registry, "dpspec-a").reason.startswith("shared is already registered")


def test_entry_points_that_cannot_be_read(install, tmp_path):
    install("dpspec-good", {"good": GOOD})
    install("dpspec-odd", {}, {"x": "y"})
    (tmp_path / "site" / "dpspec_odd-1.0.dist-info" / "entry_points.txt").write_text("[dpspec]\nno equals sign\n")
    registry = load()
    assert "its entry points cannot be read" in only_broken(registry, "dpspec-odd").reason
    assert list(registry.catalog.datasets) == ["good-rows"]


def test_of_two_copies_the_first_on_the_path_counts(install, tmp_path, monkeypatch):
    install("dpspec-good", {"good": GOOD}, version="1.0")
    second = tmp_path / "second" / "dpspec_good-9.9.dist-info"
    second.mkdir(parents=True)
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: dpspec_good\nVersion: 9.9\n")
    (second / "entry_points.txt").write_text("[dpspec]\ngood = good\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(second.parent)])
    registry = load()
    assert registry.catalog.broken == ()
    assert registry.catalog.datasets["good-rows"].version == "1.0"


@pytest.fixture
def installed_registry(monkeypatch):
    def use() -> Registry:
        registry = load()
        monkeypatch.setattr(loader, "load_registry", lambda: registry)
        monkeypatch.setattr(loader, "_noted", set())
        return registry

    return use


def test_observers_see_events_and_cannot_stop_anything(install, installed_registry, monkeypatch):
    seen = HEAD + "seen = []\n@dps.hookimpl\ndef dpspec_event(event): seen.append(event)\n"
    install("dpspec-a-bad", {"bad_observer": HEAD + "@dps.hookimpl\ndef dpspec_event(event): raise SystemExit(9)\n"})
    install("dpspec-b-seen", {"seen": seen})
    install("dpspec-c-blind", {"blind": HEAD + "calls = []\n@dps.hookimpl\ndef dpspec_event(): calls.append(1)\n"})
    registry = installed_registry()
    event = RunFinished(complete=True)
    warned = []
    monkeypatch.setattr(logging.getLogger("dpspec.registry.loader"), "handle", warned.append)
    loader.notify(event)
    loader.notify(event)
    assert registry.module("dpspec-b-seen", "seen").seen == [event, event]
    assert registry.module("dpspec-c-blind", "blind").calls == [1, 1]
    (record,) = warned
    assert "dpspec-a-bad:bad_observer" in record.getMessage()
    assert "SystemExit: 9" in record.getMessage()


def test_ctrl_c_in_an_observer_is_not_swallowed(install, installed_registry):
    install("dpspec-x", {"interrupting": HEAD + "@dps.hookimpl\ndef dpspec_event(): raise KeyboardInterrupt\n"})
    installed_registry()
    with pytest.raises(KeyboardInterrupt):
        loader.notify(RunFinished(complete=True))


def test_resolve_gives_the_code_or_a_plugin_error(install):
    install("dpspec-x", {"x_code": "class Outer:\n    inner = 7\n", "x_broken": "import nowhere_to_be_found\n"})
    assert resolve("x_code:Outer.inner") == 7
    with pytest.raises(PluginError, match=r"cannot load x_broken:Audit: ModuleNotFoundError: .*nowhere_to_be_found"):
        resolve("x_broken:Audit")
    with pytest.raises(PluginError, match="cannot load x_code:Inner: AttributeError"):
        resolve("x_code:Inner")
    with pytest.raises(PluginError, match=r"'x_code' does not name code as 'package.module:Attribute'"):
        resolve("x_code")


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("their_audit")
    exec("import sys\ndef fail():\n    1 / 0\ndef leave():\n    sys.exit(0)\n", module.__dict__)
    model = Model(kind="x", summary="x", schema={}, factory="their_audit:fail")
    offered = Offered(provider=model, plugin="x", distribution="dpspec-theirs", version="1.0")
    catalog = dataclasses.replace(loader.load_catalog(), models={"x": offered})
    monkeypatch.setattr(loader, "load_catalog", lambda: catalog)
    return module


def test_the_name_survives_another_process(theirs: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        theirs.fail()
    assert raised_by(copy.copy(caught.value)) == ""  # a copy has no traceback, like an error of another process
    mark(caught.value)
    assert raised_by(copy.copy(caught.value)) == "dpspec-theirs"


def test_a_plugin_that_leaves_the_program_is_no_success(theirs: ModuleType, capsys) -> None:
    assert run_to_exit_code(theirs.leave, []) == 4
    assert "this is a bug in plugin dpspec-theirs: SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize(
    "statement",
    ["from dpspec.stats import thresholds", "import dpspec.gone", "import dpspec.stats\n    dpspec.stats.thresholds"],
)
def test_a_plugin_that_asks_for_a_missing_name_of_dpspec_is_refused_in_one_line(theirs, capsys, statement) -> None:
    """A plugin of version 0.2.0 may import an alias that 0.3.0 removed; it got a traceback and was called a bug."""
    exec(f"def plan():\n    {statement}\n", theirs.__dict__)
    assert run_to_exit_code(theirs.plan, []) == ExitCode.PLUGIN
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: plugin dpspec-theirs was written for another version of dpspec than ")
    assert ("gone" if "gone" in statement else "thresholds") in line


@pytest.mark.parametrize("statement", ["import gone", "from math import gone", "import math\n    math.gone", "1 .gone"])
def test_a_plugin_that_asks_others_for_a_missing_name_has_a_bug(theirs, capsys, statement) -> None:
    exec(f"def plan():\n    {statement}\n", theirs.__dict__)
    assert run_to_exit_code(theirs.plan, []) == ExitCode.PLUGIN
    assert "this is a bug in plugin dpspec-theirs: " in capsys.readouterr().err


def test_a_missing_name_that_dpspec_asks_for_is_its_own_bug(capsys) -> None:
    def command() -> None:
        import_module("dpspec.gone")

    assert run_to_exit_code(command, []) == ExitCode.BUG
    assert "this is a bug in dpspec: ModuleNotFoundError" in capsys.readouterr().err


def fragment(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


SCHEMA = fragment(size={"type": "integer", "description": "How many."})
MECHANISM = Mechanism(
    kind="demo",
    summary="A demo.",
    schemas=Schemas(mechanism=SCHEMA, claims={"approx-dp": fragment(margin={"description": "m", "type": "number"})}),
    claims=frozenset({"approx-dp"}),
    audit="demo.audit:Audit",
    example="dpspec: 1\n",
)
DESCRIPTORS = {
    "mechanism": MECHANISM,
    "dataset": Dataset(kind="rows", summary="Rows.", schema=SCHEMA, source="a.b:C"),
    "model": Model(kind="net", summary="A net.", schema=SCHEMA, factory="a.b:C"),
    "backend": Backend(
        kind="mine", summary="Mine.", schema=SCHEMA, capabilities=frozenset({"iterates"}), trainer="a:B"
    ),
    "reporter": Reporter(format="pdf", summary="A report.", render="a.b:render", suffix=".pdf"),
    "canary": Canary(kind="far", summary="Far.", space="input", make="a.b:make"),
    "score": Score(kind="near", summary="Near.", score="a.b:score"),
}


def found(provider):
    (family,) = [f for f in FAMILIES if isinstance(provider, f.type)]
    return problems(provider, family)


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_good_descriptors_have_no_problem(name):
    assert found(DESCRIPTORS[name]) == []


def test_core_keys_may_be_narrowed():
    narrowed = fragment(adjacency={"enum": ["add-remove"], "description": "Only this."})
    schemas = Schemas(mechanism=SCHEMA, threat_model=narrowed)
    assert found(dataclasses.replace(MECHANISM, schemas=schemas)) == []


CLASH = Schemas(mechanism=fragment(steps={"type": "integer", "description": "s"}))


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("mechanism", {"trial_revision": 0}, "trial_revision must be an integer of at least 1, got 0"),
        ("mechanism", {"claims": frozenset({"gdp"})}, "schemas.claims.approx-dp: is not among its claims (gdp)"),
        ("mechanism", {"audit": "demo.audit"}, "audit must name code as 'package.module:Attribute'"),
        ("mechanism", {"schemas": CLASH}, "schemas.mechanism.properties.steps: this key belongs to core"),
        ("dataset", {"schema": fragment(kind={})}, "schema.properties.kind: this key belongs to core"),
        ("backend", {"trainer": ":B"}, "trainer must name code"),
        ("backend", {"capabilities": frozenset({"iterate"})}, "unknown capabilities 'iterate' (valid: gradient-"),
        ("canary", {"limit": "a.b"}, "limit must name code"),
    ],
)
def test_problems_are_named(name, changes, problem):
    texts = found(dataclasses.replace(DESCRIPTORS[name], **changes))
    assert any(problem in text for text in texts), texts


def test_a_mechanism_without_steps_may_use_the_word():
    assert found(dataclasses.replace(MECHANISM, schemas=CLASH, steps=False, claims=frozenset({"pure-dp"}))) == []


@pytest.mark.parametrize("schema", [None, {"type": "object"}, {"type": "array", "properties": {}}])
def test_a_fragment_is_the_schema_of_a_mapping(schema):
    (problem,) = found(dataclasses.replace(DESCRIPTORS["dataset"], schema=schema))
    assert "schema must be a JSON Schema with type 'object' and a mapping 'properties'" in problem
