"""The report format ``records-csv``: one row for every audited record, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from typing import Any

#: What stands in place of values that a report may not show.
LEFT_OUT = "# values per record are left out: give --internal to have them\n"


def render(result: Any, *, internal: bool = False) -> str:
    """CSV text with a header: the table ``records`` of all audits of a result, one below the other.

    Values per record speak of the rows; without ``internal`` there is but a line that says so.
    """
    if not internal:
        return LEFT_OUT
    tables = [
        (audit.name, series.columns) for audit in result.audits for series in audit.series if series.name == "records"
    ]
    names = list(dict.fromkeys(name for _, columns in tables for name in columns))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["audit", *names])
    for audit, columns in tables:
        gone: list[object] = [""] * len(columns["record"])
        writer.writerows(zip([audit] * len(gone), *(columns.get(name, gone) for name in names), strict=True))
    return out.getvalue()
