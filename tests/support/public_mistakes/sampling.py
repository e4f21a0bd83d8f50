"""Batches that are not those that the accountant assumes."""

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
from support.public_mistakes.parts import DELTA, SECRET, OpacusTraining, OwnLoop, classifier, dataset, mistake


@mistake("lxuechen/private-transformers/issues/7", "deviates", "shuffled")
def shuffled_loader(folder: Path, mistaken: bool) -> float:
    """Opacus with ``poisson_sampling=False``, and its accountant of Poisson batches."""
    training = OpacusTraining(loader={"shuffle": True}, poisson_sampling=not mistaken)
    for x, y in training.recorded(folder):
        training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


@mistake("ftramer/Handcrafted-DP/issues/2", "deviates", "same size")
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


@mistake("google-deepmind/jax_privacy/issues/84", "deviates", "equally often")
def slices_of_a_permutation(folder: Path, mistaken: bool) -> float:
    """One permutation, cut into batches, in the same order in each epoch."""
    loop = OwnLoop()
    order = torch.randperm(300)
    for step, (run, poisson) in enumerate(loop.recorded(folder, 20)):
        drawn = order[30 * (step % 10) :][:30] if mistaken else poisson
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


@mistake("ebagdasa/pytorch-privacy/issues/2", "deviates", "same size")
def batches_of_one_size(folder: Path, mistaken: bool) -> float:
    """Each step takes batch-size records at random, without replacement."""
    loop, generator = OwnLoop(), random.Random(SECRET)
    for run, poisson in loop.recorded(folder, 20):
        drawn = torch.tensor(generator.sample(range(300), 30)) if mistaken else poisson
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


@mistake("google-deepmind/jax_privacy/issues/121", "deviates", "common")
def shrinking_pool(folder: Path, mistaken: bool) -> float:
    """Sizes are binomial, and a record is not eligible again until all records were used."""
    loop, pool = OwnLoop(), torch.zeros(0, dtype=torch.int64)
    for run, drawn in loop.recorded(folder, 40):
        if mistaken:
            size = len(drawn)
            if len(pool) < size:
                pool = torch.randperm(300)
            drawn, pool = pool[:size], pool[size:]
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(40)


@mistake("meta-pytorch/opacus/issues/161", "caution", "empty-batch-skipped.*drawn again")
def empty_batch_drawn_again(folder: Path, mistaken: bool) -> float:
    """An empty batch is drawn again until it has a record."""
    loop = OwnLoop(records=40, rate=0.05)
    for run, drawn in loop.recorded(folder, 150):
        while mistaken and not len(drawn):
            drawn = loop.poisson()
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(150)


@mistake("DPTrainer 0.1.2", "deviates", "rows")
def empty_batch_filled(folder: Path, mistaken: bool) -> float:
    """A random record replaces an empty batch of the loader."""
    training = OpacusTraining(data=dataset(40), batch=2)
    for x, y in training.recorded(folder, 3):
        if mistaken and not len(x):
            chosen = torch.randint(40, (1,))
            x, y = (values[chosen] for values in training.data.tensors)
        training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


@mistake("meta-pytorch/opacus/issues/161", "deviates", "empty")
def empty_batch_skipped(folder: Path, mistaken: bool) -> float:
    """The loop continues with the next batch if one is empty."""
    training = OpacusTraining(data=dataset(40), batch=2)
    for x, y in training.recorded(folder, 3):
        if len(x) or not mistaken:
            training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


@mistake("DPTrainer 0.1.2", "deviates", "rate")
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


@mistake("DPTrainer 0.1.2", "deviates", "rate")
def rate_of_another_batch_size(folder: Path, mistaken: bool) -> float:
    """An own loop declares batch size over records, and draws at 1 over the number of full batches."""
    loop = OwnLoop(rate=80 / 300)
    for run, poisson in loop.recorded(folder, 20):
        drawn = loop.poisson(1 / (300 // 80)) if mistaken else poisson
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise())
    return loop.epsilon(20)


@mistake("google-deepmind/jax_privacy/pull/271", "deviates", "rate")
def rate_of_the_physical_batch(folder: Path, mistaken: bool) -> float:
    """Gradients of eight drawn batches are accumulated, and the accountant gets the rate of one."""
    loop = OwnLoop(sigma=2.0, rate=0.02 if mistaken else 0.16)
    for run, poisson in loop.recorded(folder, 20):
        drawn = torch.cat([poisson, *(loop.poisson() for _ in range(7))]) if mistaken else poisson
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise(), divisor=48.0)
    return loop.epsilon(20)


@mistake("google-deepmind/jax_privacy/pull/271", "deviates", "several")
def accumulated_batches(folder: Path, mistaken: bool) -> float:
    """With Opacus: the optimizer skips three of four steps, and the accountant counts one step at the loader's rate."""
    training = OpacusTraining(batch=15)
    for number, (x, y) in enumerate(training.recorded(folder)):
        if mistaken:
            training.optimizer.signal_skip_step(do_skip=number % 4 != 3)
        training.step(cross_entropy(training.model(x), y))
    return training.epsilon()


def divided(folder: Path, records: int, divisor: float) -> float:
    loop = OwnLoop(records=records, rate=1 / 7, sigma=2.0)
    for run, drawn in loop.recorded(folder, 10):
        loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), loop.noise(), divisor)
    return loop.epsilon(10)


ADD_REMOVE = {"adjacency": "add-remove"}


@mistake("meta-pytorch/opacus/issues/819", "open", "floor", claim=ADD_REMOVE, twin_claim={"public": ("divisor",)})
def floored_divisor(folder: Path, mistaken: bool) -> float:
    """The divisor is the floor of the records times the rate: 205 for 1,435 records and 204 for 1,434."""
    return divided(folder, 1435, int(1435 * (1 / 7)) if mistaken else 205.0)


@mistake("meta-pytorch/opacus/issues/819", "open", "the records times the rate", claim=ADD_REMOVE)
def fractional_divisor(folder: Path, mistaken: bool) -> float:
    """The divisor is the number of records times the rate, 204.86 for 1,434 records; the twin chose its number."""
    return divided(folder, 1434, 1434 * (1 / 7) if mistaken else 200.0)


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
