"""Check recordings of leaking, killed and correct trainings in several processes.

    python tests/campaigns/distributed_recordings.py [attacks|sharded|kills|resumed|sound] [COUNT]

FSDP2 shards the parameters under ``sharded`` and in every third killed or correct training. ``check`` must prove the
correct trainings and no leaking or killed ones, except attacks of ``ASSUMED``: these break an assumption that the
headline names.
"""

import contextlib
import functools
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DistributedDPOptimizer
from opacus.optimizers import fsdpoptimizer_fast_gradient_clipping as fsdp_optimizer
from opacus.optimizers import optimizer as opacus_optimizer
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler as Sampler
from support.checked_runs import Question, check_run
from support.jobs import RankedJobs
from support.ranks import Ranked, after_scaling, reduced
from torch import distributed
from torch.utils.data import ConcatDataset, DataLoader

from dpspec.errors import DpspecError

Script = Callable[[Ranked, int], object]

#: Attacks, and those on a model that FSDP2 shards.
ATTACKS: dict[str, Script] = {}
SHARDED: dict[str, Script] = {}

#: Attacks outside of the recorded block, which every proof assumes away, and hooks on gathered parameters, which change
#: what ghost clipping has clipped: ``per-record-clipping``, as no step of a sharded model is replayed.
ASSUMED = {
    *("steps_after_the_block", "gradient_of_one_rank_times_three"),
    "gradient_of_one_rank_times_three_after_the_start",
}


def attack(script: Script) -> None:
    ATTACKS[script.__name__] = script


def sharded_attack(script: Script) -> None:
    SHARDED[script.__name__] = script


def within(body: Script) -> Script:
    """Make an attack whose recorded loop is ``body``."""

    def prepare(training: Ranked, rank: int) -> None:
        def loop(training: Ranked, rank: int) -> None:
            with training.recorder():
                body(training, rank)

        training.loop = loop

    return prepare


def after_each(each: Callable[[Ranked, int, Any], None]) -> Script:
    """Make an attack that calls ``each`` with the batch after each step."""

    @within
    def loop(training: Ranked, rank: int) -> None:
        for _ in range(2):
            for x, y in training.loader:
                training.step(x, y)
                each(training, rank, x)

    return loop


def put(place: str, value: Callable[[Ranked, int], Any]) -> Script:
    """Make an attack that sets an attribute on each rank, at a dotted path from the training."""

    def prepare(training: Ranked, rank: int) -> None:
        *parts, name = place.split(".")
        setattr(functools.reduce(getattr, parts, training), name, value(training, rank))

    return prepare


@attack
def state_of_one_generator(training: Ranked, rank: int) -> None:
    own = torch.Generator().manual_seed(11 + rank)
    own.set_state(torch.Generator().manual_seed(99).get_state())
    training.loader.batch_sampler.generator = own


@attack
def one_generator_shifted(training: Ranked, rank: int) -> None:
    generator = torch.Generator().manual_seed(77)
    training.loader.batch_sampler.generator = generator
    torch.rand(150 * (1 - rank), generator=generator)


@attack
def batches_of_one_size(training: Ranked, rank: int) -> None:
    def batches(self: Any) -> Iterator[Any]:
        share = torch.arange(self.total_size)[self.rank :: self.num_replicas]
        yield from (share[torch.randperm(len(share))[:30]] for _ in range(self.num_batches))

    Sampler.__iter__ = batches


@attack
def recorded_windows_apart(training: Ranked, rank: int) -> None:
    def loop(training: Ranked, rank: int) -> None:
        block, step = contextlib.ExitStack(), 0
        for _ in range(3):
            for x, y in training.loader:
                step += 1
                if step == 1 + rank:
                    block.enter_context(training.recorder())
                if step == 9 + rank:
                    block.close()
                training.step(x, y)

    training.loop = loop


@attack
def sums_of_one_rank_times_ten(training: Ranked, rank: int) -> None:
    original = DistributedDPOptimizer.add_noise

    def add_noise(self: Any) -> None:
        for p in self.params:
            p.summed_grad *= 10 if self.rank else 1
        original(self)

    DistributedDPOptimizer.add_noise = add_noise


@attack
def noise_for_one_layer(training: Ranked, rank: int) -> None:
    original, first = opacus_optimizer._generate_noise, training.private.params[0].shape
    opacus_optimizer._generate_noise = lambda **given: original(**given) * (given["reference"].shape == first)


def one_less_and_one_more(training: Ranked, rank: int) -> None:
    for x, y in training.loader:
        more = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
        training.step(*(more if rank else (x[1:], y[1:])))


def without_noise(optimizer: Any, original: Callable[[Any], None]) -> None:
    for p in optimizer.params:
        p.grad.copy_(p.summed_grad.view_as(p) / optimizer.expected_batch_size)
    original(optimizer)


def second_sum(optimizer: Any, original: Callable[[Any], None]) -> None:
    original(optimizer)
    for p in optimizer.params:
        bare = p.summed_grad.clone().view_as(p)
        distributed.all_reduce(bare)
        p.grad += 0.001 * bare


