"""Audits in the local stores of MLflow and Weights & Biases."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.opacus_training import Training
from support.recordings import Recordings

import dpspec
from dpspec.contract.results import Result
from dpspec.errors import MissingLibraryError, UsageError
from dpspec.integrations.trackers import _summary, log_to_mlflow, log_to_wandb

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audited() -> Result:
    """Two proved claims and a refuted one."""
    overrides = ["claims.one-record.epsilon=1.0"]
    return dpspec.run(ROOT / "specs" / "bounds-only.yaml", overrides=overrides, train=False, remedy_seconds=0.0)


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_missing_library_is_named(library: str, audited: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    log: Any = {"mlflow": log_to_mlflow, "wandb": lambda result: log_to_wandb(result, None)}[library]
    with pytest.raises(MissingLibraryError, match=rf"pip install 'dpspec\[{library}\]'"):
        log(audited)


@pytest.mark.ci
def test_metrics_of_a_recorded_training_have_epsilon_and_cautions(recordings: Recordings) -> None:
    checked = dpspec.check(recordings["flat"], epsilon=8)
    verdict, claims, metrics = _summary(checked.result)
    assert (verdict, list(claims)) == ("passed", ["claim", "headline"])
    assert claims["headline"].startswith("The privacy claim is proved under")
    assert metrics == {"dp/epsilon": checked.epsilon, "dp/cautions": 0, "dp/exit_code": 0}


def other_optimizer(training: Training) -> None:
    centers = torch.zeros(2, requires_grad=True)
    centers.grad = torch.ones(2)
    training.train(each=lambda _: torch.optim.SGD([centers], lr=0.1).step())


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "options", "claimed", "tag"),
    [
        (Training.train, {}, 0.1, "refuted"),
        (Training.train, {"poisson": False}, 8.0, "deviates"),
        (other_optimizer, {}, 8.0, "cautions"),
    ],
)
def test_the_tag_of_a_training_that_does_not_pass(script, options, claimed, tag, tmp_path):
    training = Training(**options).build()
    with warnings.catch_warnings(), training.recorder(tmp_path / "run"):
        warnings.simplefilter("ignore")
        script(training)
    verdict, _, metrics = _summary(dpspec.check(tmp_path / "run", epsilon=claimed).result)
    assert verdict == tag
    assert ("dp/epsilon" in metrics) == (tag != "deviates")


@pytest.mark.ci
def test_other_arguments_are_refused() -> None:
    for library, log in (("mlflow", log_to_mlflow), ("wandb", lambda text: log_to_wandb(text, None))):
        pytest.importorskip(library, exc_type=ImportError)
        with pytest.raises(
            UsageError, match=r"got a str: give the result of dpspec\.check|run is a NoneType: give the"
        ):
            log("run")  # type: ignore[arg-type]


@pytest.mark.ci
def test_a_run_of_mlflow_has_verdicts_epsilon_and_page(audited, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.create_experiment("audits", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("audits")
    with mlflow.start_run() as run:
        log_to_mlflow(audited)
    data = mlflow.MlflowClient().get_run(run.info.run_id).data
    assert data.tags["dpspec.verdict"] == "refuted"
    assert data.tags["dpspec.one-record"].startswith("refuted: epsilon <= 1 at delta = 1e-6")
    assert data.tags["dpspec.pair"].startswith("proved: epsilon <= 6.5")
    assert 34.0 < data.metrics["dp/family.epsilon"] < 35.0
    (stored,) = (tmp_path / "artifacts").rglob("dpspec.html")
    assert dpspec.load(stored).audits[0].name == "bounds-only"


@pytest.mark.ci
def test_an_offline_run_of_wandb_has_verdicts_and_page(audited, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    with wandb.init(project="audits", mode="offline", dir=str(tmp_path)) as run:
        log_to_wandb(audited, run)
        assert run.tags == ("dpspec: refuted",)
        summary = dict(run.summary)
    assert summary["dp/verdict"] == "refuted"
    assert summary["dp/one-record"].startswith("refuted: ")
    assert 34.0 < summary["dp/family.epsilon"] < 35.0
