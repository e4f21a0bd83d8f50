"""The checks of conformance and the channels of recordings."""

from __future__ import annotations

from dpspec.engine.recorded.channels import KINDS
from dpspec.stats.conformance.table import TABLE
from generator.markdown import cell, table, tidy


def page() -> str:
    """Every check, and every channel."""
    checks = [
        (
            f"`{row.assumption}`",
            row.observed,
            cell(row.compares) + (f" ({', '.join(row.schemes)})" if row.schemes else ""),
            cell(row.evidence),
            cell(row.null),
            cell(row.detects),
        )
        for row in TABLE
    ]
    lines = [
        "# Checks\n",
        "The conformance checks of a run that dpspec trains ([explanation](../explanation/conformance.md)). Rows with "
        "sampling schemes in brackets apply to each phase with such a scheme. A recording makes the reported "
        "checks, and further ones.\n",
        *table(("assumption", "observed", "compares", "evidence", "null distribution", "detects"), checks),
        "\n## Channels of a recording\n",
        "The ways in which records can reach a released model, and the condition that excludes each.\n",
        *table(("channel", "condition"), [(f"`{name}`", cell(kind.text)) for name, kind in KINDS.items()]),
    ]
    return tidy("\n".join(lines))