@torch.no_grad()
def spread(training: Ranked, rank: int, x: Any) -> None:
    for p in training.model.parameters():
        p.data.add_(0.01 * rank * x.mean())
        distributed.broadcast(p.data, 1)


def seeded_by_epoch(training: Ranked, rank: int) -> None:
    for epoch in range(4):
        torch.manual_seed(epoch)
        for x, y in training.loader:
            training.step(x, y)


def every_record_twice(training: Ranked, rank: int) -> Any:
    loader = DataLoader(ConcatDataset([training.data, training.data]), batch_size=120)
    return DPDataLoader.from_data_loader(loader, distributed=True)


def same_noise(training: Ranked, rank: int) -> None:
    generator = training.private.generator = torch.Generator().manual_seed(4)
    after_scaling(training, lambda _: generator.manual_seed(4))


def buffered(training: Ranked, rank: int) -> None:
    training.train()
    training.model._module.module.register_buffer("memory", training.data.tensors[0][:3])


def trained_on(training: Ranked, rank: int) -> None:
    with training.recorder():
        training.train()
    training.train()


def step_of_another(training: Ranked, rank: int, x: Any) -> None:
    torch.optim.SGD(list(training.model.parameters())[:1], lr=0.1).step()


def halved(training: Ranked, rank: int) -> None:
    def halve(*_: Any) -> None:
        for p in training.private.params:
            p.grad.mul_(0.5)

    training.private.original_optimizer.register_step_pre_hook(halve)


ATTACKS |= {
    "divisor_of_one_rank": put(
        "private.expected_batch_size", lambda t, rank: t.private.expected_batch_size / (20 if rank else 1)
    ),
    "one_record_less_and_one_more": within(one_less_and_one_more),
    "halved_in_a_hook": halved,
    "no_noise_in_the_sum": reduced(without_noise),
    "a_second_sum": reduced(second_sum),
    "another_number_of_processes": put("private.world_size", lambda t, rank: 1),
    "unclipped_on_one_rank": put("private.max_grad_norm", lambda t, rank: 1e6 if rank else 0.5),
    "parameters_of_one_rank": after_each(spread),
    "seeds_by_epoch": within(seeded_by_epoch),
    "noise_from_the_seed_of_other_batches": put(
        "private.generator", lambda t, rank: torch.Generator().manual_seed(1001 - rank)
    ),
    "shares_by_other_orders": put("loader.batch_sampler.shuffle_seed", lambda t, rank: rank),
    "another_rate": put("loader.batch_sampler.sample_rate", lambda t, rank: 0.5 if rank else 0.2),
    "every_record_twice": put("loader", every_record_twice),
    "zeros_from_one_rank": lambda t, rank: after_scaling(t, lambda o: [p.grad.mul_(1 - rank) for p in o.params]),
    "the_same_noise_at_each_step": same_noise,
    "uncounted_on_one_rank": lambda t, rank: after_scaling(
        t, lambda _: t.engine.accountant.history.clear() if rank else None
    ),
    "another_optimizer": after_each(step_of_another),
    "records_in_a_buffer": within(buffered),
    "steps_after_the_block": put("loop", lambda t, rank: trained_on),
}


def on_gathered(training: Ranked, change: Callable[[Any], Any]) -> None:
    """Hook the gradient of the first full parameter as soon as FSDP2 gathers it."""
    hooked: list[Any] = []

    def gathered(module: Any, _: Any) -> None:
        if not hooked:
            hooked.append(module.weight.register_hook(change))

    training.model._module[0].register_forward_pre_hook(gathered)


