"""Batches that are not those that the accountant assumes."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import dpspec
from support.public_mistakes.parts import (
    DELTA,
    SECRET,
    OpacusTraining,
    OwnLoop,
    PublicMistake,
    classifier,
    dataset,
)


def shuffled_loader(folder: Path, mistaken: bool) -> float:
    """Opacus with ``poisson_sampling=False``, and its accountant of Poisson batches."""
    training = OpacusTraining(loader={"shuffle": True}, poisson_sampling=not mistaken)
    with training.recorder(folder):
        for _ in range(2):
            for x, y in training.loader:
                training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def dropped_last_batch(folder: Path, mistaken: bool) -> float:
    """An own loop over ``DataLoader(shuffle=True, drop_last=True)``, accounted at batch size over records."""
    loop = OwnLoop(records=310)
    loop.rate = 30 / 310
    numbered = torch.arange(310)
    loader = DataLoader(numbered, batch_size=30, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    with loop.recorder(folder) as run:
        for _ in range(2):
            for drawn in loader if mistaken else (loop.poisson() for _ in range(10)):
                loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


def slices_of_a_permutation(folder: Path, mistaken: bool) -> float:
    """One permutation, cut into batches, in the same order in each epoch."""
    loop = OwnLoop()
    order = torch.randperm(300)
    with loop.recorder(folder) as run:
        for step in range(20):
            drawn = order[30 * (step % 10) :][:30] if mistaken else loop.poisson()
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


def batches_of_one_size(folder: Path, mistaken: bool) -> float:
    """Each step takes batch-size records at random, without replacement."""
    loop, generator = OwnLoop(), random.Random(SECRET)
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = torch.tensor(generator.sample(range(300), 30)) if mistaken else loop.poisson()
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


def shrinking_pool(folder: Path, mistaken: bool) -> float:
    """Sizes are binomial, and a record is not eligible again until all records were used."""
    loop, pool = OwnLoop(), torch.zeros(0, dtype=torch.int64)
    with loop.recorder(folder) as run:
        for _ in range(40):
            drawn = loop.poisson()
            if mistaken:
                size = len(drawn)
                if len(pool) < size:
                    pool = torch.randperm(300)
                drawn, pool = pool[:size], pool[size:]
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(40)


def empty_batch_drawn_again(folder: Path, mistaken: bool) -> float:
    """An empty batch is drawn again until it has a record."""
    loop = OwnLoop(records=40, rate=0.05)
    with loop.recorder(folder) as run:
        for _ in range(150):
            drawn = loop.poisson()
            while mistaken and not len(drawn):
                drawn = loop.poisson()
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(150)


def empty_batch_filled(folder: Path, mistaken: bool) -> float:
    """A random record replaces an empty batch of the loader."""
    training = OpacusTraining(data=dataset(40), batch=2)
    with training.recorder(folder):
        for _ in range(3):
            for x, y in training.loader:
                if mistaken and not len(x):
                    chosen = torch.randint(40, (1,))
                    x, y = (values[chosen] for values in training.data.tensors)
                training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def empty_batch_skipped(folder: Path, mistaken: bool) -> float:
    """The loop continues with the next batch if one is empty."""
    training = OpacusTraining(data=dataset(40), batch=2)
    with training.recorder(folder):
        for _ in range(3):
            for x, y in training.loader:
                if mistaken and not len(x):
                    continue
                training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def rate_of_a_dropping_loader(folder: Path, mistaken: bool) -> float:
    """Opacus' loader draws at 1 over the number of full batches, and the accountant gets batch size over records."""
    torch.manual_seed(SECRET)
    data, batch = dataset(299), 100
    loader = DPDataLoader.from_data_loader(DataLoader(data, batch_size=batch, drop_last=True))
    model = GradSampleModule(classifier())
    inner = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = DPOptimizer(inner, noise_multiplier=2.0, max_grad_norm=0.5, expected_batch_size=batch)
    accountant = RDPAccountant()
    rate = batch / len(data) if mistaken else loader.sample_rate
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=rate))
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=accountant):
        for _ in range(10):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    return float(accountant.get_epsilon(DELTA))


