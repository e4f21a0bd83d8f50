"""The suites for data kinds, models and backends fail on what they are there to find."""

import dataclasses
import sys
import types
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpspec.contract import CAPABILITIES, Assumption, Backend, Dataset, Facts, LoadedData, Loss, Model
from dpspec.contract.catalog import Catalog, Offered
from dpspec.testing import BackendSuite, DatasetSuite, LossSuite, ModelSuite
from dpspec.testing.inspection import inspect as inspect_plugin
from dpspec.training.loop.native import NativeTrainer, parts_of, train_with

EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def suite(base: type, descriptor: Any, code: Any, **attributes: Any) -> Any:
    found = {"kind": descriptor.kind, "provider": classmethod(lambda cls: descriptor), **attributes}
    return type("Suite", (base,), {**found, "code": classmethod(lambda cls: code)})()


def refuses(bad: Any, test: str, match: str, *arguments: Any) -> None:
    with pytest.raises((AssertionError, ValueError), match=match):
        getattr(bad, test)(*arguments)


class Rows:
    def __init__(self, options, directory: Path) -> None:
        self.directory = directory

    def facts(self) -> Facts:
        return Facts(records=6, features=4, classes=2, shape=(2, 2), digest="d")

    def load(self) -> LoadedData:
        x = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
        y = np.arange(6, dtype=np.int64) % 2
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])


def dataset_suite(source: type) -> Any:
    return suite(DatasetSuite, Dataset(kind="rows", summary=".", schema=EMPTY, source="a:B"), source)


def changed(**arrays: Any) -> type:
    class Odd(Rows):
        def load(self):
            return dataclasses.replace(super().load(), **arrays)

    return Odd


def stating(**facts: Any) -> type:
    class Odd(Rows):
        def facts(self):
            return dataclasses.replace(super().facts(), **facts)

    return Odd


class FolderInDigest(Rows):
    def facts(self):
        return dataclasses.replace(super().facts(), digest=str(self.directory))


class Shared(Rows):
    rows = Rows(None, Path()).load()

    def load(self):
        return self.rows


@pytest.mark.parametrize(
    ("source", "test", "match"),
    [
        (stating(records=7), "test_facts_equal_the_rows", r"train_x has shape \(6, 2, 2\), not \(7, 2, 2\)"),
        (stating(features=5), "test_facts_equal_the_rows", "5 features do not fill shape"),
        (stating(classes=1), "test_facts_equal_the_rows", "train_y is int64, not float32"),
        (stating(digest=None), "test_facts_equal_the_rows", "must state their digest"),
        (stating(test_records=2), "test_facts_equal_the_rows", "test_x has shape"),
        (changed(train_x=np.zeros((6, 2, 2))), "test_facts_equal_the_rows", "train_x is float64, not float32"),
        (changed(train_y=np.zeros(6, np.int32)), "test_facts_equal_the_rows", "train_y is int32, not int64"),
        (
            changed(train_x=np.full((6, 2, 2), np.nan, np.float32)),
            "test_facts_equal_the_rows",
            "train_x holds values that are not",
        ),
        (FolderInDigest, "test_facts_are_stable", "different facts|depend on the folder"),
        (Shared, "test_rows_are_the_same_every_time", "loading twice gives different rows"),
    ],
)
def test_bad_data_is_refused(tmp_path, source, test, match):
    refuses(dataset_suite(source), test, match, tmp_path)


def test_declared_data_must_refuse_to_load(tmp_path):
    bad = dataset_suite(stating(digest=None))
    type(bad).rows = False
    refuses(bad, "test_facts_equal_the_rows", r"must refuse to load\(\)", tmp_path)


def test_slow_facts_are_refused(tmp_path, module_file):
    module_file("slow_rows", "class Rows:\n    def __init__(s, o, d): pass\n    def facts(s): import scipy\n")
    bad = suite(DatasetSuite, Dataset(kind="rows", summary=".", schema=EMPTY, source="slow_rows:Rows"), Rows)
    refuses(bad, "test_facts_are_light", r"imports scipy in facts", tmp_path)