@sharded_attack
def opposite_noise(training: Ranked, rank: int) -> None:
    """Give the ranks the same noise with opposite signs."""
    generator = torch.Generator().manual_seed(5)

    def noise(std: float, reference: Any, **_: Any) -> Any:
        part = torch.normal(0.0, std, size=(len(reference) // 2, *reference.shape[1:]), generator=generator)
        return torch.cat([part, -part])

    fsdp_optimizer._generate_noise = noise


@sharded_attack
def noise_of_the_step_before(training: Ranked, rank: int) -> None:
    original, kept = fsdp_optimizer._generate_noise, dict[Any, Any]()

    def noise(std: float, reference: Any, **given: Any) -> Any:
        made = kept.pop(tuple(reference.shape), None)
        if made is None:
            kept[tuple(reference.shape)] = made = original(std=std, reference=reference, **given)
        return made.clone()

    fsdp_optimizer._generate_noise = noise


@sharded_attack
def rows_of_one_rank_without_steps(training: Ranked, rank: int) -> None:
    if rank == 1:
        training.private.original_optimizer.step = lambda *_: None


@sharded_attack
def sum_of_one_rank_times_ten(training: Ranked, rank: int) -> None:
    after = training.private.accumulate

    def accumulate() -> None:
        after()
        for state in training.private.grad_state.values():
            state["summed_grad"].mul_(10.0 if rank else 1.0)

    training.private.accumulate = accumulate


@sharded_attack
def a_term_outside_of_the_criterion(training: Ranked, rank: int) -> None:
    def step(x: Any, y: Any) -> None:
        training.private.zero_grad()
        training.criterion(training.model(x), y).backward()
        training.model.disable_hooks()
        (0.1 * torch.nn.functional.cross_entropy(training.model(x), y)).backward()
        training.model.enable_hooks()
        training.private.step()

    training.step = step


def tripled_after_the_start(training: Ranked, rank: int, x: Any) -> None:
    if rank == 1:
        on_gathered(training, lambda gradient: 3.0 * gradient)


SHARDED |= {
    "gradient_of_one_rank_times_three": lambda t, rank: on_gathered(
        t, lambda gradient: 3.0 * gradient if rank else None
    ),
    "gradient_of_one_rank_times_three_after_the_start": after_each(tripled_after_the_start),
    "noise_of_another_number_of_processes": put("private.world_size", lambda t, rank: 4),
    "another_learning_rate_of_one_rank": lambda t, rank: [g.update(lr=0.1 + rank) for g in t.private.param_groups],
    "every_record_in_two_shares": put("loader", lambda t, rank: DPDataLoader.from_data_loader(t.plain_loader())),
    **{
        f"{name}_of_shards": ATTACKS[name]
        for name in ("one_record_less_and_one_more", "uncounted_on_one_rank", "seeds_by_epoch", "batches_of_one_size")
    },
}


def verdict(folder: Path) -> str:
    """Return PROVED if the claim is proved and the run conforms, else the first rejected check or the reason."""
    try:
        found = check_run(folder, Question(delta=1e-5, epsilon=50.0))
    except DpspecError as error:
        return str(error)
    rejected = [check.test for check in found.checks if check.p_value < 1e-9]
    return "PROVED" if found.fine and found.verdict == "proved" else (rejected or [found.reason])[0]


def attacked(name: str, place: Path) -> str:
    Ranked(place / name, prepare={**ATTACKS, **SHARDED}[name], sharded=name in SHARDED, epochs=2).run()
    return verdict(place / name)


def kill(folder: Path, seconds: float, *, sharded: bool = False) -> str:
    """Kill a random rank after some seconds; the other rank then gives up."""
    training = Ranked(folder, epochs=200, sharded=sharded)
    rank = random.randrange(2)

    def loop(training: Ranked, own: int) -> None:
        if own == rank:
            threading.Thread(target=lambda: (time.sleep(seconds), os.kill(os.getpid(), signal.SIGKILL))).start()
        with training.recorder():
            training.train()

    training.loop = loop
    training.run()
    return verdict(folder)


def resumed(place: Path) -> str:
    """Kill two jobs at random moments and let a third one finish.

    The accountant in the checkpoint counts the steps of the released model. A proof over fewer steps is wrong.
    """
    jobs = RankedJobs(place)
    for _ in range(2):
        jobs.run(epochs=200, after=(random.randrange(2), random.uniform(0.0, 3.0)))
    if jobs.run() != [0, 0]:
        return "wrong: the last job failed"
    counted = sum(steps for *_, steps in torch.load(jobs.file, weights_only=False)["accountant"]["history"])
    recorded = 0
    with contextlib.suppress(DpspecError):
        recorded = check_run(jobs.folder, Question(delta=1e-5)).run.steps
    found = verdict(jobs.folder)
    sound = found != "PROVED" or recorded >= counted
    return f"{'' if sound else 'wrong: '}{found}, {recorded} steps recorded, {counted} counted"


def sound(folder: Path, number: int) -> str:
    torchs = number % 3 == 1  # its wrapper needs equal numbers of passes on all ranks
    physical = 16 if number % 5 == 1 and not torchs else None
    sharded, world = number % 3 == 2, 4 if number % 6 == 5 else 2
    kind = {"sharded": True, "world": world} if sharded else {"torchs": torchs, "physical": physical}
    Ranked(folder, batch=150, seed_of=1000 * number, ghost=number % 2 == 1, **kind).run()
    return verdict(folder)


def main(what: str = "attacks", count: int = 10) -> int:
    warnings.simplefilter("ignore")
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        names = {"attacks": ATTACKS, "sharded": SHARDED}.get(what, range(count))
        for name in names:
            folder = Path(place) / str(name)
            if what in ("attacks", "sharded"):
                found = attacked(str(name), folder.parent)
                bad = found == "PROVED" and name not in ASSUMED
            elif what == "kills":
                found = kill(folder, random.uniform(0.2, 3.0), sharded=int(name) % 3 == 2)
                bad = found == "PROVED"
            elif what == "resumed":
                found = resumed(folder)
                bad = found.startswith("wrong")
            else:
                found = sound(folder, int(name))
                bad = found != "PROVED"
            wrong += bad
            print(f"{what}, {name}: {found[:160]}", flush=True)
    print(f"{len(names)} trainings, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2], *map(int, sys.argv[2:3])))
