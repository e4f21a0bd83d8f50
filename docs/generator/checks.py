"""The checks of conformance and the channels of recordings."""

from __future__ import annotations

from dpspec.contract.sampling import SCHEMES
from dpspec.engine.recorded.channels import KINDS
from dpspec.sampling import scheme_named
from dpspec.stats.conformance.table import TABLE, Row
from generator.markdown import cell, tidy


def page() -> str:
    """Every check, and every channel."""
    lines = [
        "# Checks\n",
        "The conformance checks of a run that dpspec trains ([explanation](../explanation/conformance.md)). Sampling "
        "schemes in brackets restrict a check to such phases. A recording makes the reported checks, and more.\n",
        *(_entry(row) for row in TABLE),
        "\n## Channels of a recording\n",
        "The ways in which records can reach a released model, and the condition that excludes each.\n",
        *(f"- `{name}`: {cell(kind.text)}" for name, kind in KINDS.items()),
    ]
    return tidy("\n".join(lines))


def _entry(row: Row) -> str:
    names = [name for name in SCHEMES if row.name in scheme_named(name).checks]
    schemes = f" ({', '.join(names)})" if names else ""
    parts = {"Evidence": row.evidence, "Null": row.null, "Detects": row.detects}
    details = " ".join(f"*{name}*: {cell(text)}." for name, text in parts.items())
    return f"- `{row.assumption}`, {row.observed}: {cell(row.compares)}{schemes}. {details}"
