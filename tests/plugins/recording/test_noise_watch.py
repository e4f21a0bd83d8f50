"""Noise that is not fresh, Gaussian and independent is found; noise as it should be is not."""

import dataclasses
import math
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import opacus.optimizers.optimizer as opacus_optimizer
import opacus.optimizers.optimizer_fast_gradient_clipping as opacus_fast_optimizer
import pytest
import torch
from support.checked_runs import CheckedRun, Question, check_run
from support.facts_only import run_with
from support.opacus_training import Training
from support.public_mistakes.parts import FEATURES, OwnLoop
from torch import Tensor, nn

import dpspec
from dpspec.contract import Check
from dpspec_recording.folder.events import encode
from dpspec_recording.observers.noise.noise import ALONG, EXTREME, INDEPENDENCE, SIZE, Noise, why_squares_vary
from dpspec_recording.outcomes.issue import checks_of as checks_of_tests
from dpspec_recording.outcomes.issue import with_tests
from dpspec_recording.watching.noise_sketch import NoiseSketch
from dpspec_recording.watching.noise_statistics import NoiseFacts, NoiseStatistics
from dpspec_recording.watching.noise_watch import NoiseWatch

#: Draws the noise of one step, of standard deviation 1: (step, shapes of the parameters, values kept between steps).
Draw = Callable[[int, Sequence[torch.Size], dict[str, Any]], list[Tensor]]

#: Of each kind of noise one seed runs on every change.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.ci) for seed in (2, 3))]


