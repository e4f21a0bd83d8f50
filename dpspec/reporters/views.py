"""The views of a result in notebooks and interpreters. Reports are imported on first use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpspec.contract.results import Result, ResultViews


class _Views:
    @staticmethod
    def headline(result: Result) -> str:
        from dpspec.reporters.summary import answer
        from dpspec.results.redact import redact

        return answer(redact(result)).headline

    @staticmethod
    def page(result: Result) -> str:
        from dpspec.reporters.page import first_screen

        return first_screen(result)

    @staticmethod
    def plot_power(result: Result, claim: str, axes: Any) -> Any:
        from dpspec.reporters.figures import draw_power
        from dpspec.results.redact import redact

        with_claim = (
            replace(audit, verdicts=chosen)
            for audit in redact(result).audits
            if (chosen := tuple(verdict for verdict in audit.verdicts if verdict.claim == claim))
        )
        return draw_power(next(with_claim), axes)


VIEWS: ResultViews = _Views()
