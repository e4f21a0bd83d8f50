"""The outcome of one recorded training, which ``dpspec.check`` returns."""

import math
from dataclasses import dataclass

from dpspec import decimals
from dpspec.contract.results import Result, open_cautions
from dpspec.errors import ExitCode


@dataclass(frozen=True)
class CheckedRun:
    """The result of :func:`dpspec.check`.

    Attributes:
        result: The whole result, for reports.
    """

    result: Result

    @property
    def proved(self) -> bool:
        """Whether the claim is proved and the run conforms, whether or not a rule fired."""
        (audit,) = self.result.audits
        conforms = audit.conformance.status == "no-deviation-found"
        return conforms and bool(audit.verdicts) and all(verdict.verdict == "proved" for verdict in audit.verdicts)

    @property
    def passed(self) -> bool:
        """Whether ``dpspec check`` ends with 0: proved, and without a caution that is not accepted."""
        return self.result.exit_code is ExitCode.OK

    @property
    def epsilon(self) -> float | None:
        """The certified epsilon of the claim's group at its delta; None for a run that deviates or has no bound."""
        (audit,) = self.result.audits
        mechanism, claims = audit.document["mechanism"], audit.document["claims"]
        size = claims[0]["group_size"] if claims else 1
        delta_and_size = {"delta": mechanism["delta"], "group_size": size}
        if audit.conformance.status != "no-deviation-found":
            return None
        bounds = [
            f.value
            for f in audit.findings
            if f.bound == "upper" and f.quantity == "epsilon" and dict(f.at) == delta_and_size
        ]
        return next((value for value in bounds if math.isfinite(value)), None)

    @property
    def cautions(self) -> tuple[str, ...]:
        """The names of the rules that fired and that the claim does not accept."""
        return tuple(rule.name for rule in open_cautions(self.result.audits[0]))

    def __repr__(self) -> str:
        cautions = f", cautions={list(self.cautions)}" if self.cautions else ""
        epsilon = "None" if self.epsilon is None else decimals.upper(self.epsilon)
        return f"CheckedRun(proved={self.proved}, epsilon={epsilon}{cautions})"