def rate_of_another_batch_size(folder: Path, mistaken: bool) -> float:
    """An own loop declares batch size over records, and draws at 1 over the number of full batches."""
    loop = OwnLoop(rate=80 / 300)
    with loop.recorder(folder) as run:
        for _ in range(20):
            drawn = loop.poisson(1 / (300 // 80) if mistaken else None)
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


def rate_of_the_physical_batch(folder: Path, mistaken: bool) -> float:
    """Gradients of eight drawn batches are accumulated, and the accountant gets the rate of one."""
    loop = OwnLoop(sigma=2.0, rate=0.02 if mistaken else 0.16)
    with loop.recorder(folder) as run:
        for _ in range(20):
            parts = [loop.poisson(0.02) for _ in range(8)] if mistaken else [loop.poisson()]
            drawn = torch.cat(parts)
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise(), divisor=48.0)
    return loop.epsilon(20)


def accumulated_batches(folder: Path, mistaken: bool) -> float:
    """With Opacus: the optimizer skips three of four steps, and the accountant counts one step at the loader's rate."""
    training = OpacusTraining(batch=15)
    with training.recorder(folder):
        for _ in range(2):
            for number, (x, y) in enumerate(training.loader):
                if mistaken:
                    training.optimizer.signal_skip_step(do_skip=number % 4 != 3)
                training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def divided(folder: Path, records: int, divisor: float) -> float:
    loop = OwnLoop(records=records, rate=1 / 7, sigma=2.0)
    with loop.recorder(folder) as run:
        for _ in range(10):
            drawn = loop.poisson()
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise(), divisor)
    return loop.epsilon(10)


def floored_divisor(folder: Path, mistaken: bool) -> float:
    """The divisor is the floor of the records times the rate: 205 for 1,435 records and 204 for 1,434."""
    return divided(folder, 1435, int(1435 * (1 / 7)) if mistaken else 205.0)


def fractional_divisor(folder: Path, mistaken: bool) -> float:
    """The divisor is the number of records times the rate, 204.86 for 1,434 records; the twin chose its number."""
    return divided(folder, 1434, 1434 * (1 / 7) if mistaken else 200.0)


def floored_divisor_of_opacus(folder: Path, mistaken: bool) -> float:
    """The same with ``make_private``, which computes the divisor; the twin declares public numbers."""
    training = OpacusTraining(data=dataset(1435), batch=216)
    assert training.optimizer.expected_batch_size == 205
    with training.recorder(folder):
        for x, y in training.loader:
            training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


MISTAKES = (
    PublicMistake(
        script=shuffled_loader, source="lxuechen/private-transformers/issues/7", says="deviates", words="shuffled"
    ),
    PublicMistake(
        script=dropped_last_batch, source="ftramer/Handcrafted-DP/issues/2", says="deviates", words="same size"
    ),
    PublicMistake(
        script=slices_of_a_permutation,
        source="google-deepmind/jax_privacy/issues/84",
        says="deviates",
        words="equally often",
    ),
    PublicMistake(
        script=batches_of_one_size, source="ebagdasa/pytorch-privacy/issues/2", says="deviates", words="same size"
    ),
    PublicMistake(
        script=shrinking_pool, source="google-deepmind/jax_privacy/issues/121", says="deviates", words="common"
    ),
    PublicMistake(
        script=empty_batch_drawn_again,
        source="meta-pytorch/opacus/issues/161",
        says="caution",
        words="empty-batch-skipped.*drawn again",
    ),
    PublicMistake(script=empty_batch_filled, source="DPTrainer 0.1.2", says="deviates", words="rows"),
    PublicMistake(script=empty_batch_skipped, source="meta-pytorch/opacus/issues/161", says="deviates", words="empty"),
    PublicMistake(script=rate_of_a_dropping_loader, source="DPTrainer 0.1.2", says="deviates", words="rate"),
    PublicMistake(script=rate_of_another_batch_size, source="DPTrainer 0.1.2", says="deviates", words="rate"),
    PublicMistake(
        script=rate_of_the_physical_batch, source="google-deepmind/jax_privacy/pull/271", says="deviates", words="rate"
    ),
    PublicMistake(
        script=accumulated_batches, source="google-deepmind/jax_privacy/pull/271", says="deviates", words="several"
    ),
    PublicMistake(
        script=floored_divisor,
        source="meta-pytorch/opacus/issues/819",
        says="open",
        words="floor",
        claim={"adjacency": "add-remove"},
        twin_claim={"public": ("divisor",)},
    ),
    PublicMistake(
        script=fractional_divisor,
        source="meta-pytorch/opacus/issues/819",
        says="open",
        words="the records times the rate",
        claim={"adjacency": "add-remove"},
    ),
    PublicMistake(
        script=floored_divisor_of_opacus,
        source="meta-pytorch/opacus/issues/571",
        says="open",
        words="floor",
        claim={"adjacency": "add-remove"},
        twin_claim={"public": ("rate", "divisor")},
    ),
)
