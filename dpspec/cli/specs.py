"""``dpspec validate``, ``show`` and ``schema``: problems of specs, resolved specs, and the schema."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpspec.cli.arguments import Overrides, SpecFiles, loaded_specs, report_skipped_files
from dpspec.cli.output import emit, note, results, wants_color, write_file
from dpspec.contract import Diagnostic
from dpspec.contract import Path as Place
from dpspec.contract.diagnostics import has_errors
from dpspec.errors import ExitCode
from dpspec.text import json_text, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpspec.contract import Spec
    from dpspec.contract.catalog import Catalog


def validate(specs: SpecFiles, overrides: Overrides = []) -> int:  # noqa: B006 - typer copies it
    """Check specs and show every problem at its place, without training or reading rows."""
    from dpspec.language.load import load_specs
    from dpspec.registry.loader import load_catalog

    catalog = load_catalog()
    loaded = load_specs(specs, catalog, overrides)
    report_skipped_files(loaded)
    problems: list[Diagnostic] = [*loaded.diagnostics]
    for spec in loaded.specs:
        problems.extend(_problems_of(spec, catalog))
    diagnostics = tuple(dict.fromkeys(problems))
    if diagnostics:
        from dpspec.language.diagnostics import render

        emit(render(diagnostics, color=wants_color(results()), sources=loaded.sources))
    if has_errors(diagnostics):
        return ExitCode.PLUGIN if loaded.missing_plugins else ExitCode.INVALID_SPEC
    audits, files = len(loaded.specs), len(loaded.files)
    cells = f" ({audits} audits with their matrix cells)" if audits != files else ""
    emit(f"{files} spec{'' if files == 1 else 's'} valid{cells}")
    return ExitCode.OK


def _problems_of(spec: Spec, catalog: Catalog) -> Iterator[Diagnostic]:
    """Bounds are computed only for suspect controls."""
    from dpspec.engine.preparing.prepare import prepare
    from dpspec.errors import SpecError

    try:
        prepared = prepare(spec, catalog)
    except SpecError as error:
        yield from error.diagnostics
        return
    yield from prepared.diagnostics
    suspect = any("refuted" in claim.expect and claim.refuted_by != "attack" for claim in spec.claims)
    if suspect and spec.audit is not None and not has_errors(prepared.diagnostics):
        from dpspec.engine.running.runner import controls_decided_by_theory  # imports numeric libraries

        yield from controls_decided_by_theory(prepared, catalog)


def show(
    specs: SpecFiles,
    overrides: Overrides = [],  # noqa: B006 - typer copies it
    origin: Annotated[bool, typer.Option("--origin", help="Add the source of each value as a comment.")] = False,
) -> int:
    """Print specs resolved, as YAML: one document for each cell of a matrix."""
    from dpspec.language.yaml_source import to_yaml
    from dpspec.registry.loader import load_catalog

    def comment(spec: Spec, path: Place) -> str:
        span = spec.origin.get(path)
        return plain(f"{span.file}:{span.line}:{span.column}") if span is not None else "default"

    with loaded_specs(specs, load_catalog(), overrides) as loaded:
        documents = [to_yaml(spec.to_json(), partial(comment, spec) if origin else None) for spec in loaded.specs]
        emit("---\n".join(documents))
    return ExitCode.OK


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write to a file instead of stdout.")
    ] = None,
    result: Annotated[bool, typer.Option("--result", help="The schema of results instead of specs.")] = False,
) -> int:
    """Print the JSON Schema of specs with all installed plugins, for editors."""
    if result:
        from dpspec.engine.results.codec import result_schema

        text = json.dumps(result_schema(), indent=2) + "\n"
    else:
        text = spec_schema()
    if output is None:
        emit(text)
    else:
        write_file(output, text)
        note(f"wrote {output}")
    return ExitCode.OK


def spec_schema() -> str:
    from dpspec.language.blocks import bundle
    from dpspec.registry.loader import load_catalog

    return json_text(json.dumps(bundle(load_catalog()), indent=2)) + "\n"
