"""Arguments and options that several commands share, so that each means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

SpecFiles: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="SPEC", help="Spec files (YAML), or folders of them.", show_default=False)
]

ResultFiles: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULT", help="Results (JSON or HTML); several are shown as one report.", show_default=False
    ),
]

ResultFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RESULT", help="A result: JSON, or a report in HTML.", show_default=False)
]

Overrides: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one value of every spec, e.g. mechanism.steps=100 or claims.family.epsilon=40; repeatable.",
        show_default=False,
    ),
]

StorePlace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH|URL",
        help="Where trials are kept between runs: a folder, or s3://, gs://, ... (any that fsspec knows).",
        show_default=True,
    ),
]

Internal: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--internal",
        help="Keep values that speak of the data or of single records; they are left out and counted otherwise.",
    ),
]

DEFAULT_STORE = ".dpspec/store"
