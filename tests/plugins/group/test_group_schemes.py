"""Sampling schemes from spec to verdict: bounds and their scopes, refusals, runs that conform and runs that do not."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.attacks import audited, errors

from dpspec.accounting import gaussian
from dpspec.contract import FrozenMap
from dpspec.errors import UsageError
from dpspec.registry.loader import load_catalog
from dpspec.sampling import scheme_named
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Poisson
from dpspec.sampling.random_allocation import RandomAllocation

pytestmark = pytest.mark.usefixtures("claimed_deltas_alone")

TEXT = """\
dpspec: 1
name: schemes
mechanism: {kind: group, noise_multiplier: 1.0, clip_norm: 1.0, sampling: {scheme: poisson, rate: 0.1}, steps: 100}
data: {kind: synthetic, records: 200, features: 64, classes: 2, seed: 1}
model: {kind: linear}
training: {learning_rate: 0.5}
threat_model: {group_size: 1}
claims: [{id: one, kind: approx-dp, epsilon: 60.0, delta: 1e-5}]
"""
AUDIT = "audit={method: one-run, canary: {space: gradient, kind: orthogonal, count: 32}, seed: 1}"
FIXED = ("mechanism.sampling={scheme: fixed, batch_size: 20}",)
TRUNCATED = ("mechanism.sampling={scheme: truncated-poisson, rate: 0.1, max_batch: 28}",)
ALLOCATED = (
    "mechanism.sampling={scheme: random-allocation, epoch_steps: 5}",
    "mechanism.noise_multiplier=1.5",
    "mechanism.steps=40",
)
PER_EPOCH = "mechanism.sampling.batches_per_epoch"
SEVERAL = (*ALLOCATED, f"{PER_EPOCH}=2", "mechanism.noise_multiplier=3.0")
SHUFFLED = (
    "mechanism.sampling={scheme: shuffled, batch_size: 30}",
    "mechanism.noise_multiplier=2.0",
    "mechanism.steps=9",
    "data={kind: declared, records: 100, features: 4, classes: 2}",
    "model=null",
)
ZERO_OUT = "threat_model.adjacency=zero-out"


def claims(*each: str) -> str:
    return f"claims=[{', '.join(f'{{{one}}}' for one in each)}]"


def proof(name: str, epsilon: float, more: str = "") -> str:
    return f"id: {name}, kind: approx-dp, epsilon: {epsilon}, delta: 1e-5{more}"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("scheme", "sizes", "stated", "verdicts", "upper", "lower", "source"),
    [
        pytest.param(
            ALLOCATED,
            [1, 2],
            [
                proof("one", 5.0),
                proof("two", 25.0, ", group_size: 2"),
                proof("low", 3.0),
                "id: rate, kind: membership, fpr: 0.001, tpr: 0.9",
                "id: mu, kind: gdp, mu: 2.0",
            ],
            "proved proved refuted proved proved",
            {("all", 0)},
            {("all", 0)},
            "RandomAllocation",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            (*TRUNCATED, "mechanism.steps=30"),
            [1, 2],
            [
                proof("one", 60.0, ", over: this"),
                proof("two", 400.0, ", group_size: 2, over: this"),
                proof("low", 2.0, ", min_records: 199"),
                proof("all", 60.0),
                "id: rate, kind: membership, fpr: 0.001, tpr: 0.9, over: this",
                "id: mu, kind: gdp, mu: 30, over: this",
            ],
            "proved proved refuted supported proved proved",
            {("this", 0)},
            {("all", 199), ("all", 198)},
            "TruncatedPoisson",
            marks=pytest.mark.ci,
        ),
        (
            (*SHUFFLED, ZERO_OUT),
            [1, 2],
            [
                proof("one", 5.0, ", min_records: 100"),
                proof("this", 5.0, ", over: this"),
                proof("low", 0.1, ", over: this"),
                proof("two", 15.0, ", group_size: 2, over: this"),
                proof("all", 5.0),
            ],
            "proved proved open proved supported",
            {("all", 100), ("this", 0)},
            {("all", 100)},
            "shuffle.md",
        ),
    ],
    ids=["allocated", "truncated", "shuffled"],
)
def test_verdicts_and_the_scopes_of_bounds(scheme, sizes, stated, verdicts, upper, lower, source, tmp_path):
    audit = audited(tmp_path, *scheme, f"threat_model.group_size={sizes}", claims(*stated), text=TEXT)
    assert " ".join(verdict.verdict for verdict in audit.verdicts) == verdicts
    found = [f for f in audit.findings if f.quantity == "epsilon"]
    assert {(f.scope.data, f.scope.min_records) for f in found if f.bound == "upper"} == upper
    assert {(f.scope.data, f.scope.min_records) for f in found if f.bound == "lower"} == lower
    assert all(source in f.source for f in found if f.bound == "lower")
    if scheme[0] == SHUFFLED[0]:  # nine steps of batches of 30 of 100 records begin three epochs
        exact = float(gaussian.epsilon(1e-5, math.sqrt(3.0) / 2.0))
        assert audit.verdicts[0].upper == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("scheme", ["{scheme: poisson, rate: 0.1}", "{scheme: full}"])
def test_null_records_have_the_bounds_of_removed_ones(scheme: str, tmp_path: Path) -> None:
    stated = claims(proof("zeroed", 5000.0), proof("gone", 5000.0, ", adjacency: add-remove"))
    overrides = (f"mechanism.sampling={scheme}", "threat_model={adjacency: zero-out, group_size: [1, 4]}", stated)
    audit = audited(tmp_path, *overrides, text=TEXT)
    zeroed, gone = audit.verdicts
    assert (zeroed.verdict, gone.verdict) == ("proved", "proved")
    assert zeroed.upper == gone.upper
    assert {f.scope.adjacency for f in audit.findings} == {"zero-out", "add-remove"}


GONE = "claims.one.adjacency=add-remove"
BLACK_BOX = "mechanism.baselines=[linear, vadhan-sharp]"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*ALLOCATED, "mechanism.steps=42"), "steps must be a multiple of epoch_steps = 5, got 42"),
        (("mechanism.sampling={scheme: random-allocation}",), "epoch_steps"),
        (("mechanism.sampling.epoch_steps=5",), "epoch_steps"),
        ((*ALLOCATED, "mechanism.sampling.rate=0.2"), "rate"),
        ((*ALLOCATED, "threat_model.adjacency=replace-one"), "replac"),
        ((*ALLOCATED, BLACK_BOX), "vadhan-sharp cannot be computed for random-allocation batches"),
        ((*ALLOCATED, ZERO_OUT), None),
        ((*ALLOCATED, ZERO_OUT, AUDIT), "add-remove adjacency only"),
        ((*ALLOCATED, AUDIT, "training.backend=opacus"), "'opacus' does not support the sampling scheme 'random-"),
        ((*SEVERAL, f"{PER_EPOCH}=6"), "batches_per_epoch must be at most epoch_steps, 5, got 6"),
        ((*SEVERAL, f"{PER_EPOCH}=0"), "batches_per_epoch"),
        ((f"{PER_EPOCH}=2",), "batches_per_epoch"),
        ((*TRUNCATED, ZERO_OUT), "add-remove adjacency only"),
        ((*TRUNCATED, BLACK_BOX), "vadhan-sharp cannot be computed for truncated-poisson"),
        (("mechanism.sampling={scheme: truncated-poisson, rate: 0.1}",), "max_batch"),
        (("mechanism.sampling.max_batch=28",), "max_batch"),
        (SHUFFLED, None),
        ((*SHUFFLED, ZERO_OUT, GONE), None),
        ((*SHUFFLED, ZERO_OUT, AUDIT), "zero-out"),
        ((*SHUFFLED, ZERO_OUT, "mechanism.sampling.batch_size=101"), "batch_size 101 exceeds the 100 records"),
        ((ZERO_OUT, *FIXED), "adjacency"),
        ((ZERO_OUT, AUDIT), "adjacency"),
    ],
)
def test_what_is_not_covered_is_refused(overrides: tuple[str, ...], words: str | None, tmp_path: Path) -> None:
    found = errors(tmp_path, *overrides, text=TEXT)
    assert any(words in message for message in found) if words else found == []


@pytest.mark.parametrize("kind", ["per-instance", "rero", "modelmix"])
def test_no_other_mechanism_takes_what_it_does_not_cover(kind: str, tmp_path: Path) -> None:
    example = yaml.safe_load(load_catalog().mechanisms[kind].provider.example)
    for options in ({"scheme": "random-allocation", "epoch_steps": 1}, {"scheme": "truncated-poisson", "max_batch": 9}):
        example["mechanism"]["sampling"] = {**options, **({"rate": 0.1} if "max_batch" in options else {})}
        found = errors(tmp_path, text=yaml.safe_dump(example, sort_keys=False))
        assert any(str(options["scheme"]) in message for message in found)


@pytest.mark.parametrize(
    "sampling",
    [{"scheme": "random-allocation", "epoch_steps": 2}, {"scheme": "truncated-poisson", "rate": 0.5, "max_batch": 5}],
    ids=lambda sampling: sampling["scheme"],
)
def test_opacus_does_not_draw_them(sampling: dict[str, Any]) -> None:
    pytest.importorskip("opacus")
    from dpspec.testing.backend import small_job
    from dpspec.training.opacus_backend import OpacusTrainer

    options = FrozenMap({"learning_rate": 0.1, "optimizer": "sgd", "reduction": "mean"})
    with pytest.raises(UsageError, match=str(sampling["scheme"])):
        OpacusTrainer().train(small_job(options=options, sampling=sampling, steps=2))


# --- runs


@pytest.mark.parametrize(
    ("scheme", "notes"),
    [
        (ALLOCATED, ["batches of each epoch", "variance of the batch size"]),
        pytest.param(SEVERAL, ["declared number of batches of an epoch"], marks=pytest.mark.ci),
        pytest.param(TRUNCATED, ["rate at each step", "mean of truncated"], marks=pytest.mark.ci),
    ],
    ids=["allocated", "several", "truncated"],
)
def test_a_run_conforms_by_the_promised_checks(scheme: tuple[str, ...], notes: list[str], tmp_path: Path) -> None:
    stated = claims(proof("one", 60.0, ", over: this"), proof("low", 0.5, ", min_records: 199"))
    audit = audited(tmp_path, *scheme, stated, AUDIT, text=TEXT)
    assert [verdict.verdict for verdict in audit.verdicts] == ["proved", "refuted"]
    assert audit.conformance.status == "no-deviation-found"
    sampling = [f"{found.note} {found.test}" for found in audit.checks if found.assumption == "sampling"]
    for note in notes:
        assert any(note in one for one in sampling)
    if scheme is SEVERAL:
        assert any("several batches per epoch" in found.source for found in audit.findings)


def poisson(self: Any, generator: torch.Generator) -> torch.Tensor:
    return Poisson(self.records, self.inclusion).draw(generator)


def once(self: RandomAllocation, generator: torch.Generator) -> torch.Tensor:
    if self.draws is None or self.done >= self.epoch_steps:
        batch = DRAW(self, generator)
        self.draws = self.draws[:, 1:]
        return batch[(self.draws[batch] == 0).any(1)]
    return DRAW(self, generator)


DRAW = RandomAllocation.draw


def favoring(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Generator], torch.Tensor]:
    def draw(self: Any, generator: torch.Generator) -> torch.Tensor:
        coins = change(torch.rand(self.records, generator=generator, dtype=torch.float64))
        if isinstance(self, FixedSize):
            return coins.argsort()[: self.batch_size].sort().values
        order = coins.argsort(stable=True)[: getattr(self, "max_batch", self.records)]
        return order[coins[order] < self.rate].sort().values

    return draw


def always_one(coins: torch.Tensor) -> torch.Tensor:
    coins[7] = 0.0
    return coins


def two_rates(coins: torch.Tensor) -> torch.Tensor:
    coins[: len(coins) // 2] /= 1.5
    coins[len(coins) // 2 :] /= 0.5
    return coins


LONG = "mechanism.steps=200"


@pytest.mark.family
@pytest.mark.parametrize(
    ("scheme", "name", "fault"),
    [
        (ALLOCATED, "random-allocation", poisson),
        (SEVERAL, "random-allocation", once),
        pytest.param(TRUNCATED, "truncated-poisson", poisson, marks=pytest.mark.ci),
        pytest.param((*FIXED, LONG), "fixed", favoring(two_rates), marks=pytest.mark.ci),
        pytest.param((*TRUNCATED, LONG), "truncated-poisson", favoring(two_rates), marks=pytest.mark.ci),
        pytest.param((LONG,), "poisson", favoring(always_one), marks=pytest.mark.ci),
    ],
    ids=["poisson", "one-batch", "uncapped", "fixed-two-rates", "truncated-two-rates", "always-one-record"],
)
def test_a_loop_that_draws_otherwise_deviates(scheme, name, fault, tmp_path, monkeypatch):
    monkeypatch.setattr(scheme_named(name), "draw", fault)
    audit = audited(tmp_path, *scheme, AUDIT, text=TEXT)
    assert audit.conformance.status == "deviates"
    if scheme is ALLOCATED:
        assert min(c.p_value for c in audit.checks if c.assumption != "sampling") > 1e-6


# --- shuffled batches that are attacked


ATTACKED = (
    "mechanism.sampling={scheme: shuffled, batch_size: 30}",
    "mechanism.steps=23",
    "data={kind: synthetic, pattern: blobs, records: 100, features: 20, classes: 2}",
    "model={kind: mlp, hidden: [16]}",
    "threat_model.group_size=[1, 2]",
    "audit={method: one-run, canary: {space: gradient, kind: orthogonal, count: 80}, seed: 3}",
    claims(
        proof("low", 0.1),
        proof("high", 400),
        proof("two", 400, ", group_size: 2, over: this"),
        "id: mu, kind: gdp, mu: 100",
        "id: rate, kind: membership, tpr: 1, fpr: 0.1",
        "id: advantage, kind: membership, advantage: 1",
    ),
)


def test_no_theorem_and_an_attack_that_refutes(tmp_path: Path) -> None:
    audit = audited(tmp_path, *ATTACKED, "mechanism.noise_multiplier=0.3", text=TEXT)
    low, *open_ = audit.verdicts
    assert low.verdict == "refuted"
    for verdict in open_:
        assert (verdict.verdict, verdict.upper) == ("open", None)
        assert "no theorem covers shuffled batches under add-remove adjacency" in verdict.reason
    bounds = [finding for finding in audit.findings if finding.bound == "upper"]
    assert bounds
    assert all(math.isinf(finding.value) for finding in bounds)
    lowers = [f for f in audit.findings if f.bound == "lower" and f.scope.pipeline == "declared"]
    assert {f.scope.min_records for f in lowers} == {100}
    assert all("last batches" in f.method for f in lowers)
    assert audit.conformance.status == "no-deviation-found"
    notes = {check.note for check in audit.checks if check.assumption == "sampling"}
    assert {"batch size, phase 1", "batches of each epoch, phase 1", "batches of different epochs, phase 1"} <= notes
    left_out = [check for check in audit.checks if "depends on the epoch's other batches" in check.remark]
    assert {check.assumption for check in left_out} == {"update", "independent-noise"}
