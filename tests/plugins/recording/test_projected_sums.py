"""Custom loops that clip the clipped sum again, as a whole or by tensors, and loops that change it in other ways."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from support.checked_runs import CheckedRun, checked, run_page
from support.public_mistakes.parts import OwnLoop, norms_of
from torch import Tensor

from dpspec_recording.observers.sensitivity.replays import OTHERS_MOVED, SUM_MOVED, Replays

pytestmark = pytest.mark.filterwarnings("ignore")

#: From a loop, its clipped sum and the gradients of the drawn records to the reported sum.
Map: TypeAlias = Callable[[OwnLoop, list[Tensor], list[Tensor]], list[Tensor]]


def trained(folder: Path, change: Map) -> CheckedRun:
    loop = OwnLoop()
    with loop.recorder(folder) as run:
        for _ in range(3):
            drawn = loop.poisson()
            rows = loop.rows(drawn)
            norms, total = loop.clipped(rows)
            loop.step(run, drawn, norms, change(loop, total, rows), loop.noise())
    return checked(folder, epsilon=100.0)


def length(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


def radius(loop: OwnLoop) -> float:
    """Batches of about 30 records have sums of 5 clip norms or more, also with another record."""
    return 3.0 * loop.clip


def clipped(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = (radius(loop) / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


def divided(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    divisor = (length(total) / radius(loop)).clamp(min=1.0)
    return [t / divisor for t in total]


def clipped_in_place(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = (radius(loop) / length(total)).clamp(max=1.0)
    for t in total:
        t.mul_(factor)
    return total


def clipped_in_one_row(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    row = torch.cat([t.flatten() for t in total])
    row = torch.clamp(radius(loop) / row.norm(), max=1.0) * row
    return [part.view_as(t) for part, t in zip(row.split([t.numel() for t in total]), total, strict=True)]


def clipped_by_torch(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    for p, t in zip(loop.parameters, total, strict=True):
        p.grad = t
    torch.nn.utils.clip_grad_norm_(loop.parameters, radius(loop))
    return [p.grad.clone() for p in loop.parameters if p.grad is not None]


def longer_than_all_sums(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = (1e4 * loop.clip / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


def clipped_by_tensors(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    return [t * (loop.clip * (1 + number) / t.norm()).clamp(max=1.0) for number, t in enumerate(total)]


def clipped_by_tensors_in_place(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    return [t.mul_((loop.clip / t.norm()).clamp(max=1.0)) for t in total]


def summed_and_clipped_by_tensors(loop: OwnLoop, _: Any, rows: list[Tensor]) -> list[Tensor]:
    """A tensor is summed after the one before is clipped."""
    factors, total = (loop.clip / norms_of(rows).clamp_min(1e-12)).clamp_max(1.0), []
    for row in rows:
        t = torch.einsum("i,i...", factors, row)
        total.append(t * (loop.clip / t.norm()).clamp(max=1.0))
    return total


@pytest.mark.family
@pytest.mark.parametrize(
    "change",
    [
        *(clipped, divided, clipped_in_place, clipped_in_one_row, clipped_by_torch, longer_than_all_sums),
        *(clipped_by_tensors, clipped_by_tensors_in_place, summed_and_clipped_by_tensors),
    ],
)
def test_a_sum_that_is_clipped_again_is_proved_and_its_norm_is_asked(change: Map, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", change)
    replays = found.run.fact(Replays)
    assert (found.status, replays.failure) == (("proved", "no-deviation-found"), "")
    assert replays.projected == replays.replayed >= 2
    assert (replays.interaction, replays.earlier_sum) == (0.0, 0.0)
    assert 1.0 < replays.moved <= 2.0 + 1e-5  # of the sum before
    assert 0.5 < replays.longest <= 1.0 + 1e-5
    assert "the norm to which the loop clips the sum again" in " ".join(run_page(found, 400).split())


def to_a_tensor(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    loop.state = torch.tensor(radius(loop)) if loop.state is None else loop.state
    factor = (loop.state / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


def to_a_norm_of_the_batch_before(loop: OwnLoop, total: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    limit = torch.tensor(radius(loop)) if loop.state is None else loop.state
    loop.state = 0.1 * norms_of(rows).mean()
    factor = (limit / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


@pytest.mark.ci
@pytest.mark.parametrize("change", [to_a_tensor, to_a_norm_of_the_batch_before])
def test_a_norm_in_a_tensor_is_open(change: Map, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", change)
    assert found.status == ("open", "no-deviation-found")
    assert "with a number from another tensor, such as the largest norm" in found.doubts
    assert ("computed from the batch before" in found.doubts) == (change is to_a_norm_of_the_batch_before)


def scaled_to_one_length(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = radius(loop) / length(total)
    return [t * factor for t in total]


def lengthened(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    """Sums up to three times too short are scaled to the radius."""
    factor = (radius(loop) / length(total)).clamp(max=3.0)
    return [t * factor for t in total]


def clipped_and_doubled(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = 2.0 * (radius(loop) / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


def clipped_by_another_norm(loop: OwnLoop, total: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    factor = (radius(loop) / length([row.sum(0) for row in rows])).clamp(max=1.0)
    return [t * factor for t in total]


def clipped_to_a_median(_: OwnLoop, total: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    factor = (0.1 * norms_of(rows).median() / length(total)).clamp(max=1.0)
    return [t * factor for t in total]


def clipped_and_multiplied_by_a_norm(loop: OwnLoop, total: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
    factor = (radius(loop) / length(total)).clamp(max=1.0) * (norms_of(rows).max() / loop.clip).clamp(1.0, 2.0)
    return [t * factor for t in total]


def clipped_by_the_norm_of_one_tensor(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    factor = (radius(loop) / total[0].norm()).clamp(max=1.0)
    return [t * factor for t in total]


def clipped_by_the_norm_before(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    """Each tensor is scaled by the norm of the one before."""
    return [t * (radius(loop) / total[index - 1].norm()).clamp(max=1.0) for index, t in enumerate(total)]


def normalized_by_tensors(loop: OwnLoop, total: list[Tensor], _: Any) -> list[Tensor]:
    return [t * (radius(loop) / t.norm()) for t in total]


def clipped_only_by_tensors(loop: OwnLoop, _: Any, rows: list[Tensor]) -> list[Tensor]:
    return clipped_by_tensors(loop, [row.sum(0) for row in rows], rows)


def clipped_only_as_a_whole(loop: OwnLoop, _: Any, rows: list[Tensor]) -> list[Tensor]:
    return clipped(loop, [row.sum(0) for row in rows], rows)


def normalized_without_clipping(_: OwnLoop, __: Any, rows: list[Tensor]) -> list[Tensor]:
    total = [row.sum(0) for row in rows]
    return [t / length(total) for t in total]


def clipped_by_coordinates(_: OwnLoop, total: list[Tensor], __: Any) -> list[Tensor]:
    """It is private, and deviates: the replay knows projections onto a ball."""
    return [t.clamp(-0.5, 0.5) for t in total]


@pytest.mark.family
@pytest.mark.parametrize(
    ("change", "test"),
    [
        (scaled_to_one_length, OTHERS_MOVED),
        (lengthened, OTHERS_MOVED),
        (clipped_and_doubled, OTHERS_MOVED),
        (clipped_by_another_norm, OTHERS_MOVED),
        (clipped_to_a_median, OTHERS_MOVED),
        (clipped_and_multiplied_by_a_norm, OTHERS_MOVED),
        (clipped_by_the_norm_of_one_tensor, OTHERS_MOVED),
        (clipped_by_the_norm_before, OTHERS_MOVED),
        (normalized_by_tensors, OTHERS_MOVED),
        (clipped_only_as_a_whole, SUM_MOVED),
        (clipped_only_by_tensors, SUM_MOVED),
        (normalized_without_clipping, OTHERS_MOVED),
        (clipped_by_coordinates, OTHERS_MOVED),
    ],
)
def test_other_maps_of_the_sum_deviate(change: Map, test: Any, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", change)
    assert found.status == ("open", "deviates")
    assert test.title in found.rejected


@pytest.mark.ci
def test_a_batch_statistic_before_the_projection_is_found(tmp_path: Path) -> None:
    def centered(loop: OwnLoop, _: Any, rows: list[Tensor]) -> list[Tensor]:
        return clipped(loop, loop.clipped([row - 0.5 * row.mean(0) for row in rows])[1], rows)

    found = trained(tmp_path / "run", centered)
    assert found.status == ("open", "deviates")
    assert OTHERS_MOVED.title in found.rejected
    assert found.run.fact(Replays).projected >= 2