def split(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """One tensor of each shape from all coordinates in a row."""
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def whole(change: Callable[[Tensor], Tensor]) -> Draw:
    """Noise that is a function of fresh normal values of the same number."""
    return across(lambda step, z, kept: change(z))


def by_layer(change: Callable[[Tensor], Tensor]) -> Draw:
    """The same for each tensor by itself."""

    def draw(step: int, shapes: Sequence[torch.Size], kept: dict[str, Any]) -> list[Tensor]:
        return [change(torch.randn(shape)).reshape(shape) for shape in shapes]

    return draw


def across(change: Callable[[int, Tensor, dict[str, Any]], Tensor]) -> Draw:
    """Noise that may depend on that of earlier steps."""

    def draw(step: int, shapes: Sequence[torch.Size], kept: dict[str, Any]) -> list[Tensor]:
        return split(change(step, torch.randn(sum(shape.numel() for shape in shapes)), kept), shapes)

    return draw


def doubled(second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The second half is a function of the first."""
    return lambda z: torch.cat([z[: len(z) - len(z) // 2], second(z[: len(z) // 2])])


def permuted(z: Tensor) -> Tensor:
    return z[torch.randperm(len(z))]


def first(kept: dict[str, Any], name: str, value: Tensor) -> Tensor:
    """The value that was kept first under a name."""
    found: Tensor = kept.setdefault(name, value)
    return found


def every_second(change: Callable[[Tensor], Tensor]) -> Draw:
    """Every second step repeats the noise of the one before, changed."""

    def noise(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
        kept["last"] = z if step % 2 == 0 else kept["last"]
        return kept["last"] if step % 2 == 0 else change(kept["last"])

    return across(noise)


def signs(z: Tensor) -> Tensor:
    return torch.randint(0, 2, (len(z),)) * 2 - 1


def alike_in_layers(step: int, shapes: Sequence[torch.Size], kept: dict[str, Any]) -> list[Tensor]:
    one = torch.randn(max(shape.numel() for shape in shapes))
    return [one[: shape.numel()].reshape(shape) for shape in shapes]


def random_signs(z: Tensor) -> Tensor:
    few = z[: max(1, len(z) // 8)].repeat(8)
    return torch.cat([few, z])[: len(z)] * signs(z)


def truncated(most: float) -> Callable[[Tensor], Tensor]:
    return lambda z: nn.init.trunc_normal_(torch.empty_like(z), a=-most, b=most)


def from_table(size: int) -> Callable[[int, Tensor, dict[str, Any]], Tensor]:
    """Consecutive numbers of one table, from a random place in each step."""

    def noise(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
        table = kept.setdefault("table", torch.randn(size))
        drawn: Tensor = table[(int(torch.randint(size, ())) + torch.arange(len(z))) % size]
        return drawn

    return noise


def late(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
    """Fresh at first; from the tenth step on each value occurs twice, in random order."""
    return permuted(doubled(lambda half: half)(z)) if step >= 10 else z


def autoregressive(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
    kept["last"] = 0.7 * kept["last"] + math.sqrt(1 - 0.49) * z if "last" in kept else z
    return kept["last"]


ATTACKS: dict[str, Draw] = {
    "interleaved": whole(lambda z: z[: (len(z) + 1) // 2].repeat_interleave(2)[: len(z)]),
    "permuted within a step": whole(lambda z: permuted(doubled(lambda half: half)(z))),
    "random signs": whole(random_signs),
    "uniform": whole(lambda z: (torch.rand_like(z) * 2 - 1) * math.sqrt(3)),
    "laplace": whole(lambda z: torch.distributions.Laplace(0.0, 1 / math.sqrt(2)).sample(z.shape)),
    "quantized": whole(lambda z: (z * 1000).round() / 1000),
    "rounded to bfloat16": whole(lambda z: z.bfloat16().float()),
    "broadcast rows": by_layer(lambda z: z[:1].expand_as(z).clone() if z.ndim > 1 else z),
    "broadcast kernels": by_layer(lambda z: z[:1, :1].expand_as(z).clone() if z.ndim == 4 else z),
    "clamped at three": whole(lambda z: z.clamp(-3.0, 3.0)),
    "truncated at three": whole(truncated(3.0)),
    "a table": across(from_table(5_000)),
    "a table, with signs": across(lambda step, z, kept: from_table(5_000)(step, z, kept) * signs(z)),
    "ten tables in turn": across(lambda step, z, kept: permuted(first(kept, f"table {step % 10}", z))),
    "layers of an earlier step": across(lambda step, z, kept: first(kept, f"{step // 2}", z).flip(0)),
    "layers alike": alike_in_layers,
    "permuted across steps": across(lambda step, z, kept: permuted(first(kept, "first", z))),
    "antithetic steps": every_second(torch.neg),
    "autoregressive": across(autoregressive),
    "one coordinate without": whole(lambda z: z * (torch.arange(len(z)) != len(z) // 3)),
    "from the tenth step on": across(late),
}


fresh = by_layer(lambda z: z)


def plain_loop(folder: Path, draw: Draw, steps: int, std: float = 0.8) -> None:
    """Record a plain loop with noise of standard deviation ``std`` on sums of clipped gradients of norm 0.5."""
    # 1,363 parameters in four tensors
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4 * 4, 3, bias=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shapes, kept = [p.shape for p in model.parameters()], {}
    given: dict[str, Any] = {"noise_multiplier": std, "clip_norm": 1.0, "rate": 0.1, "records": 200}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given) as run:
        for step in range(steps):
            drawn = (torch.rand(200) < 0.1).nonzero().squeeze(1)
            noise = [std * part for part in draw(step, shapes, kept)]
            totals = [torch.randn(shape) for shape in shapes]
            length = torch.stack([total.norm() for total in totals]).norm()
            totals = [total * (0.5 * len(drawn)) / length for total in totals]
            for p, total, part in zip(model.parameters(), totals, noise, strict=True):
                p.grad = (total + part) / 20.0
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 0.5))
            run.summed(totals)
            run.noised(noise)
            run.stepped()


#: Rejected p-values in a run of 60 checks.
REJECTED = 1e-6 / 60

#: Steps and coordinates are chosen at random, so that each p-value of honest noise is below this once in ten million.
HONEST = 1e-7


def checked(folder: Path) -> CheckedRun:
    return check_run(folder, Question(delta=1e-5, epsilon=1e5, accept=("not-replayed",)))


def rejected_noise(found: CheckedRun) -> list[str]:
    """Rejected tests of the noise alone: a script that replaces a function of Opacus is reported for that as well."""
    names = ("noise-scale", "independent-noise", "per-layer-noise", "noise-law")
    return [one.test for one in found.checks if one.assumption in names and one.p_value * len(found.checks) <= 1e-6]


@pytest.mark.ci
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_plain_loop_with_other_noise_deviates(attack: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    # The recorder tests values of steps that it samples ever more rarely: a late attack needs more steps.
    plain_loop(tmp_path / "run", ATTACKS[attack], steps=300 if attack == "from the tenth step on" else 30)
    found = checked(tmp_path / "run")
    assert found.status == ("open", "deviates")


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.ci), 30])
def test_a_plain_loop_with_fresh_noise_conforms(steps: int, tmp_path: Path) -> None:
    torch.manual_seed(4)
    plain_loop(tmp_path / "run", fresh, steps=steps)
    found = checked(tmp_path / "run")
    assert found.status == ("proved", "no-deviation-found")
    noise = [one for one in found.checks if one.assumption in ("independent-noise", "per-layer-noise", "noise-law")]
    assert min(one.p_value for one in noise) > HONEST
    assert any(one.assumption == "noise-law" for one in noise)


class Patched:
    """Replace Opacus' noise: draw the noise of all layers with that of the first layer."""

    def __init__(self, draw: Draw, shapes: Sequence[torch.Size]) -> None:
        self._draw, self._shapes, self._step = draw, list(shapes), 0
        self._kept: dict[str, Any] = {}
        self._waiting: list[Tensor] = []

    def __call__(self, std: float, reference: Tensor, **_: Any) -> Tensor:
        if not self._waiting:
            self._waiting = self._draw(self._step, self._shapes, self._kept)
            self._step += 1
        return std * self._waiting.pop(0)


@pytest.mark.ci
@pytest.mark.parametrize("attack", ["broadcast rows", "uniform", "antithetic steps"])
def test_opacus_with_other_noise_deviates(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(batch=10).build()
    shapes = [p.shape for p in training.private.params]
    monkeypatch.setattr(opacus_optimizer, "_generate_noise", Patched(ATTACKS[attack], shapes))
    with training.recorder(tmp_path / "run"):
        training.train()
    found = checked(tmp_path / "run")
    assert found.status == ("open", "deviates")
    assert rejected_noise(found)


def add(watch: NoiseWatch, noise: list[Tensor], sums: list[Tensor], std: float) -> None:
    layers = ([part.reshape(1, -1) for part in parts] for parts in (noise, sums))
    watch.add(NoiseSketch([part.numel() for part in noise]).measure(*layers), [std])


def checks_of(watch: NoiseWatch, shapes: Sequence[tuple[int, ...]]) -> list[Check]:
    """The checks that a reader makes of the statistics."""
    layers = tuple((str(n), torch.Size(shape).numel()) for n, shape in enumerate(shapes))
    found = watch.found()
    assert found is not None
    read = msgspec.msgpack.decode(encode(found), type=NoiseStatistics)
    run = run_with({Noise: NoiseFacts(processes=(read,))}, columns={"noise_squares": np.nan}, layers=layers)
    vars(run)["internal"] = None
    run = dataclasses.replace(run, layers=np.zeros(len(layers)), quietest=np.full(len(layers), np.nan))
    return [*checks_of_tests(with_tests(Noise.judge(run.fact(Noise), run)))]


SHAPES: list[list[tuple[int, ...]]] = [
    [(1,)],
    [(3,), (2,)],
    [(4, 2), (4,)],
    [(5, 1, 1, 7), (1, 1)],
    [(16, 4, 3, 3), (16,), (3, 256), (3,)],
    [(300, 300)],
]


@pytest.mark.family
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "four sums", "long sums"])
def test_honest_noise_of_any_type_and_shape_passes(shapes: list[tuple[int, ...]], kind: str) -> None:
    torch.manual_seed(8)
    dtype = getattr(torch, kind, torch.float32)
    watch = NoiseWatch([torch.zeros(shape, dtype=dtype) for shape in shapes])
    for _ in range(15):
        noise = [torch.normal(0.0, 0.3, size=shape, dtype=dtype) for shape in shapes]
        if kind == "four sums":
            noise = [sum(torch.normal(0.0, 0.3, size=shape) for _ in range(4)) / 2 for shape in shapes]
        sums = [(100.0 if kind == "long sums" else 1.0) * torch.randn(shape).to(dtype) for shape in shapes]
        noise = [(part + total) - total for part, total in zip(noise, sums, strict=True)]
        add(watch, noise, sums, 0.3)
    found = checks_of(watch, shapes)
    assert min(one.p_value for one in found) > HONEST
    assert kind == "long sums" or any(one.test.startswith("share of values") for one in found)


def watched(shapes: Sequence[tuple[int, ...]], steps: int, draw: Callable[[int], Tensor]) -> list[Check]:
    """The checks of noise that a loop reports, for flat noise of each step."""
    watch, sizes = NoiseWatch([torch.zeros(shape) for shape in shapes]), [math.prod(shape) for shape in shapes]
    for step in range(steps):
        noise = list(draw(step).split(sizes))
        add(watch, noise, [5.0 * torch.randn(size) for size in sizes], 1.0)
    return checks_of(watch, shapes)


def rejected(checks: Sequence[Check], name: str) -> bool:
    return any(check.test == name and check.p_value <= REJECTED for check in checks)


@pytest.mark.family
@pytest.mark.parametrize(("cut", "steps", "found"), [(3.0, 10, True), (4.0, 100, True), (4.5, 100, False)])
def test_a_cut_is_found_in_many_numbers(cut: float, steps: int, found: bool) -> None:
    """Of 10^4 numbers 27 exceed 3 standard deviations, of 3 * 10^5 numbers 19 exceed 4, and 2 exceed 4.5."""
    torch.manual_seed(1)
    drawn = watched([(3000,)], steps, lambda _: truncated(cut)(torch.empty(3000)))
    assert rejected(drawn, EXTREME) == found
    (check,) = [check for check in drawn if check.test == EXTREME]
    # The stated limit is the cut that is found.
    assert check.detectable is not None
    assert check.declared is not None
    assert (cut < check.declared * (1.0 - check.detectable)) == found


@pytest.mark.ci
def test_a_cut_of_few_numbers_leaves_the_claim_open(tmp_path: Path) -> None:
    """15 of 5,452 numbers should exceed 3 standard deviations: probability 4e-7, above the level of one of 60 tests."""
    torch.manual_seed(5)
    plain_loop(tmp_path / "run", ATTACKS["truncated at three"], steps=4)
    run = checked(tmp_path / "run")
    assert run.status == ("open", "no-deviation-found")
    (assumption,) = [a for a in run.assumptions if a.name == "noise-law"]
    assert assumption.status == "unchecked"
    assert "the largest absolute value of all noise, of 5,452 numbers, is 2.9" in assumption.text


@pytest.mark.parametrize("cut", [2.8, 3.0, 5.0])
def test_values_that_are_clamped_repeat(cut: float, tmp_path: Path) -> None:
    """2,436 numbers may end at 3 standard deviations, with probability 1e-3, but not several times."""
    torch.manual_seed(6)
    loop = OwnLoop(model=nn.Linear(FEATURES, 2))
    with loop.recorder(tmp_path / "run") as run:
        for _ in range(58):
            drawn = loop.poisson()
            noise = [loop.sigma * loop.clip * torch.randn_like(p).clamp(-cut, cut) for p in loop.parameters]
            loop.step(run, drawn, *loop.clipped(loop.rows(drawn)), noise)
    assert (INDEPENDENCE.title in checked(tmp_path / "run").rejected) is (cut < 5.0)


@pytest.mark.family
@pytest.mark.parametrize("shapes", [[(42,)], [(3000,)]], ids=str)
@pytest.mark.parametrize("size", [10_000, 100_000])
def test_numbers_of_a_table_are_found(shapes: list[tuple[int, ...]], size: int) -> None:
    """4,200 numbers of a table of 100,000 have 88 pairs of equal ones; 300,000 numbers repeat all."""
    torch.manual_seed(2)
    count, kept = math.prod(shapes[0]), dict[str, Any]()
    drawn = watched(shapes, 100, lambda step: from_table(size)(step, torch.empty(count), kept))
    assert rejected(drawn, INDEPENDENCE.title)


@pytest.mark.family
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shapes", [[(1,)], [(42,)], [(2000, 1)], [(20, 300), (5,)]], ids=str)
def test_fresh_numbers_neither_seem_cut_nor_from_a_table(shapes: list[tuple[int, ...]], seed: int) -> None:
    torch.manual_seed(seed)
    drawn = watched(shapes, 60, lambda _: torch.randn(sum(map(math.prod, shapes))))
    assert min(check.p_value for check in drawn if check.test in (EXTREME, INDEPENDENCE.title)) > 1e-4


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_sums_that_take_the_noise_back_are_found(share: float) -> None:
    watch = NoiseWatch([torch.zeros(40, 50)])
    for _ in range(10):
        noise, clipped = torch.randn(40, 50), 2.0 * torch.randn(40, 50)
        add(watch, [noise], [clipped - share * noise], 1.0)
    found = [one for one in checks_of(watch, [(40, 50)]) if one.test.startswith(ALONG)]
    assert len(found) == 2
    assert any(one.p_value < 1e-9 for one in found) == bool(share)


def test_steps_without_known_noise_give_no_statistics() -> None:
    watch = NoiseWatch([torch.zeros(3)])
    for std in (0.0, float("nan"), float("inf")):
        add(watch, [torch.randn(3)], [torch.zeros(3)], std)
    add(watch, [torch.tensor([1.0, float("nan"), 0.0])], [torch.zeros(3)], 1.0)
    assert watch.found() is None
    assert NoiseWatch([]).found() is None


def test_squares_of_large_layers_lose_no_digits() -> None:
    """One float32 sum of 2^23 squares may be 2e-4 too small, which a test of 200 steps rejects."""
    noise = torch.randn(2**23, generator=torch.Generator().manual_seed(0))
    exact = sum(float(part.double().square().sum()) for part in noise.split(2**20))
    found = NoiseSketch([len(noise)]).measure([noise[None]], [-noise[None]])
    assert abs(float(found.squares) / exact - 1.0) < 1e-6
    assert abs(float(found.products) / exact + 1.0) < 1e-6


def single_numbers(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
    """Each number by itself from a table."""
    table = first(kept, "table", torch.randn(20_000))
    drawn: Tensor = table[torch.randint(len(table), (len(z),))]
    return drawn


def returning(change: Callable[[Tensor], Tensor]) -> Callable[[int, Tensor, dict[str, Any]], Tensor]:
    """Every third step has the noise of three steps before, changed: the first one is surely sampled."""

    def noise(step: int, z: Tensor, kept: dict[str, Any]) -> Tensor:
        kept[str(step)] = change(kept[str(step - 3)]) if step >= 3 and step % 3 == 0 else z
        value: Tensor = kept[str(step)]
        return value

    return noise


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "noise",
    [
        single_numbers,
        from_table(100_000),
        returning(permuted),
        returning(lambda z: z.roll(13)),
        returning(lambda z: -z.flip(0)),
        lambda step, z, kept: first(kept, f"vector {int(torch.randint(10, ()))}", z),
    ],
    ids=["single numbers", "a large table", "permuted", "shifted", "negated and flipped", "pool of ten"],
)
def test_numbers_that_return_in_later_steps_are_found(
    noise: Callable[[int, Tensor, dict[str, Any]], Tensor], seed: int
) -> None:
    torch.manual_seed(seed)
    kept: dict[str, Any] = {}
    assert rejected(watched([(2100,)], 70, lambda step: noise(step, torch.randn(2100), kept)), INDEPENDENCE.title)


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["numpy", "inverse distribution", "float64", "four sums"])
def test_honest_samplers_of_normal_values_pass(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    samplers: dict[str, Callable[[int], Tensor]] = {
        "numpy": lambda _: torch.from_numpy(generator.standard_normal(2100)).float(),
        "inverse distribution": lambda _: torch.special.ndtri(torch.rand(2100, dtype=torch.double)).float(),
        "float64": lambda _: torch.randn(2100, dtype=torch.double).float(),
        "four sums": lambda _: torch.randn(4, 2100).sum(0) / 2.0,
    }
    assert min(check.p_value for check in watched([(2100,)], 70, samplers[kind])) > HONEST


class Wide(Training):
    def module(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 2))


