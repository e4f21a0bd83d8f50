"""Verdict, epsilon and page of an audit in a run of MLflow or Weights & Biases.

    checked = dpspec.check("run", epsilon=8, delta=1e-5)
    log_to_mlflow(checked)  # or log_to_wandb(checked)

Inside the recorder's block ``run.epsilon(delta)`` is a number for the tracker's own calls, at each epoch. The page and
the metrics omit data-dependent and per-record values, as public reports of dpspec do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpspec.contract.results import Result, accepted_cautions, open_cautions
from dpspec.errors import MissingLibraryError, UsageError
from dpspec.reporters import page, words
from dpspec.reporters.summary import answer
from dpspec.results.checked_run import CheckedRun
from dpspec.results.redact import redact
from dpspec.results.status import problems
from dpspec.results.void_bounds import has_void_bounds

#: The name of the page in the tracker.
PAGE = "dpspec.html"

#: The kinds of problems, the first that names the failure first.
_ORDER = ("conformance", "claim", "trials", "caution")


def log_to_mlflow(audited: CheckedRun | Result, *, run_id: str | None = None) -> None:
    """Log an audit to a run of MLflow: tags ``dpspec.verdict`` and ``dpspec.CLAIM``, metrics, and the page.

    Args:
        audited: The result of ``dpspec.check`` or ``dpspec.run``.
        run_id: The run; by default the active run, or a new one.

    Raises:
        MissingLibraryError: mlflow is not installed.
        UsageError: ``audited`` is something else.
    """
    try:
        import mlflow
    except ImportError as error:
        raise MissingLibraryError("log_to_mlflow needs mlflow: pip install 'dpspec[mlflow]'") from error
    result = _redacted(audited)
    verdict, claims, metrics = _summary(result)
    run_id = run_id or (mlflow.active_run() or mlflow.start_run()).info.run_id
    client = mlflow.MlflowClient()
    for name, text in {"verdict": verdict, **claims}.items():
        client.set_tag(run_id, f"dpspec.{name}", text)
    for name, value in metrics.items():
        client.log_metric(run_id, name, value)
    client.log_text(run_id, page.render(result), PAGE)


def log_to_wandb(audited: CheckedRun | Result, run: Any) -> None:
    """Log an audit to a run of Weights & Biases: a tag, summary values, and the page as an artifact of type ``audit``.

    Args:
        audited: The result of ``dpspec.check`` or ``dpspec.run``.
        run: The result of ``wandb.init``.

    Raises:
        MissingLibraryError: wandb is not installed.
        UsageError: ``audited`` or ``run`` is something else.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingLibraryError("log_to_wandb needs wandb: pip install 'dpspec[wandb]'") from error
    if not isinstance(run, wandb.Run):
        raise UsageError(f"run is a {type(run).__name__}: give the run that wandb.init returned")
    result = _redacted(audited)
    verdict, claims, metrics = _summary(result)
    run.tags = (*(run.tags or ()), f"dpspec: {verdict}")
    run.summary.update({"dp/verdict": verdict, **{f"dp/{name}": text for name, text in claims.items()}, **metrics})
    artifact = wandb.Artifact("dpspec-report", type="audit", metadata={"verdict": verdict, **claims, **metrics})
    with artifact.new_file(PAGE, encoding="utf-8") as file:
        file.write(page.render(result))
    run.log_artifact(artifact)


def _redacted(audited: Any) -> Result:
    result = audited.result if isinstance(audited, CheckedRun) else audited
    if not isinstance(result, Result):
        name = type(audited).__name__
        raise UsageError(f"got a {name}: give the result of dpspec.check or dpspec.run, or the run of a CheckedRounds")
    return redact(result)


def _summary(result: Result) -> tuple[str, dict[str, str], dict[str, float]]:
    """``passed`` or the first failure (``deviates`` comes first), the verdict of each claim by id, and metrics.

    The texts include the ``headline``, and the names of open (``cautions``) and ``accepted`` cautions. The metric
    ``dp/epsilon`` is the certified epsilon of a recorded training, ``dp/CLAIM.epsilon`` the upper bound of a claim of a
    spec, ``dp/exit_code`` the exit code. Names begin with the audit if there are several.
    """
    failures = ["invalid spec"] if result.unjudged else []
    claims: dict[str, str] = {}
    metrics: dict[str, float] = {}
    for audit in result.audits:
        prefix = f"{audit.name}." if len(result.audits) > 1 else ""
        claims |= {f"{prefix}{verdict.claim}": words.verdict_line(audit, verdict) for verdict in audit.verdicts}
        of_audit = sorted(problems(audit), key=lambda problem: _ORDER.index(problem.kind))
        failures += ["cautions" if problem.kind == "caution" else problem.status for problem in of_audit]
        if audit.recording is not None:
            checked = CheckedRun(result=replace(result, audits=(audit,)))
            metrics[f"dp/{prefix}cautions"] = len(checked.cautions)
            for name, rules in (("cautions", open_cautions(audit)), ("accepted", accepted_cautions(audit))):
                claims |= {f"{prefix}{name}": ", ".join(rule.name for rule in rules)} if rules else {}
            metrics |= {} if checked.epsilon is None else {f"dp/{prefix}epsilon": checked.epsilon}
        elif audit.conformance.expected and not has_void_bounds(audit):
            bounds = {verdict.claim: verdict.upper for verdict in audit.verdicts if verdict.quantity == "epsilon"}
            metrics |= {f"dp/{prefix}{claim}.epsilon": upper for claim, upper in bounds.items() if upper is not None}
    outcome = answer(result)
    claims["headline"] = outcome.headline
    metrics["dp/exit_code"] = int(outcome.exit_code)
    return failures[0] if failures else "passed", claims, metrics
