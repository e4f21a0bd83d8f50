"""The opacus backend: the test suite of backends, and the actual sampling of each loader."""

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from support.seen_run import SeenRun

pytest.importorskip("opacus")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:opacus", "ignore::FutureWarning:opacus")

from dpspec.contract import FrozenMap  # noqa: E402
from dpspec.errors import UsageError  # noqa: E402
from dpspec.registry.loader import Candidate, build  # noqa: E402
from dpspec.stats.conformance import sampling  # noqa: E402
from dpspec.stats.conformance.evidence import write_run  # noqa: E402
from dpspec.testing import BackendSuite  # noqa: E402
from dpspec.training.canaries import CanaryGroups, SignBlocks  # noqa: E402
from dpspec.training.loop.native import NativeTrainer  # noqa: E402
from dpspec.training.measure.run_evidence import RunLogs, reported_evidence  # noqa: E402
from dpspec.training.providers import BACKENDS  # noqa: E402


def trainer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dpspec.training.opacus_backend import OpacusTrainer
    return OpacusTrainer()


class TestOpacus(BackendSuite):
    """With a loader of the declared rate the run conforms."""

    kind = "opacus"
    options: ClassVar = next(b for b in BACKENDS if b.kind == "opacus").as_declared

    @staticmethod
    def registry():
        return build([Candidate(distribution="dpspec", version="0", plugin="builtin", value="dpspec.registry.builtin")])


def options(sampler="poisson", **changes):
    return FrozenMap({"learning_rate": 0.5, "reduction": "mean", "sampler": sampler, **changes})


@pytest.mark.rounding
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("optimizer", [{"kind": "sgd"}, {"kind": "momentum", "momentum": 0.8}, {"kind": "adam"}])
def test_without_chance_it_trains_as_native_does(make_job, make_model, reduction, optimizer):
    changes = {
        "noise_multiplier": 0.0,
        "sampling": {"scheme": "full"},
        "expected_batch_size": 40.0,
        "options": options(reduction=reduction, optimizer=optimizer, schedule={"kind": "linear"}, learning_rate=0.1),
    }
    theirs, ours = make_job(**changes), make_job(**changes)
    trainer().train(theirs)
    NativeTrainer().train(ours)
    for a, b in zip(theirs.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-4)


def test_planted_gradients_are_clipped_and_summed_by_opacus(make_job):
    """With full batches and no noise the update along a direction is one clip norm per member."""
    directions = SignBlocks(63, 5, seed=0)
    canaries = CanaryGroups(directions, torch.tensor([1, 1, 3]), 10.0)
    changes = {"steps": 1, "noise_multiplier": 0.0, "sampling": {"scheme": "full"}, "options": options(reduction="sum")}
    seen = SeenRun()
    plain, planted = make_job(**changes, observers=(seen,)), make_job(**changes, canaries=canaries)
    trainer().train(plain)
    trainer().train(planted)
    moved = torch.cat([p.detach().flatten() for p in planted.model.parameters()]) - seen.states[1]
    assert torch.allclose(directions.project(-moved) / 0.5, torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0]), atol=1e-4)


@pytest.mark.family
@pytest.mark.parametrize(
    ("sampler", "right"), [("declared-rate", True), ("poisson", False), ("shuffled", False), ("weighted", False)]
)
def test_what_each_loader_samples(make_job, sampler, right):
    """40 records at rate 0.3 make batches of 12, four to the epoch: Opacus samples at 1/4."""
    job = make_job(steps=120, sampling={"scheme": "poisson", "rate": 0.3}, options=options(sampler))
    logs = RunLogs(job)
    job = make_job(
        steps=120, sampling={"scheme": "poisson", "rate": 0.3}, options=options(sampler), observers=logs.observers
    )
    trainer().train(job)
    found = write_run(reported_evidence(logs))["sampling_log"]
    (batch,) = found["batches"]
    rate = sampling.inclusions(batch["total"], 40 * 120, 0.3)
    assert (rate.p_value > 1e-6) == right
    if sampler != "declared-rate":
        assert rate.measured == pytest.approx(0.25, abs=0.025)
    assert (found["repeats"] > 0) == (sampler == "weighted")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clipping": {"scheme": "truncated"}}, "flat clipping"),
        ({"noise": "laplace"}, "gaussian"),
        ({"sampler": "other"}, "sampler must be"),
        ({"phases": 2}, "one phase"),
        ({"sampling": {"scheme": "poisson", "rate": 1e-3}, "sampler": "declared-rate"}, "divide by"),
    ],
)
def test_what_opacus_is_not_made_to_do_is_refused(make_job, changes, message):
    job = make_job(options=options(changes.get("sampler", "poisson")))
    (phase,) = job.phases
    phase = FrozenMap({**phase, **{k: v for k, v in changes.items() if k in ("clipping", "noise", "sampling")}})
    job = make_job(options=job.options, phases=(phase,) * changes.get("phases", 1))
    with pytest.raises(UsageError, match=message):
        trainer().train(job)


@pytest.mark.ci
def test_planted_records_do_not_change_the_rate(make_job):
    """Batches of one of 32 public records have rate 1/32, also for canaries; 1/47 is seven deviations below."""
    seen = SeenRun()
    job = make_job(steps=300, sampling={"scheme": "poisson", "rate": 1 / 32}, options=options(), records=32)
    grown = {"x": np.concatenate([job.x] * 2)[:47], "y": np.concatenate([job.y] * 2)[:47]}
    trainer().train(replace(job, observers=(seen,), **grown))
    assert sampling.inclusions(sum(map(len, seen.indices)), 47 * 300, 1 / 32).p_value > 1e-6


def test_a_declared_divisor_is_what_opacus_divides_by(make_job):
    """One step without drawn records is the same for 40 and 39 records, although int(records / 4) is 10 and 9."""
    changes = {
        "steps": 1,
        "noise_multiplier": 1.0,
        "sampling": {"scheme": "poisson", "rate": 1e-9},
        "options": options("declared-rate", divisor="declared"),
        "expected_batch_size": 10.0,
    }
    job, other = make_job(**changes), make_job(**changes)
    fewer = replace(other, x=other.x[:39], y=other.y[:39])
    trainer().train(job)
    trainer().train(fewer)
    for a, b in zip(job.model.parameters(), fewer.model.parameters(), strict=True):
        assert torch.equal(a, b)
