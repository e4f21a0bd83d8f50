"""How a test of what ran, and an assumption that it speaks of, is said in plain English.

Text that a plugin may have brought in is returned as it is: escaping is the format's business.
"""

from __future__ import annotations

from dpspec.contract import Assumption, Check
from dpspec.engine import numbers


def assumption(of: Assumption, *, tested_above: bool = False) -> str:
    """What is known of an assumption: its text, and the test behind it where there is one.

    tested_above: the page has told of that test already.
    """
    text = of.text or of.name
    details = ["tested above" if tested_above else of.test or ""]
    if of.level is not None:
        details.append(f"level {numbers.nearest(of.level, digits=2)}")
    if of.detectable is not None and not tested_above:
        details.append(detectable(of.detectable))
    known = ", ".join(detail for detail in details if detail)
    return f"{text} ({known})" if known else text


def check(of: Check) -> str:
    """One test of the executed pipeline, its outcome and its power."""
    text = f"{of.assumption}{f', {of.note}' if of.note else ''}: {of.test}, p = {numbers.upper(of.p_value, digits=2)}"
    if of.declared is not None:
        text += f", declared {numbers.exact(of.declared)}"
    if of.measured is not None:
        text += f", {of.observed} {numbers.nearest(of.measured)}"
    elif of.observed == "reported":
        text += ", reported by the backend"
    return text if of.detectable is None else f"{text}, {detectable(of.detectable)}"


def foreseen(of: Check) -> str:
    """One test of the executed pipeline that is going to be made, and what it will see."""
    sees = "what it sees depends on the run"
    if of.detectable is not None:
        sees = "sees any deviation" if of.detectable == 0 else f"sees {numbers.upper(100 * of.detectable, digits=2)}%"
    return f"will check {of.assumption}{f', {of.note}' if of.note else ''} ({of.test}, {of.observed}): {sees}"


def detectable(deviation: float) -> str:
    """The smallest relative deviation that a test would have seen, rounded up."""
    if deviation == 0:
        return "would have seen any deviation"
    return f"would have seen a deviation of {numbers.upper(100 * deviation, digits=2)}%"