class Net:
    def __init__(self, options, facts) -> None:
        self.facts = facts

    def layers(self, inputs: int, classes: int) -> list[nn.Module]:
        return [nn.Flatten(), nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes)]

    def parameters(self) -> int:
        return (prod(self.facts.shape) + 1) * 8 + 9 * self.facts.classes

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(*self.layers(prod(self.facts.shape), self.facts.classes))


class Global(Net):
    def build(self, seed):
        return nn.Sequential(*self.layers(prod(self.facts.shape), self.facts.classes))


class Uncounted(Net):
    def parameters(self):
        return 7


class Double(Net):
    def build(self, seed):
        return super().build(seed).double()


class Normalised(Net):
    def layers(self, inputs, classes):
        return [nn.Flatten(), nn.BatchNorm1d(inputs, affine=False), *super().layers(inputs, classes)]


class Scores(Net):
    def layers(self, inputs, classes):
        return [*super().layers(inputs, classes), nn.Flatten(0)]


@pytest.mark.parametrize(
    ("factory", "test", "match"),
    [
        (Global, "test_building_is_reproducible_by_seed", "draws from the global generator of torch"),
        (Uncounted, "test_parameters_are_those_of_the_built_module", r"says 7, the module has \d+"),
        (Double, "test_parameters_are_those_of_the_built_module", "torch.float64"),
        (Normalised, "test_records_do_not_see_each_other", "depends on the other records"),
        (Normalised, "test_nothing_but_parameters_remembers_records", "changes the buffer '1.running_mean'"),
        (Scores, "test_outputs_are_one_score_per_class", r"not \(4, 10\)"),
        (Normalised, "test_per_example_gradients_are_those_of_each_record_alone", "no per-example gradients"),
    ],
)
def test_bad_models_are_refused(factory, test, match):
    refuses(suite(ModelSuite, Model(kind="net", summary=".", schema=EMPTY, factory="a:B"), factory), test, match)


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, lambda o, t: o[:, 0] - o.mean()])
def test_losses_that_mix_records_are_refused(loss):
    bad = suite(LossSuite, Loss(kind="odd", summary=".", function="a:B"), loss)
    refuses(bad, "test_every_record_has_its_own_loss", "one value for the batch|mixes records")


PUBLIC = Assumption(name="data-independent-hyperparameters", status="by-construction", text="the job's")
BACKEND = Backend(
    kind="odd", summary=".", schema=EMPTY, capabilities=CAPABILITIES, trainer="a:B", constants=PUBLIC, losses=True
)


def with_parts(change) -> type:
    """The native backend with changed parts of its loop."""

    class Odd:
        def train(self, job):
            parts = parts_of(job)
            train_with(job, dataclasses.replace(parts, **change(parts)))

    return Odd


def with_job(**changes) -> type:
    """The native backend with changed fields of the job, functions of the job."""

    class Odd:
        def train(self, job):
            NativeTrainer().train(dataclasses.replace(job, **{name: of(job) for name, of in changes.items()}))

    return Odd


def frozen_noise(parts):
    first: list[torch.Tensor] = []

    def noise(total, deviation, source):
        first.append(parts.noise(total, deviation, source))
        return first[0]

    return {"noise": noise}


def same_batches(parts):
    sampler = SimpleNamespace(draw=lambda source: torch.arange(10))
    phases = tuple(dataclasses.replace(p, sampler=sampler) for p in parts.schedule.phases)
    return {"schedule": dataclasses.replace(parts.schedule, phases=phases)}


def noise_times(factor):
    """Noise whose size is multiplied by a function of the sum."""
    return with_parts(lambda parts: {"noise": lambda total, *more: factor(total) * parts.noise(total, *more)})


doubled_noise, without_noise = noise_times(lambda total: 2), noise_times(lambda total: 0)
no_noise_when_empty = noise_times(lambda total: float(bool(total.any())))
always_noisy = with_parts(lambda parts: {"noise": lambda total, _, source: parts.noise(total, 1.0, source)})
no_clipping = with_parts(lambda parts: {"contributions": lambda state, i, clip: parts.contributions(state, i, 1e9)})
ascent = with_parts(lambda parts: {"update": lambda state, noisy: 2 * state - parts.update(state, noisy)})
lucky = with_job(seed=lambda job: int(torch.randint(1 << 30, (1,))))
quiet = with_job(observers=lambda job: ())
counting_records = with_job(expected_batch_size=lambda job: float(len(job.x)))
quiet_with_adam = with_job(observers=lambda job: () if "adam" in str(job.options.get("optimizer")) else job.observers)


