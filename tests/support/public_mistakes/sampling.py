"""Batches that are not those that the accountant assumes."""

import random
from pathlib import Path
from typing import Any

import torch
from opacus.accountants import RDPAccountant
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from support.public_mistakes.parts import (
    DELTA,
    SECRET,
    OpacusTraining,
    OwnLoop,
    accounted_training,
    dataset,
    mistake,
    opacus_loop,
    own_loop,
)


@opacus_loop(
    "lxuechen/private-transformers/issues/7",
    "deviates",
    "shuffled",
    make=lambda mistaken: OpacusTraining(loader={"shuffle": True}, poisson_sampling=not mistaken),
)
def shuffled_loader(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """Opacus with ``poisson_sampling=False``, and its accountant of Poisson batches."""
    return cross_entropy(training.model(x), y)


@mistake("ftramer/Handcrafted-DP/issues/2", "deviates", "same size")
def dropped_last_batch(folder: Path, mistaken: bool) -> float:
    """An own loop over ``DataLoader(shuffle=True, drop_last=True)``, accounted at batch size over records."""
    loop = OwnLoop(records=310, rate=30 / 310)
    loader = DataLoader(torch.arange(310), batch_size=30, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    with loop.recorder(folder) as run:
        for _ in range(2):
            for drawn in loader if mistaken else (loop.poisson() for _ in range(10)):
                loop.honest(run, drawn)
    return loop.epsilon(20)


@own_loop("google-deepmind/jax_privacy/issues/84", "deviates", "equally often")
def slices_of_a_permutation(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """One permutation, cut into batches, in the same order in each epoch."""
    step, order = loop.state or (0, torch.randperm(300))
    loop.state = step + 1, order
    loop.honest(run, order[30 * (step % 10) :][:30] if mistaken else drawn)


@own_loop("ebagdasa/pytorch-privacy/issues/2", "deviates", "same size")
def batches_of_one_size(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Each step takes batch-size records at random, without replacement."""
    loop.state = loop.state or random.Random(SECRET)
    loop.honest(run, torch.tensor(loop.state.sample(range(300), 30)) if mistaken else drawn)


@own_loop("google-deepmind/jax_privacy/issues/121", "deviates", "common", steps=40)
def shrinking_pool(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """Sizes are binomial, and a record is not eligible again until all records were used."""
    if mistaken:
        size, pool = len(drawn), loop.state
        if pool is None or len(pool) < size:
            pool = torch.randperm(300)
        drawn, loop.state = pool[:size], pool[size:]
    loop.honest(run, drawn)


@own_loop(
    "meta-pytorch/opacus/issues/161", "caution", "empty-batch-skipped.*drawn again", steps=150, records=40, rate=0.05
)
def empty_batch_drawn_again(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """An empty batch is drawn again until it has a record."""
    while mistaken and not len(drawn):
        drawn = loop.poisson()
    loop.honest(run, drawn)


def _pairs_of_40(mistaken: bool) -> OpacusTraining:
    return OpacusTraining(data=dataset(40), batch=2)


@opacus_loop("DPTrainer 0.1.2", "deviates", "rows", epochs=3, make=_pairs_of_40)
def empty_batch_filled(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """A random record replaces an empty batch of the loader."""
    if mistaken and not len(x):
        chosen = torch.randint(40, (1,))
        x, y = (values[chosen] for values in training.data.tensors)
    return cross_entropy(training.model(x), y)


@opacus_loop("meta-pytorch/opacus/issues/161", "deviates", "empty", epochs=3, make=_pairs_of_40)
def empty_batch_skipped(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor | None:
    """The loop continues with the next batch if one is empty."""
    return cross_entropy(training.model(x), y) if len(x) or not mistaken else None


@mistake("DPTrainer 0.1.2", "deviates", "rate")
def rate_of_a_dropping_loader(folder: Path, mistaken: bool) -> float:
    """Opacus' loader draws at 1 over the number of full batches, and the accountant gets batch size over records."""
    accountant, rate = RDPAccountant(), 100 / 299 if mistaken else None
    for _ in accounted_training(folder, accountant, epochs=10, batch=100, sigma=2.0, records=299, rate=rate):
        pass
    return float(accountant.get_epsilon(DELTA))


@own_loop("DPTrainer 0.1.2", "deviates", "rate", rate=80 / 300)
def rate_of_another_batch_size(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """An own loop declares batch size over records, and draws at 1 over the number of full batches."""
    loop.honest(run, loop.poisson(1 / (300 // 80)) if mistaken else drawn)


@mistake("google-deepmind/jax_privacy/pull/271", "deviates", "rate")
def rate_of_the_physical_batch(folder: Path, mistaken: bool) -> float:
    """Gradients of eight drawn batches are accumulated, and the accountant gets the rate of one."""
    loop = OwnLoop(sigma=2.0, rate=0.02 if mistaken else 0.16)
    for run, drawn in loop.recorded(folder, 20):
        more = [loop.poisson() for _ in range(7 if mistaken else 0)]
        loop.honest(run, torch.cat([drawn, *more]), divisor=48.0)
    return loop.epsilon(20)


@opacus_loop(
    "google-deepmind/jax_privacy/pull/271", "deviates", "several", make=lambda mistaken: OpacusTraining(batch=15)
)
def accumulated_batches(training: OpacusTraining, x: Tensor, y: Tensor, mistaken: bool) -> Tensor:
    """With Opacus: the optimizer skips three of four steps, and the accountant counts one step at the loader's rate."""
    if mistaken:
        training.steps = getattr(training, "steps", 0) + 1
        training.optimizer.signal_skip_step(do_skip=training.steps % 4 != 0)
    return cross_entropy(training.model(x), y)


ADD_REMOVE = {"adjacency": "add-remove"}
SEVENTH = {"rate": 1 / 7, "sigma": 2.0, "steps": 10, "claim": ADD_REMOVE}


@own_loop(
    "meta-pytorch/opacus/issues/819", "open", "floor", twin_claim={"public": ("divisor",)}, records=1435, **SEVENTH
)
def floored_divisor(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The divisor is the floor of the records times the rate: 205 for 1,435 records and 204 for 1,434."""
    loop.honest(run, drawn, divisor=int(1435 * (1 / 7)) if mistaken else 205.0)


@own_loop("meta-pytorch/opacus/issues/819", "open", "the records times the rate", records=1434, **SEVENTH)
def fractional_divisor(loop: OwnLoop, run: Any, drawn: Tensor, mistaken: bool) -> None:
    """The divisor is the number of records times the rate, 204.86 for 1,434 records; the twin chose its number."""
    loop.honest(run, drawn, divisor=1434 * (1 / 7) if mistaken else 200.0)


@mistake(
    "meta-pytorch/opacus/issues/571", "open", "floor", claim=ADD_REMOVE, twin_claim={"public": ("rate", "divisor")}
)
def floored_divisor_of_opacus(folder: Path, mistaken: bool) -> float:
    """The same with ``make_private``, which computes the divisor; the twin declares public numbers."""
    training = OpacusTraining(data=dataset(1435), batch=216)
    assert training.optimizer.expected_batch_size == 205
    for x, y in training.recorded(folder, 1):
        training.step(cross_entropy(training.model(x), y))
    return training.epsilon()
