"""dpspec's own providers as light values: the mechanism ``selection``, and all other families."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import dpspec.contract as dps
from dpspec.contract.attacks import AttackMethod, Canary, Score
from dpspec.contract.fragments import array, block
from dpspec.data import arrays, fileless, image_folder, table_files, tokens
from dpspec.language.blocks import CELL_BLOCKS, CLAIM_KIND, SELECTION, core
from dpspec.models import architectures
from dpspec.stats.attacks.methods import OWN_METHODS
from dpspec.training.providers import BACKENDS, CANARIES, LOSSES, SCORES

DATASETS = (
    table_files.CSV,
    fileless.DECLARED,
    fileless.DIGITS,
    arrays.IDX,
    arrays.NPZ,
    image_folder.IMAGES,
    table_files.PARQUET,
    fileless.SYNTHETIC,
    tokens.SYNTHETIC,
    tokens.TOKENS,
)

_OF_A_CELL = {
    "mechanism": "The mechanism of the cell, as in a spec.",
    "model": "The architecture of the cell.",
    "training": "The training of the cell; default: the spec's.",
    "threat_model": "The threat model of the cell, with the keys of its mechanism; default: the spec's.",
}

_CELL = {key: {"type": "object", "description": _OF_A_CELL[key]} for key in CELL_BLOCKS}

_SCHEMA = block(
    None,
    ["cells"],
    cells=array(
        "The runs whose best result is published, each with all parameters of its privacy.",
        block("One of the runs.", ["mechanism"], **_CELL),
        least=1,
        most=1000,
    ),
    tries=core("spec")["properties"]["tuning"]["properties"]["tries"],
)

SELECTION_MECHANISM = dps.Mechanism(
    kind=SELECTION,
    summary="The best of several runs on the same data, chosen by their releases and published",
    description="choosing the best of several trainings",
    schemas=dps.Schemas(mechanism=_SCHEMA),
    claims=frozenset({CLAIM_KIND}),
    audit="dpspec.engine.selection:SelectionAudit",
    example=Path(__file__).with_name("selection.yaml").read_text(encoding="utf-8"),
    steps=False,
    units=frozenset({"record", "user"}),
    missing=True,
    tokens=True,
    chosen_weights=True,
)


EXECUTORS = (
    dps.Executor(
        kind="local",
        summary="Processes of this machine, one per GPU, or as many as cores and memory allow",
        pool="dpspec.executors.processes:open_pool",
    ),
    dps.Executor(
        kind="ray",
        summary="Tasks of a Ray cluster; --ray-address says which",
        pool="dpspec.executors.ray_cluster:open_pool",
    ),
)


DPSPEC_API = dps.HOOK_API

#: The formats of reports: name, summary, function in ``dpspec.reporters``, and suffix of files.
_FORMATS = (
    ("json", "The whole result, of the published schema dpspec/result/v2", "data_files:render_json", ".json"),
    ("text", "The output of the terminal without colors", "terminal:render", ".txt"),
    ("markdown", "A report for pull requests and wikis", "markdown:render", ".md"),
    ("html", "One self-contained page with figures, tables and the whole result inside", "page:render", ".html"),
    ("statement", "A privacy statement to publish, after NIST SP 800-226", "statement:render", ".md"),
    ("statement-json", "The privacy statement as JSON, for registries and catalogs", "statement:render_json", ".json"),
    (
        "registry",
        "YAML for the OpenDP Deployments Registry, to complete",
        "deployments_registry:render",
        ".yaml",
    ),
    ("junit", "JUnit XML for continuous integration: a suite per audit, a case per claim", "ci:render_junit", ".xml"),
    ("sarif", "SARIF 2.1.0 for code scanning: a result at each unexpected verdict", "ci:render_sarif", ".sarif"),
    ("github", "GitHub workflow commands: an annotation at each unexpected verdict", "ci:render_github", ".txt"),
    ("csv", "One row per claim, for spreadsheets and data frames", "data_files:render_csv", ".csv"),
)

#: The formats with all numbers of a result: with the conformance in each, for programs.
_WITH_ALL_NUMBERS = frozenset({"json", "html", "csv"})

REPORTERS = tuple(
    dps.Reporter(
        format=name,
        summary=summary,
        render=f"dpspec.reporters.{render}",
        suffix=suffix,
        void_bounds=name in _WITH_ALL_NUMBERS,
    )
    for name, summary, render, suffix in _FORMATS
)


@dps.hookimpl
def dpspec_mechanisms() -> Iterable[dps.Mechanism]:
    return (SELECTION_MECHANISM,)


@dps.hookimpl
def dpspec_datasets() -> Iterable[dps.Dataset]:
    return DATASETS


@dps.hookimpl
def dpspec_models() -> Iterable[dps.Model]:
    return architectures.MODELS


@dps.hookimpl
def dpspec_backends() -> Iterable[dps.Backend]:
    return BACKENDS


@dps.hookimpl
def dpspec_reporters() -> Iterable[dps.Reporter]:
    return REPORTERS


@dps.hookimpl
def dpspec_executors() -> Iterable[dps.Executor]:
    return EXECUTORS


@dps.hookimpl
def dpspec_attacks() -> Iterable[Canary | Score]:
    return (*CANARIES, *SCORES)


@dps.hookimpl
def dpspec_losses() -> Iterable[dps.Loss]:
    return LOSSES


@dps.hookimpl
def dpspec_attack_methods() -> Iterable[AttackMethod]:
    return OWN_METHODS