@pytest.mark.ci
@pytest.mark.parametrize("clipping", ["flat", "ghost"])
@pytest.mark.parametrize("rank", [2, None])
def test_noise_of_low_rank_in_opacus_leaves_the_claim_open(
    tmp_path: Path, rank: int | None, clipping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = opacus_optimizer._generate_noise

    def product(std: float, reference: Tensor, **options: Any) -> Tensor:
        if reference.dim() < 2 or rank is None:
            return drawn(std, reference, **options)
        factors = torch.randn(len(reference), rank), torch.randn(rank, reference.shape[1])
        return std * (factors[0] @ factors[1]) / rank**0.5

    for module in (opacus_optimizer, opacus_fast_optimizer):
        monkeypatch.setattr(module, "_generate_noise", product)
    Wide(clipping=clipping, epochs=3).run(tmp_path / "run")
    (assumption,) = [a for a in checked(tmp_path / "run").assumptions if a.name == "noise-law"]
    assert (assumption.status == "unchecked") == (rank is not None)
    assert ("as noise of low rank does" in assumption.text) == (rank is not None)


@pytest.mark.parametrize("steps", [4, 60, 400])
@pytest.mark.parametrize("numbers", [1, 16, 5000, 10**7])
def test_squares_of_normal_values_vary_as_they_should(steps: int, numbers: int) -> None:
    """A correct implementation fails with probability 5e-4 in all 500 recordings, without the factor for rounding."""
    generator = np.random.default_rng(steps + numbers)
    for _ in range(500):
        squares = generator.chisquare(numbers, steps)
        assert why_squares_vary(recorded_squares(squares, numbers)) == ""


@pytest.mark.parametrize(("steps", "ratio"), [(100, 2.7), (10_000, 1.13)])
def test_the_documented_variation_of_squares_is_found(steps: int, ratio: float) -> None:
    """The limit of ``conformance.md``, which 99 of 100 recordings exceed."""
    generator, numbers = np.random.default_rng(steps), 4000
    squares = (numbers + (2.0 * numbers * ratio) ** 0.5 * generator.standard_normal((50, steps))).clip(0.0)
    found = [why_squares_vary(recorded_squares(row, numbers)) != "" for row in squares]
    assert sum(found) >= 45


@pytest.mark.parametrize("numbers", [256, 5000])
def test_noise_that_follows_the_batch_size_or_has_a_fixed_length_is_found(numbers: int) -> None:
    """Shares that clients add are found, and noise on a mean, in 100 steps with 30 records."""
    generator = np.random.default_rng(numbers)
    sizes = generator.binomial(300, 0.1, 100) / 30.0
    variances: dict[str, Any] = {"declared": np.ones(100), "shares": sizes, "mean": sizes**2, "other mean": 1.0 / sizes}
    squares = {name: generator.chisquare(numbers, 100) * variance for name, variance in variances.items()}
    squares["fixed"] = numbers * (1.0 + 1e-6 * generator.standard_normal(100))
    reasons = {name: why_squares_vary(recorded_squares(values, numbers)) for name, values in squares.items()}
    assert [name for name, reason in reasons.items() if not reason] == ["declared"]
    assert "follows the batch size" in reasons["shares"]
    assert "a fixed length" in reasons["fixed"]


class RecordedSquares(dict[str, Any]):
    """A recording with squared noises in units of the declared variance."""

    def __init__(self, squares: Any, numbers: int) -> None:
        super().__init__()
        self.scaled_squares, self.sums_type = squares, ""
        self.header = types.SimpleNamespace(parameters=numbers, world=0)


def recorded_squares(squares: Any, numbers: int) -> Any:
    return RecordedSquares(squares, numbers)


@pytest.mark.ci
@pytest.mark.parametrize("rank", [16, pytest.param(64, marks=pytest.mark.ci), None])
def test_noise_of_low_rank_leaves_the_claim_open(tmp_path: Path, rank: int | None) -> None:
    """Its squared length varies 9 or 3 times as much as that of independent values; each value looks normal."""
    torch.manual_seed(11)
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dpspec.record(
        tmp_path / "run", model=model, optimizer=optimizer, noise_multiplier=1.0, clip_norm=1.0, rate=0.1, records=200
    ) as run:
        for _ in range(60):
            drawn = (torch.rand(200) < 0.1).nonzero().squeeze(1)
            total = torch.randn(64, 64)
            total *= 0.5 * len(drawn) / total.norm()
            factors = [torch.randn(64, rank or 1), torch.randn(rank or 1, 64)]
            noise = torch.randn(64, 64) if rank is None else factors[0] @ factors[1] / rank**0.5
            model.weight.grad = (total + noise) / 20.0
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 0.5))
            run.summed([total])
            run.noised([noise])
            run.stepped()
    (assumption,) = [a for a in checked(tmp_path / "run").assumptions if a.name == "noise-law"]
    assert ("as noise of low rank does" in assumption.text) == (rank is not None)
    assert (assumption.status == "unchecked") == (rank is not None)


