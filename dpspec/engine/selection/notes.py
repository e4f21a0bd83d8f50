"""What every report says of a selection: which way to find the best cell was the cheaper one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpspec.contract import Finding, Series
from dpspec.engine.results.decimals import upper

#: The table of all ways.
COSTS = "what-tuning-costs"

#: Where tries are declared that nothing bounds.
_NONE = "no bound on these tries, as the mechanism of a cell does not say what its runs leak in a form that composes"


def told(bounds: Sequence[Finding | Series]) -> Iterator[str]:
    """A sentence for each claim, from the table among a selection's bounds; none of numbers that not all may see."""
    tables = [bound for bound in bounds if isinstance(bound, Series) and bound.name == COSTS]
    for table in (table for table in tables if table.privacy == "public"):
        columns = table.columns
        rows = list(zip(*(columns[name] for name in ("claim", "way", "trainings", "epsilon", "declared")), strict=True))
        for claim in dict.fromkeys(columns["claim"]):
            ways = [row[1:] for row in rows if row[0] == claim]
            ran = next((way for way in ways if way[3] == "yes"), None)
            said = f"{claim}: {_NONE if ran is None else _cost(*ran[:3])}."
            others = [way for way in ways if way[3] != "yes"]
            costs = [f"{_cost(*way[:3])}{'' if ran is None else _compared(way[2], ran[2])}" for way in others]
            yield f"{said} Not run: {'; '.join(costs)}." if costs else said


def _cost(way: str, trainings: float, epsilon: float | None) -> str:
    bound = "no finite epsilon" if epsilon is None else f"epsilon <= {upper(epsilon)}"
    return f"{bound} by {way} ({trainings:g} trainings{'' if way.startswith(('all', 'the sum')) else ' on average'})"


def _compared(epsilon: float | None, ran: float | None) -> str:
    return f", which is {'cheaper' if _size(epsilon) < _size(ran) else 'dearer'} by these bounds"


def _size(epsilon: float | None) -> float:
    return float("inf") if epsilon is None else epsilon
