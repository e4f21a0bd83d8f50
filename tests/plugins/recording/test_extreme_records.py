"""Steps that scale their records by the longest, largest or shortest one of the batch, and honest steps."""

import random
from typing import Any

import pytest
import torch
from support.replayed_steps import CLIP, opacus_trace
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpspec_recording.step_replay.extreme_records import extreme_records, is_sequence
from dpspec_recording.step_replay.measure import StepReplay, measure

pytest.importorskip("opacus")

WIDTH, VOCABULARY = 12, 40


class Pooled(nn.Module):
    """Sums embeddings (b, width, d), divided by a function of tokens, lengths and mask."""

    def __init__(self, divisor: Any) -> None:
        super().__init__()
        self.divisor, self.table, self.out = divisor, nn.Embedding(VOCABULARY, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        embedded = self.table(tokens) * mask[:, :, None]
        return self.out(embedded.sum(1) / self.divisor(tokens, lengths, mask))


def texts(seed: int, records: int = 16, *, at_start: bool = False) -> list[Tensor]:
    """Tokens (b, 12), lengths, mask and labels. In most batches two records have the full width."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, WIDTH + 1, (records,), generator=generator)
    lengths[:2] = WIDTH
    place = torch.arange(WIDTH) if not at_start else torch.arange(WIDTH).flip(0)
    mask = (place < lengths[:, None]).float()
    tokens = torch.randint(1, VOCABULARY, (records, WIDTH), generator=generator) * mask.long()
    return [tokens, lengths, mask, lengths % 2]


def replayed(divisor: Any, mode: str = "hooks", seed: int = 1, loss: Any = None, **form: Any) -> StepReplay:
    def mean_loss(model: Any, tokens: Tensor, lengths: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(tokens, lengths, mask), y)

    torch.manual_seed(3)
    model, batch = Pooled(divisor), texts(seed, **form)
    trace, sums, outputs, gradients = opacus_trace(model, loss or mean_loss, batch, mode)
    rows = {"outputs": outputs, "gradients": gradients}
    return measure(trace, batch, sums, CLIP, **rows, randomness=random.Random(seed), skips_counts=mode == "ghost")


BY_OTHERS = {
    "longest by tokens": lambda tokens, lengths, mask: (tokens > 0).sum(1).max(),
    "longest by mask": lambda tokens, lengths, mask: mask.sum(1).max(),
    "longest by lengths": lambda tokens, lengths, mask: lengths.max(),
    "used width": lambda tokens, lengths, mask: (tokens > 0).any(0).sum(),
    "shortest": lambda tokens, lengths, mask: lengths.min(),
    "common tokens": lambda tokens, lengths, mask: 1.0 + mask.prod(0).sum(),
    "total of the batch": lambda tokens, lengths, mask: mask.sum() / len(mask),
}
HONEST = {
    "own length": lambda tokens, lengths, mask: lengths[:, None],
    "own tokens": lambda tokens, lengths, mask: (tokens > 0).sum(1, keepdim=True),
    "public width": lambda tokens, lengths, mask: float(WIDTH),
    "own mask": lambda tokens, lengths, mask: mask.sum(1, keepdim=True).clamp_min(1.0),
}


@pytest.mark.family
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BY_OTHERS)
def test_steps_that_scale_by_another_record_are_found(name: str, seed: int) -> None:
    replay = replayed(BY_OTHERS[name], seed=seed)
    assert replay.abstained == ""
    assert replay.mixes_records, replay


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at_start", [False, True])
def test_padding_may_be_at_both_ends(at_start: bool) -> None:
    assert replayed(BY_OTHERS["longest by tokens"], at_start=at_start).mixes_records


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["longest by tokens", "longest by mask", "longest by lengths", "used width"])
def test_ghost_clipping_keeps_the_number_of_tokens(name: str) -> None:
    def divisor(tokens: Tensor, lengths: Tensor, mask: Tensor) -> Any:
        return BY_OTHERS[name](tokens, lengths, mask)

    assert ghost(divisor).mixes_records


@pytest.mark.family
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_steps_leave_other_rows(name: str, mode: str) -> None:
    replay = ghost(HONEST[name]) if mode == "ghost" else replayed(HONEST[name])
    assert replay.abstained == ""
    assert (replay.outputs_moved, replay.gradients_moved) == (0.0, 0.0)
    assert 0.0 < replay.sum_moved <= 2.0 + 1e-6


def ghost(divisor: Any) -> StepReplay:
    """A step with ghost clipping, whose model gets one tensor of tokens, lengths and mask."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pooled = Pooled(divisor)

        def forward(self, tokens: Tensor) -> Tensor:
            mask = (tokens > 0).float()
            return self.pooled(tokens, mask.sum(1), mask)

    torch.manual_seed(3)
    tokens, _, _, y = texts(1)
    trace, sums, outputs, gradients = opacus_trace(Joined(), None, [tokens, y], "ghost")
    rows = {"outputs": outputs, "gradients": gradients}
    return measure(trace, [tokens, y], sums, CLIP, **rows, randomness=random.Random(3), skips_counts=True)


def test_the_extreme_record_is_longer_than_all_others() -> None:
    tokens, lengths, mask, _ = texts(1)
    for row, base, extreme in extreme_records([tokens, lengths, mask], random.Random(1), keeps_counts=False):
        others = torch.arange(len(tokens)) != row
        for before, after in zip(base, extreme, strict=True):
            assert torch.equal(before[others], after[others])
        used = [(batch[0] > 0).sum(1) for batch in (base, extreme)]
        longer = used[1][row] > used[1][others].max()
        assert longer or used[1][row] == 1
        assert bool((used[0] > 0).all())


def test_an_extreme_record_keeps_the_number_of_different_tokens() -> None:
    tokens = texts(1)[0]
    (pair,) = extreme_records([tokens], random.Random(1), keeps_counts=True)
    for batch in pair[1:]:
        assert [len(record.unique()) for record in batch[0]] == [len(record.unique()) for record in tokens]


def test_columns_of_categories_are_no_sequences() -> None:
    generator = torch.Generator().manual_seed(1)
    assert not is_sequence(torch.randint(0, 3, (16, 6), generator=generator))
    assert not is_sequence(torch.randn(16, 6, generator=generator))
    assert not is_sequence(torch.ones(16, 6, dtype=torch.long))
    assert is_sequence(texts(1)[0])
    assert is_sequence(texts(1)[2].bool())
