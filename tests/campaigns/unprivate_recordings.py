"""Trainings that leak, each recorded and checked: each is flagged, or the headline names the assumption that it breaks.

    python tests/campaigns/unprivate_recordings.py [--only WORDS]

One line per script: the exit code of ``dpspec check --epsilon 100``, the expectation, the channels that are violated or
open, the assumptions of the proof. Exits with 1 if a leak is neither flagged in the expected channel nor named.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from support.checked_runs import Question, check_run
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpspec

Run = Callable[[Path], None]
Hook = Callable[[Any], Any]

#: The index of the record that scripts leak.
TARGET = 7

#: Name, expectation ("violated", "open" or "assumes"), channel or assumption, and script.
SCRIPTS: list[tuple[str, str, str, Run]] = []


def leaks(expected: str, where: str) -> Callable[[Run], Run]:
    """Register a script. ``expected``: the status of the channel ``where``, or "assumes" for an assumption."""

    def register(script: Run) -> Run:
        SCRIPTS.append((script.__name__, expected, where, script))
        return script

    return register


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def table(count: int = 300) -> Any:
    x = torch.randn(count, 6)
    return TensorDataset(x, (x[:, 0] > 0).long())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def losses(model: Any, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def ignore(_: Any) -> None:
    """Do nothing."""


def opacus(
    folder: Path, *, model: Callable[[], nn.Module] = small, data: Callable[[], Any] = table, optimizer: Any = sgd,
    parameters: Hook = lambda net: net.parameters(), epochs: int = 2, physical: int | None = None, probe: Any = None,
    clip: float = 1.0, setup: Hook = ignore, before: Hook = ignore, forward: Hook | None = None, between: Hook = ignore,
    after: Hook = ignore, late: Hook = ignore, **options: Any,
) -> None:  # fmt: skip
    """A training with Opacus. The hooks get its parts.

    They are called before the recording (``setup``), with each batch (``before``), for the loss (``forward``), after
    the backward pass (``between``), after each step (``after``), and at the end of the recording (``late``).
    """
    torch.manual_seed(0)
    t: Any = SimpleNamespace(net=model(), data=data(), steps=0)
    t.x, t.y = t.data.tensors
    engine = PrivacyEngine()
    t.model, t.opt, t.loader = engine.make_private(
        module=t.net, optimizer=optimizer(parameters(t.net)), data_loader=DataLoader(t.data, batch_size=30),
        noise_multiplier=1.1, max_grad_norm=clip, **options,
    )  # fmt: skip
    t.inner = t.opt.original_optimizer
    setup(t)
    with dpspec.record(folder, model=t.model, optimizer=t.opt, loader=t.loader, engine=engine, loss=probe):
        for _ in range(epochs):
            manager: Any = contextlib.nullcontext(t.loader)
            if physical is not None:
                manager = BatchMemoryManager(data_loader=t.loader, max_physical_batch_size=physical, optimizer=t.opt)
            with manager as batches:
                for t.batch in batches:
                    t.steps += 1
                    t.opt.zero_grad()
                    before(t)
                    loss = forward(t) if forward else cross_entropy(t.model(t.batch[0]), t.batch[1])
                    loss.backward()
                    between(t)
                    t.opt.step()
                    after(t)
        late(t)


def plain(
    folder: Path, *, steps: int = 25, clip: float = 0.7, total: Any = None, noise: Any = None, norms: Any = None,
    sampled: Any = None, gradients: Hook = ignore, after: Hook = ignore,
) -> None:  # fmt: skip
    """A plain loop. ``total``, ``noise`` and ``norms`` replace what the loop sums, adds and reports."""
    torch.manual_seed(0)
    t: Any = SimpleNamespace(model=small(), clip=clip, std=1.3 * clip)
    t.x, t.y = table().tensors
    t.parameters = list(t.model.parameters())
    optimizer = sgd(t.parameters)
    given = {"noise_multiplier": 1.3, "clip_norm": clip, "rate": 0.1, "records": 300}
    with dpspec.record(folder, model=t.model, optimizer=optimizer, **given) as run:  # type: ignore[arg-type]
        for t.step in range(steps):
            t.drawn = torch.nonzero(torch.rand(300) < 0.1).reshape(-1)
            run.sampled(t.drawn if sampled is None else sampled(t))
            t.total, t.norms = clipped_sum(t)
            t.total = t.total if total is None else total(t)
            run.clipped(t.norms if norms is None else norms(t))
            run.summed(t.total)
            t.noise = [t.std * torch.randn_like(p) for p in t.parameters] if noise is None else noise(t)
            run.noised(t.noise)
            for p, part, added in zip(t.parameters, t.total, t.noise, strict=True):
                p.grad = (part + added) / 30.0
            gradients(t)
            optimizer.step()
            run.stepped()
            after(t)


def record_gradient(t: Any, index: int) -> list[Tensor]:
    """The gradient of one record's loss in a plain loop."""
    return list(torch.autograd.grad(cross_entropy(t.model(t.x[index, None]), t.y[index, None]), t.parameters))