@pytest.mark.parametrize("scale", [0.03, 0.7, 1.0, 3.0])
def test_noise_of_another_scale_is_neither_uneven_nor_dependent(scale: float) -> None:
    """The test of all noise rejects it. Noise of a scale that repeats is dependent as well."""
    generator = torch.Generator().manual_seed(9)
    sketch, noise = NoiseSketch([3000], seed=4), torch.zeros(3000)
    for repeats in (False, True):
        watch, rows = NoiseWatch([torch.zeros(3000)]), []
        for step in range(40):
            if not (repeats and step % 2):
                noise = scale * torch.randn(3000, generator=generator)
            measured = sketch.measure([noise[None]], [torch.randn(1, 3000, generator=generator)])
            watch.add(measured, [1.0])
            rows.append(measured.along[0].numpy().copy())
        found = watch.found()
        assert found is not None
        columns = {"noise_squares": 3000.0 * scale**2, "deviation": 1.0}
        run = run_with({Noise: NoiseFacts(processes=(found,))}, steps=40, columns=columns, layers=(("all", 3000),))
        squares = np.full(1, 3000.0 * scale**2)
        run = dataclasses.replace(run, layers=40.0 * squares, quietest=0.95 * squares, rows=np.stack(rows))
        tests = [*with_tests(Noise.judge(run.fact(Noise), run))]
        rejecting = {one.name for one in tests if one.check.p_value < REJECTED and one.name != "noise-shape"}
        assert rejecting == ({INDEPENDENCE.name} if repeats and scale > 0.1 else set())
        assert len([one for one in tests if one.name == SIZE.name]) == 3