@pytest.mark.family
@pytest.mark.parametrize(
    ("backend", "test", "match"),
    [
        (doubled_noise, "test_noise_is_fresh_and_of_the_declared_size", "declared 1.5"),
        (with_parts(frozen_noise), "test_noise_is_fresh_and_of_the_declared_size", "same noise|declared 1.5"),
        (always_noisy, "test_without_noise_nothing_is_random_but_the_batches", "without a declared noise"),
        (no_clipping, "test_contributions_are_clipped", "above the clip norm"),
        (no_clipping, "test_gradient_canaries_appear_in_the_update", "the canary is not clipped"),
        (no_noise_when_empty, "test_empty_batches_survive", "must add its noise"),
        (ascent, "test_training_lowers_the_loss", "thirty steps moved the loss"),
        (with_parts(same_batches), "test_batches_are_drawn_as_declared", "fixed sampling drew 10 records, not 7"),
        (with_job(seed=lambda job: 0), "test_same_seed_gives_the_same_bytes", "the seed does not decide the run"),
        (lucky, "test_same_seed_gives_the_same_bytes", "two runs of one seed differ"),
        (lucky, "test_global_generators_are_left_alone", "draws from the global generator of torch"),
        (with_job(cancelled=lambda job: None), "test_a_cancelled_job_stops", "a cancelled job ran to its end"),
        (quiet, "test_declared_capabilities_are_delivered_in_order", r"released \(capability iterates\)"),
        (with_job(canaries=lambda job: None), "test_gradient_canaries_appear_in_the_update", "not in the update"),
        (without_noise, "test_noise_of_the_declared_size_reaches_the_model", "on the sum, declared 3"),
        (doubled_noise, "test_noise_of_the_declared_size_reaches_the_model", "on the sum, declared 3"),
        (counting_records, "test_it_says_where_its_constants_come_from", "some divisor counts the records"),
        (ascent, "test_parts_are_those_of_the_native_loop", "another model on the same job"),
        (quiet_with_adam, "test_declared_capabilities_are_delivered_in_order", "with optimizer adam"),
        (with_job(loss=lambda job: None), "test_declared_losses_are_trained", "along the gradient of job.loss"),
    ],
)
def test_bad_backends_are_refused(backend, test, match):
    refuses(suite(BackendSuite, BACKEND, backend), test, match)


def test_a_backend_has_to_say_where_its_constants_come_from():
    test = "test_it_says_where_its_constants_come_from"
    silent = dataclasses.replace(BACKEND, constants="")
    refuses(suite(BackendSuite, silent, NativeTrainer), test, "constants=dps.Assumption")


@pytest.mark.ci
@pytest.mark.parametrize("capabilities", [{"sampling-log", "noise-log"}, {"iterates"}, set()])
def test_a_backend_without_canaries_is_held_to_the_same_promises(capabilities, monkeypatch):
    """One that declares logs and delivers none, or trains without noise: no promise of it goes untried."""

    class Mute:
        def train(self, job):
            without_noise().train(dataclasses.replace(job, observers=()))

    module = types.ModuleType("mute_backend")
    module.Mute = Mute
    monkeypatch.setitem(sys.modules, "mute_backend", module)
    backend = dataclasses.replace(BACKEND, capabilities=frozenset(capabilities), trainer="mute_backend:Mute")
    offered = Offered(provider=backend, plugin="odd", distribution="odd", version="1")
    registry = SimpleNamespace(catalog=Catalog(backends={"odd": offered}), module=lambda *_: module)
    broken = [promise.broken for promise in inspect_plugin(registry, "backend", "odd")]
    assert any("(capability" in text for text in broken) == bool(capabilities)
    assert any("on the sum, declared 3" in text for text in broken)
