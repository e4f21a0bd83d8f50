"""``dpspec check``: the spec of a recorded run in memory, and the result of the pipeline on it."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpspec.contract import FrozenMap, Json
from dpspec.contract.catalog import Catalog
from dpspec.engine.recorded.channels import hyperparameters
from dpspec.engine.recorded.channels.table import ASSUMABLE, require_known
from dpspec.errors import ExitCode
from dpspec.recording.folder.run_folder import RunFolder

if TYPE_CHECKING:
    from dpspec.engine.results.result import Result

#: The id of the claim.
CLAIM = "claim"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a recorded run.

    Attributes:
        delta: In (0, 1).
        epsilon: The claim, for the first of the group sizes; None if nothing is claimed.
        group_sizes: The group sizes at which epsilon is bounded.
        adjacency: ``zero-out`` or ``add-remove``.
        data_independent_hyperparameters: Whether the user declares all hyperparameters public.
        assume: Names of channels and assumptions that the user assumes if the recording leaves them open.
        public: Names of hyperparameters that the user declares public.
    """

    delta: float = 1e-5
    epsilon: float | None = None
    group_sizes: tuple[int, ...] = (1,)
    adjacency: str = "zero-out"
    data_independent_hyperparameters: bool = False
    assume: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def document_of(run: Path, question: Question) -> dict[str, Json]:
    """The spec of a recorded run, whose mechanism is the recorded schedule.

    Raises:
        RecordingError: The folder holds no recorded run.
        UsageError: There is no such folder, or a name is unknown.
    """
    require_known("assume", question.assume, ASSUMABLE)
    require_known("public", question.public, hyperparameters.NAMES)
    header = RunFolder.open(run).header
    given = {"assume": list(question.assume), "public": list(question.public)}
    claims: list[Json] = []
    if question.epsilon is not None:
        claim = {"kind": "approx-dp", "epsilon": question.epsilon, "delta": question.delta}
        claims = [{"id": CLAIM, **claim, "group_size": question.group_sizes[0]}]
    return {
        "dpspec": 1,
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", run.resolve().name)[:60].strip("-.") or "run",
        "mechanism": {"kind": "recorded", "delta": question.delta},
        "data": {"kind": "declared", "records": header.records or 1, "features": 1, "classes": 2},
        "training": {
            "backend": "recorded",
            "run": run.as_posix(),
            "data_independent_hyperparameters": question.data_independent_hyperparameters,
            **{key: names for key, names in given.items() if names},
        },
        "threat_model": {"adjacency": question.adjacency, "group_size": sorted(question.group_sizes)},
        "claims": claims,
    }


def check_run(run: Path, question: Question, catalog: Catalog | None = None) -> Result:
    """The result of the pipeline on a recorded run.

    Raises:
        RecordingError: The folder holds no recorded run, or was changed.
        NothingToRunError: No step was recorded.
        UsageError: There is no such folder, or a name is unknown.
    """
    from dpspec.engine.running import runner
    from dpspec.engine.storage.trial_store import Store
    from dpspec.language.load import from_document
    from dpspec.registry.loader import load_catalog

    catalog = catalog or load_catalog()
    spec = from_document(document_of(run, question), catalog)
    with tempfile.TemporaryDirectory() as folder:  # a recorded run makes no trials
        result = runner.run([spec], catalog, store=Store(folder))
    command = ["dpspec", "check", os.fspath(run), *_options(question)]
    return dataclasses.replace(result, environment=FrozenMap({**result.environment, "command": command}))


def exit_code_of(result: Result) -> ExitCode:
    """0 if the claim is proved and the run conforms; 5 if nothing is claimed and it conforms; otherwise 1.

    Without a claim it is 1 too if an epsilon is infinite, or if canaries exceed the certified bound.
    """
    (audit,) = result.audits
    if result.exit_code is not ExitCode.OK:
        return result.exit_code
    if audit.verdicts:
        return ExitCode.OK
    delta = audit.document["mechanism"]["delta"]
    at_delta = [one for one in audit.findings if one.at.get("delta") == delta]
    single = [one for one in at_delta if one.at.get("group_size", 1) == 1]
    upper = max(one.value for one in at_delta if one.bound == "upper")
    lower = max((one.value for one in single if one.bound == "lower"), default=0.0)
    least = min((one.value for one in single if one.bound == "upper"), default=math.inf)
    return ExitCode.UNEXPECTED if math.isinf(upper) or lower > least else ExitCode.NOTHING_TO_RUN


def _options(question: Question) -> list[str]:
    """The options of the command that differ from their defaults."""
    found = ["--delta", f"{question.delta!r}"]
    if question.epsilon is not None:
        found += ["--epsilon", f"{question.epsilon!r}"]
    for size in question.group_sizes if question.group_sizes != (1,) else ():
        found += ["--group-size", str(size)]
    if question.adjacency != "zero-out":
        found += ["--adjacency", question.adjacency]
    found += ["--data-independent-hyperparameters"] if question.data_independent_hyperparameters else []
    for option, names in (("--public", question.public), ("--assume", question.assume)):
        found += [word for name in names for word in (option, name)]
    return found
