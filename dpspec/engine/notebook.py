"""Results in notebooks: the HTML report in a frame of its own, and the claims as a data frame."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpspec.engine.result import Result


def frame_of(result: Result) -> str:
    """The HTML report inside an ``iframe`` that can reach neither the notebook nor any server.

    Data-dependent and per-record values are left out, as in every report.
    """
    from dpspec.registry.loader import load_catalog, resolve

    render: Any = resolve(load_catalog().reporters["html"].provider.render)
    page = escape(render(result), quote=True)
    style = "width:100%;height:44rem;border:1px solid #8884"
    return f'<iframe sandbox="allow-scripts" style="{style}" title="dpspec report" srcdoc="{page}"></iframe>'


def table_of(result: Result) -> Any:
    """The claims as a ``pandas.DataFrame``, one row each; raises ``ImportError`` saying what to install."""
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("a data frame needs pandas: pip install pandas") from None
    rows = [
        {
            "audit": audit.name,
            "claim": verdict.claim,
            "kind": verdict.kind,
            "says": verdict.text,
            "verdict": verdict.verdict,
            "expected": verdict.expected,
            "quantity": verdict.quantity,
            "claimed": verdict.claimed,
            "lower": verdict.lower,
            "upper": verdict.upper,
            "p_value": verdict.p_value,
            "conformance": audit.conformance.status,
        }
        for audit in result.audits
        for verdict in audit.verdicts
    ]
    return pd.DataFrame(rows)