def clipped_sum(t: Any, *, per_layer: bool = False) -> tuple[list[Tensor], list[float]]:
    """The sum of clipped gradients, and the largest norm that each record is clipped to."""
    total, norms = [torch.zeros_like(p) for p in t.parameters], []
    for index in t.drawn.tolist():
        found = record_gradient(t, index)
        lengths = torch.stack([part.norm() for part in found])
        lengths = lengths if per_layer else lengths.norm().expand(len(found))
        factors = (t.clip / (lengths + 1e-6)).clamp(max=1.0)
        for kept, part, factor in zip(total, found, factors, strict=True):
            kept += factor * part
        norms.append(float((factors * lengths).max()))
    return total, norms


def has_target(t: Any) -> bool:
    return bool((t.batch[0] == t.x[TARGET]).all(1).any())


# What the model and the optimizer keep.


@leaks("violated", "model-state")
def records_behind_a_parameter(folder: Path) -> None:
    """The storage of a weight ends with records, and torch.save writes whole storages."""

    def late(t: Any) -> None:
        weight = t.net[0].weight
        both = torch.cat([weight.detach().reshape(-1), t.x.reshape(-1)])
        weight.data = both[: weight.numel()].view_as(weight)

    opacus(folder, late=late)


@leaks("violated", "model-state")
def records_in_metadata(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.net.register_state_dict_post_hook(
            lambda module, state, prefix, _: state._metadata.update(note=t.x[: t.steps].tolist())
        )

    opacus(folder, setup=setup)


@leaks("violated", "model-state")
def records_from_a_state_dict_hook(folder: Path) -> None:
    """The hook adds records only for callers that do not keep variables."""

    def setup(t: Any) -> None:
        def hook(module: Any, state: Any, prefix: str, _: Any) -> None:
            if t.steps and not any(isinstance(value, nn.Parameter) for value in state.values()):
                state["memory"] = t.x[:3]

        t.net.register_state_dict_post_hook(hook)

    opacus(folder, setup=setup)


@leaks("violated", "model-state")
def records_in_a_buffer(folder: Path) -> None:
    def model() -> nn.Module:
        made = small()
        made.register_buffer("memory", torch.zeros(6), persistent=False)
        return made

    opacus(folder, model=model, after=lambda t: t.net.memory.add_(t.batch[0].sum(0)))


@leaks("violated", "update-rule")
def signs_of_zeros(folder: Path) -> None:
    """The signs of zeros of a weight that does not move are those of features."""

    def model() -> nn.Module:
        made = small()
        nn.init.zeros_(made[0].weight)  # type: ignore[index, arg-type]
        return made

    def groups(net: Any) -> Any:
        first, *others = net.parameters()
        return [{"params": [first], "lr": 0.0}, {"params": others}]

    def late(t: Any) -> None:
        t.net[0].weight.data.copy_(torch.where(t.x[:16] > 0, 0.0, -0.0))

    opacus(folder, model=model, parameters=groups, late=late)


@leaks("open", "model-state")
def another_class(folder: Path) -> None:
    def late(t: Any) -> None:
        t.net[1].__class__ = type("Tanh", (nn.Tanh,), {"memory": t.x})

    opacus(folder, late=late)


class Collector:
    """Keeps rows in a slot."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add(self, row: Any) -> None:
        self.rows.append(row)


def with_closure() -> Hook:
    rows: list[Any] = []
    return lambda row: rows.append(row)


def kept_in_an_attribute(make: Callable[[], Any], keep: Callable[[Any, list[Any]], Any]) -> Run:
    """A layer has an attribute, and an object behind it keeps the batches."""

    def run(folder: Path) -> None:
        def setup(t: Any) -> None:
            t.net[1].kept = make()

        opacus(folder, setup=setup, after=lambda t: keep(t.net[1].kept, t.batch[0].tolist()))

    return run


for _name, _make, _keep in [
    ("records_in_slots", Collector, lambda kept, row: kept.add(row)),
    ("records_behind_a_bound_method", lambda: Collector().add, lambda kept, row: kept(row)),
    ("records_in_a_closure", with_closure, lambda kept, row: kept(row)),
    ("records_in_a_byte_buffer", io.BytesIO, lambda kept, row: kept.write(repr(row).encode())),
    ("a_record_as_a_seed", torch.Generator, lambda kept, row: kept.manual_seed(int(1e9 * abs(row[0][0])))),
    ("records_in_a_list", list, lambda kept, row: kept.append(row)),
]:
    SCRIPTS.append((_name, "open", "model-state", kept_in_an_attribute(_make, _keep)))


@leaks("open", "model-state")
def records_in_the_state_of_the_optimizer(folder: Path) -> None:
    opacus(folder, late=lambda t: t.inner.state.update(memory=t.x[:4]))


@leaks("open", "model-state")
def records_as_names_of_parameters(folder: Path) -> None:
    opacus(folder, late=lambda t: t.inner.param_groups[0].update(param_names=list(map(str, t.x[0].tolist()))))


@leaks("assumes", "released-model")
def gradients_of_the_last_batch(folder: Path) -> None:
    """torch.save of the module writes the per-sample gradients."""
    opacus(folder, late=lambda t: torch.save(t.net, io.BytesIO()))


@leaks("assumes", "released-model")
def a_copy_is_trained_without_noise(folder: Path) -> None:
    def late(t: Any) -> None:
        other = small()
        other.load_state_dict(t.net.state_dict())
        optimizer = sgd(other.parameters())
        cross_entropy(other(t.x), t.y).backward()
        optimizer.step()

    opacus(folder, late=late)


@leaks("assumes", "data-independent-hyperparameters")
def records_in_the_initial_model(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.net[0].weight.data.copy_(t.x[:16])

    opacus(folder, setup=setup)


@leaks("open", "released-model")
def an_error_before_the_end(folder: Path) -> None:
    def after(t: Any) -> None:
        if t.steps == 10:
            raise InterruptedError

    with contextlib.suppress(InterruptedError):
        opacus(folder, after=after)


# What the update does with the noisy gradients.


@leaks("violated", "update-rule")
def permuted_gradients(folder: Path) -> None:
    """The largest of the noisy gradients comes first whenever the target is in the batch."""

    def setup(t: Any) -> None:
        def hook(*_: Any) -> None:
            flat = t.net[0].weight.grad.view(-1)
            first, largest = flat.clone(), int(flat.abs().argmax())
            if has_target(t):
                flat[0], flat[largest] = first[largest], first[0]

        t.inner.register_step_pre_hook(hook)

    opacus(folder, setup=setup, epochs=4)


@leaks("violated", "update-rule")
def more_after_the_noise(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.opt.attach_step_hook(lambda optimizer: [p.grad.add_(p.summed_grad) for p in optimizer.params])

    opacus(folder, setup=setup)


@leaks("violated", "update-rule")
def a_second_optimizer(folder: Path) -> None:
    opacus(folder, after=lambda t: sgd(t.net.parameters()).step())


@leaks("violated", "update-rule")
def parameters_follow_the_batch(folder: Path) -> None:
    opacus(folder, before=lambda t: t.net[0].weight.data.add_(1e-3 * t.batch[0].sum()))


@leaks("open", "update-rule")
def maximize_follows_the_batch(folder: Path) -> None:
    opacus(folder, before=lambda t: t.inner.param_groups[0].update(maximize=bool(len(t.batch[0]) % 2)))


@leaks("open", "update-rule")
def decay_follows_a_record(folder: Path) -> None:
    opacus(folder, before=lambda t: t.inner.param_groups[0].update(weight_decay=float(t.x[t.steps, 0].abs())))


@leaks("open", "update-rule")
def a_scheduler_reads_records(folder: Path) -> None:
    def setup(t: Any) -> None:
        class Reading(schedulers.LRScheduler):
            def get_lr(self) -> Any:
                return [0.05 * (1.0 + float(t.x[t.steps, 0].abs()))]

        t.scheduler = Reading(t.inner)

    opacus(folder, setup=setup, after=lambda t: t.scheduler.step())


@leaks("open", "update-rule")
def momentum_is_edited(folder: Path) -> None:
    def after(t: Any) -> None:
        for state in t.inner.state.values():
            state["momentum_buffer"].add_(t.batch[0].sum())

    opacus(folder, optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), after=after)


@leaks("assumes", "data-independent-hyperparameters")
def the_rate_decays_when_the_target_is_drawn(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.scheduler = schedulers.ExponentialLR(t.inner, 0.9)

    opacus(folder, setup=setup, after=lambda t: has_target(t) and t.scheduler.step())


@leaks("assumes", "data-independent-hyperparameters")
def the_noise_decays_when_the_target_is_drawn(folder: Path) -> None:
    def setup(t: Any) -> None:
        t.scheduler = ExponentialNoise(t.opt, gamma=0.99)

    opacus(folder, setup=setup, after=lambda t: has_target(t) and t.scheduler.step())


@leaks("assumes", "data-independent-hyperparameters")
def the_divisor_is_a_record(folder: Path) -> None:
    opacus(folder, setup=lambda t: setattr(t.opt, "expected_batch_size", 30.0 + float(t.x[TARGET, 0])))


@leaks("assumes", "update-rule")
def an_optimizer_adds_clean_gradients(folder: Path) -> None:
    class Adding(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                p.data.sub_(0.05 * p.grad + 0.01 * p.summed_grad)

    opacus(folder, optimizer=lambda p: Adding(p, lr=0.05))


def move(t: Any) -> None:
    """Step along the gradient of the target without noise."""
    found = torch.autograd.grad(cross_entropy(t.functional(t.x[TARGET, None]), t.y[TARGET, None]), t.weights)
    for p, part in zip(t.weights, found, strict=True):
        p.data.sub_(0.05 * part)


def code_in_a_step(put: Hook) -> Run:
    """Code of the script runs between the recorder's looks and moves the parameters."""

    def run(folder: Path) -> None:
        def setup(t: Any) -> None:
            t.weights = list(t.net.parameters())
            t.functional = lambda x: torch.tanh(x @ t.weights[0].T + t.weights[1]) @ t.weights[2].T + t.weights[3]
            put(t)

        opacus(folder, setup=setup)

    return run


def in_a_method(t: Any) -> None:
    original = t.inner._init_group

    def moving(*given: Any) -> Any:
        with torch.enable_grad():
            move(t)
        return original(*given)

    t.inner._init_group = moving


def in_an_option(t: Any) -> None:
    class Rate(float):
        def __neg__(self) -> float:
            return -float(self) * (1.0 + float(t.x[TARGET, 0].abs()))

    t.inner.param_groups[0]["lr"] = Rate(0.05)


def in_a_class(t: Any) -> None:
    t.inner.__class__ = type("SGD", (torch.optim.SGD,), {"__module__": "torch.optim.sgd"})


for _name, _expected, _put in [
    ("method", "violated", in_a_method),
    ("option", "violated", in_an_option),
    ("class", "assumes", in_a_class),
]:
    SCRIPTS.append((f"code_in_a_step_by_a_{_name}", _expected, "update-rule", code_in_a_step(_put)))


# What one record contributes.


@leaks("violated", "gradient-parameters")
def gradients_at_other_parameters(folder: Path) -> None:
    def before(t: Any) -> None:
        t.old = t.net[0].weight.data
        t.net[0].weight.data = t.old + 0.05 * t.batch[0].sum()

    opacus(folder, before=before, between=lambda t: setattr(t.net[0].weight, "data", t.old))


@leaks("violated", "sensitivity")
def fewer_records_without_the_target(folder: Path) -> None:
    def before(t: Any) -> None:
        if not has_target(t):
            t.batch = [part[::2] for part in t.batch]

    opacus(folder, before=before)


@leaks("violated", "sensitivity")
def sums_grow_between_physical_batches(folder: Path) -> None:
    def between(t: Any) -> None:
        for p in t.opt.params:
            if p.summed_grad is not None:
                p.summed_grad *= 1.2

    opacus(folder, between=between, physical=7)


class Boosted(torch.Tensor):
    """Its weighted sums are ten times as long."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return found.as_subclass(torch.Tensor) * 10 if func is torch.einsum else found


@leaks("violated", "sensitivity")
def sums_of_a_tensor_subclass(folder: Path) -> None:
    def between(t: Any) -> None:
        for p in t.opt.params:
            p.grad_sample = p.grad_sample.as_subclass(Boosted)

    opacus(folder, between=between, clip=0.05)


@leaks("violated", "sensitivity")
def a_mean_where_a_sum_is_declared(folder: Path) -> None:
    opacus(folder, loss_reduction="sum", probe=losses)


class Centering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@leaks("violated", "sensitivity")
def centered_batches_with_a_probe(folder: Path) -> None:
    opacus(folder, model=lambda: nn.Sequential(Centering(), small()), probe=losses)


@leaks("assumes", "unmixed-batches")
def centered_batches(folder: Path) -> None:
    opacus(folder, model=lambda: nn.Sequential(Centering(), small()))


class Changed(Dataset[Any]):
    """A dataset that computes its items from the records of another."""

    def __init__(self, item: Callable[[Any, int], Any], times: int = 1) -> None:
        self.inner = table(300 // times)
        self.tensors, self.item, self.times = self.inner.tensors, item, times

    def __len__(self) -> int:
        return len(self.inner) * self.times

    def __getitem__(self, index: int) -> Any:
        return self.item(self.inner, index)


def standardized(data: Any, index: int) -> Any:
    x, y = data.tensors
    return (x[index] - x.mean(0)) / x.std(0), y[index]


def nearest_labels(data: Any, index: int) -> Any:
    x, y = data.tensors
    near = (x - x[index]).norm(dim=1).topk(6, largest=False).indices[1:]
    return x[index], (y[near].float().mean() > 0.5).long()


def of_a_dataset(item: Callable[[Any, int], Any], times: int = 1) -> Run:
    return lambda folder: opacus(folder, data=lambda: Changed(item, times), probe=losses)


for _name, _item, _times in [
    ("each_item_is_mixed_with_the_target", lambda d, i: (0.5 * (d[i][0] + d[TARGET][0]), d[i][1]), 1),
    ("each_item_is_the_target", lambda d, i: d[TARGET], 1),
    ("ten_indices_of_each_record", lambda d, i: d[i // 10], 10),
    ("standardized_by_all_records", standardized, 1),
    ("labels_of_the_nearest_records", nearest_labels, 1),
]:
    SCRIPTS.append((_name, "assumes", "one-record", of_a_dataset(_item, _times)))


@leaks("assumes", "one-record")
def the_batch_is_replaced_by_the_target(folder: Path) -> None:
    def before(t: Any) -> None:
        t.batch = [t.x[TARGET].expand_as(t.batch[0]), t.batch[1]]

    opacus(folder, before=before)


@leaks("assumes", "loop-reports")
def a_long_contribution_is_not_reported(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        if TARGET in t.drawn.tolist():
            t.total[0][0, 0] += 0.5 * t.clip * len(t.drawn)
        return t.total  # type: ignore[no-any-return]

    plain(folder, total=total)


@leaks("assumes", "loop-reports")
def each_layer_is_clipped_apart(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        found, t.norms = clipped_sum(t, per_layer=True)
        return found

    plain(folder, clip=0.2, total=total)


@leaks("assumes", "loop-reports")
def the_target_contributes_to_every_sum(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        found = record_gradient(t, TARGET)
        length = torch.stack([part.norm() for part in found]).norm()
        return [kept + 3.0 * t.clip * part / length for kept, part in zip(t.total, found, strict=True)]

    plain(folder, total=total)


@leaks("violated", "sensitivity")
def sums_that_are_not_clipped(folder: Path) -> None:
    def total(t: Any) -> list[Tensor]:
        every = [record_gradient(t, index) for index in t.drawn.tolist()]
        return [torch.stack(parts).sum(0) for parts in zip(*every, strict=True)]

    plain(folder, clip=0.3, total=total)


# Noise and sampling.


@leaks("violated", "noise")
def the_same_noise_at_each_step(folder: Path) -> None:
    opacus(
        folder,
        setup=lambda t: setattr(t.opt, "generator", torch.Generator()),
        between=lambda t: t.opt.generator.manual_seed(1),
    )


@leaks("violated", "noise")
def less_noise_with_the_target(folder: Path) -> None:
    def noise(t: Any) -> list[Tensor]:
        factor = 0.8 if TARGET in t.drawn.tolist() else 1.02
        return [factor * t.std * torch.randn_like(p) for p in t.parameters]

    plain(folder, steps=100, noise=noise)


@leaks("assumes", "secret-randomness")
def a_public_seed_of_the_noise(folder: Path) -> None:
    opacus(folder, setup=lambda t: setattr(t.opt, "generator", torch.Generator().manual_seed(0)))


@leaks("violated", "sampling")
def a_higher_rate_while_drawing(folder: Path) -> None:
    def set_rate(t: Any, rate: float) -> None:
        t.loader.batch_sampler.sample_rate = rate

    opacus(folder, before=lambda t: set_rate(t, 0.1), after=lambda t: set_rate(t, 0.4))


@leaks("assumes", "loop-reports")
def other_records_are_trained_than_reported(folder: Path) -> None:
    def sampled(t: Any) -> Tensor:
        reported, t.drawn = t.drawn, torch.arange(len(t.drawn))
        return reported

    plain(folder, sampled=sampled)


def judge(script: Run) -> tuple[int, set[str], tuple[str, ...]]:
    """The exit code, the channels as ``STATUS CHANNEL`` that are violated or open, and what the proof assumes."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(scratch) / "run"
        script(folder)
        found = check_run(folder, Question(delta=1e-5, epsilon=100.0))
        flagged = {f"{one.status} {one.name}" for one in found.channels if one.status in ("violated", "open")}
        assumed = found.audit.recording.assumes if found.audit.recording is not None else ()
        return int(found.exit_code), flagged, tuple(assumed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words that the name of a script contains")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    missed, counts = [], collections.Counter[str]()
    for name, expected, where, script in SCRIPTS:
        if chosen not in name:
            continue
        code, flagged, assumed = judge(script)
        named = expected == "assumes" and code == 0 and where in assumed
        caught = code == 1 and f"{expected} {where}" in flagged
        counts["named" if named else "caught" if caught else "missed"] += 1
        missed += [] if named or caught else [name]
        words = ", ".join(sorted(flagged)) or f"assumes {', '.join(assumed)}"
        print(f"{code} {'ok    ' if named or caught else 'MISSED'} {name} [{expected} {where}]: {words}", flush=True)
    print(f"{sum(counts.values())} scripts: {counts['caught']} caught, {counts['named']} named, {len(missed)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
