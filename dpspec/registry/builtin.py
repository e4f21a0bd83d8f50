"""The providers of dpspec itself, registered by its own entry point as for a third party."""

from __future__ import annotations

from collections.abc import Iterable

from dpspec.contract import HOOK_API, Backend, Dataset, Executor, Mechanism, Model, Reporter, hookimpl
from dpspec.contract.attacks import Canary, Score
from dpspec.data import arrays, fileless, huggingface, images, table_files, tokens
from dpspec.models import architectures
from dpspec.registry.recorded_schedule import RECORDED_MECHANISM
from dpspec.registry.selection import SELECTION_MECHANISM
from dpspec.training.providers import BACKENDS, CANARIES, SCORES

DATASETS = (
    fileless.BREAST_CANCER,
    table_files.CSV,
    fileless.DECLARED,
    fileless.DIGITS,
    huggingface.DATASET,
    arrays.IDX,
    images.DATASET,
    arrays.NPZ,
    table_files.PARQUET,
    fileless.SYNTHETIC,
    tokens.SYNTHETIC,
    tokens.TOKENS,
)

EXECUTORS = (
    Executor(
        kind="local",
        summary="Processes of this machine, one per GPU, or as many as cores and memory allow",
        pool="dpspec.executors.processes:open_pool",
    ),
    Executor(
        kind="ray",
        summary="Tasks of a Ray cluster; --ray-address says which",
        pool="dpspec.executors.ray_cluster:open_pool",
    ),
)


DPSPEC_API = HOOK_API

REPORTERS = (
    Reporter(
        format="json",
        summary="The whole result, of the published schema dpspec/result/v2",
        render="dpspec.reporters.data_files:render_json",
        suffix=".json",
    ),
    Reporter(
        format="text",
        summary="What the terminal shows, without colours",
        render="dpspec.reporters.terminal:render",
        suffix=".txt",
    ),
    Reporter(
        format="markdown",
        summary="A report for pull requests and wikis",
        render="dpspec.reporters.markdown:render",
        suffix=".md",
    ),
    Reporter(
        format="html",
        summary="One self-contained page with figures, tables and the whole result inside",
        render="dpspec.reporters.page:render",
        suffix=".html",
    ),
    Reporter(
        format="statement",
        summary="A privacy statement to publish, along the blocks of NIST SP 800-226",
        render="dpspec.reporters.statement:render",
        suffix=".md",
    ),
    Reporter(
        format="statement-json",
        summary="The privacy statement as JSON",
        render="dpspec.reporters.statement:render_json",
        suffix=".json",
    ),
    Reporter(
        format="registry",
        summary="YAML for the OpenDP Differential Privacy Deployments Registry, to be completed by hand",
        render="dpspec.reporters.statement:render_registry",
        suffix=".yaml",
    ),
    Reporter(
        format="junit",
        summary="JUnit XML for continuous integration: a suite per audit, a case per claim",
        render="dpspec.reporters.ci:render_junit",
        suffix=".xml",
    ),
    Reporter(
        format="sarif",
        summary="SARIF 2.1.0 for code scanning: a result at the line of every claim that came out wrong",
        render="dpspec.reporters.ci:render_sarif",
        suffix=".sarif",
    ),
    Reporter(
        format="github",
        summary="GitHub workflow commands: an annotation at the line of every claim that came out wrong",
        render="dpspec.reporters.ci:render_github",
        suffix=".txt",
    ),
    Reporter(
        format="csv",
        summary="One row per claim, for spreadsheets and data frames",
        render="dpspec.reporters.data_files:render_csv",
        suffix=".csv",
    ),
)


@hookimpl
def dpspec_mechanisms() -> Iterable[Mechanism]:
    return (SELECTION_MECHANISM, RECORDED_MECHANISM)


@hookimpl
def dpspec_datasets() -> Iterable[Dataset]:
    return DATASETS


@hookimpl
def dpspec_models() -> Iterable[Model]:
    return architectures.MODELS


@hookimpl
def dpspec_backends() -> Iterable[Backend]:
    return BACKENDS


@hookimpl
def dpspec_reporters() -> Iterable[Reporter]:
    return REPORTERS


@hookimpl
def dpspec_executors() -> Iterable[Executor]:
    return EXECUTORS


@hookimpl
def dpspec_attacks() -> Iterable[Canary | Score]:
    return (*CANARIES, *SCORES)
