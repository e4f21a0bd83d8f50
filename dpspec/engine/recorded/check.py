"""``dpspec check``: the spec of a recorded run in memory, and the result of the pipeline on it."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json
from dpspec.contract.catalog import Catalog
from dpspec.engine.recorded.channels import HYPERPARAMETERS, require_known
from dpspec.engine.recorded.conditions import ASSUMABLE
from dpspec.engine.recorded.rules import require_rules
from dpspec.errors import ExitCode, SpecError, UsageError
from dpspec.language.declared_facts import DeclaredFacts, read_declared_facts, with_declared_facts
from dpspec.recording.folder.resumed_folder import open_run
from dpspec.registry.builtin import KIND
from dpspec.results.status import open_cautions

if TYPE_CHECKING:
    from dpspec.contract.results import Result

#: The id of the claim.
CLAIM = "claim"


@dataclass(frozen=True, kw_only=True)
class RunClaim:
    """The claim about a recorded run, and its threat model.

    epsilon: for the first of the group sizes; None if nothing is claimed. adjacency: ``zero-out`` or ``add-remove``.
    public: names of hyperparameters that the user declares public. assume: names of channels and assumptions that the
    user assumes if the recording leaves them open. accept: names of rules whose cautions the user accepts. select: the
    only rules to evaluate, all if empty; ignore: rules that are not evaluated.
    """

    delta: float = 1e-5
    epsilon: float | None = None
    group_sizes: tuple[int, ...] = (1,)
    adjacency: str = "zero-out"
    assume: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @property
    def claims(self) -> list[Json]:
        """The block ``claims`` of a spec."""
        if self.epsilon is None:
            return []
        stated = {"kind": "approx-dp", "epsilon": self.epsilon, "delta": self.delta}
        return [{"id": CLAIM, **stated, "group_size": self.group_sizes[0]}]


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
        epsilon = "None" if self.epsilon is None else f"{self.epsilon:.4g}"
        return f"CheckedRun(proved={self.proved}, epsilon={epsilon}{cautions})"


def require_claim(claim: RunClaim) -> None:
    """Raise ``UsageError`` for a value of another type or outside its range."""
    numbers: tuple[tuple[str, object], ...] = (("--delta", claim.delta), ("--epsilon", claim.epsilon))
    for name, number in numbers:  # callers of the function may ignore the types
        if number is not None and (isinstance(number, bool) or not isinstance(number, Real)):
            raise UsageError(f"{name} must be a number, got {number!r}")
    sizes: tuple[object, ...] = claim.group_sizes
    if any(isinstance(size, bool) or not isinstance(size, Integral) for size in sizes):
        raise UsageError(f"--group-size must be integers, got {sizes!r}")
    if not 0.0 < claim.delta < 1.0:
        raise UsageError(f"--delta must be above 0 and below 1, got {claim.delta!r}")
    if claim.epsilon is not None and not 0.0 <= claim.epsilon < math.inf:
        raise UsageError(f"--epsilon must be finite and not negative, got {claim.epsilon!r}")
    if any(not 1 <= size <= 10_000 for size in claim.group_sizes):
        raise UsageError("--group-size must be from 1 to 10000")
    if claim.adjacency not in ("zero-out", "add-remove"):
        raise UsageError(
            f"--adjacency must be zero-out or add-remove for a recorded run, got {claim.adjacency!r}; a spec with "
            "mechanism: {kind: group} and without training bounds replaced records"
        )


def document_of(run: Path, claim: RunClaim, model: str = "") -> dict[str, Json]:
    """The spec of a claim about a recorded run. model: the name of the model to be released."""
    require_known("assume", claim.assume, ASSUMABLE)
    require_known("public", claim.public, HYPERPARAMETERS)
    header = open_run(run).header
    for option in ("accept", "select", "ignore"):
        require_rules(option, getattr(claim, option))
    names: dict[str, Json] = {key: list(getattr(claim, key)) for key in ("assume", "public", "select", "ignore")}
    names["accept"] = dict.fromkeys(claim.accept, "accepted on the command line")
    return {
        "dpspec": 1,
        "name": spec_name(run.resolve().name) or "run",
        "mechanism": {"kind": KIND, "delta": claim.delta},
        "data": {"kind": "declared", "records": header.records or 1, "features": 1, "classes": 2},
        "training": {
            "backend": KIND,
            "run": run.as_posix(),
            **({"model": model} if model else {}),
            **{key: option_names for key, option_names in names.items() if option_names},
        },
        "threat_model": {"adjacency": claim.adjacency, "group_size": sorted(claim.group_sizes)},
        "claims": claim.claims,
    }


def spec_name(text: str) -> str:
    """A text as the name of a spec, which has no spaces."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60].strip("-.")


def run_document(
    document: Mapping[str, Json], catalog: Catalog, command: Sequence[str], options: Mapping[str, Sequence[object]]
) -> Result:
    """The result of a spec without trials that a command with options wrote; the environment names the command."""
    from dpspec.engine.running import runner
    from dpspec.engine.storage.trial_store import Store
    from dpspec.language.load import from_document

    with tempfile.TemporaryDirectory() as folder:
        result = runner.run([from_document(document, catalog)], catalog, store=Store(folder), train=False)
    option_words = [word for option, values in options.items() for value in values for word in (option, str(value))]
    environment = FrozenMap({**result.environment, "command": [*command, *option_words]})
    return dataclasses.replace(result, environment=environment, requires_claim=True)


def check_run(
    run: Path,
    claim: RunClaim,
    catalog: Catalog | None = None,
    model: Path | Mapping[str, Any] | None = None,
    declare: Path | None = None,
) -> Result:
    """The result of the pipeline.

    Args:
        run: The folder of the recording.
        claim: The claim and its threat model.
        catalog: The installed plugins.
        model: The model to be released, as a file or as its ``state_dict()``.
        declare: A file with facts for statements.

    Raises:
        SpecError: The file of ``declare`` has errors.
    """
    from dpspec.engine.recorded.executed_run import GIVEN_MODEL
    from dpspec.registry.loader import load_catalog

    released, name = None, ""
    if model is not None:
        from dpspec.recording.released_model import released_model

        released = released_model(model)
        name = model.as_posix() if isinstance(model, Path) else released.name
    option_values: dict[str, Sequence[object]] = {
        "--delta": [claim.delta],
        "--epsilon": [] if claim.epsilon is None else [claim.epsilon],
        "--group-size": claim.group_sizes if claim.group_sizes != (1,) else (),
        "--adjacency": [claim.adjacency] if claim.adjacency != "zero-out" else [],
        "--model": [name] if name else [],
        "--public": claim.public,
        "--assume": claim.assume,
        "--accept": claim.accept,
        "--select": claim.select,
        "--ignore": claim.ignore,
        "--declare": [] if declare is None else [declare.as_posix()],
    }
    facts = DeclaredFacts() if declare is None else read_declared_facts(declare)
    if facts.diagnostics:
        raise SpecError(facts.diagnostics)
    token = GIVEN_MODEL.set(released)
    try:
        command = ["dpspec", "check", os.fspath(run)]
        document = with_declared_facts(document_of(run, claim, name), facts.facts)
        return run_document(document, catalog or load_catalog(), command, option_values)
    finally:
        GIVEN_MODEL.reset(token)
