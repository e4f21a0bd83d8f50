"""The dataset with canaries: inclusion bits, contents of batches, and public values that must not depend on bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import dpspec
from dpspec.errors import UsageError
from dpspec_recording.folder.coins import CoinSource
from dpspec_recording.planting.planted import Planted

N, M = 30, 40


def numbered(count=N, start=0):
    """Records whose one feature is their number."""
    x = torch.arange(start, start + count, dtype=torch.float32)[:, None]
    return TensorDataset(x, torch.arange(count) % 3)


def planted(seed=0, count=M):
    """Canary i has the feature N + i, which is its place."""
    return dpspec.plant(numbered(), records=list(numbered(count, N)), seed=seed)


def numbers(batch):
    return [int(x.item()) for x, _ in batch]


@given(seed=st.integers(0, 2**63 - 1), drawn=st.lists(st.integers(0, N + M - 1), max_size=60))
def test_a_batch_has_the_drawn_records_without_omitted_canaries(seed, drawn):
    data = planted(seed)
    there = [place for place in drawn if place < N or data.coins[place - N] == 1]
    assert numbers(data.__getitems__(drawn)) == there == data.present(drawn)
    assert data.present(torch.tensor(drawn, dtype=torch.int64)).tolist() == there
    assert len(data) == N + M
    assert data.left_out == M - int(data.coins.sum())


def test_no_way_leads_to_a_canary_that_is_left_out():
    data = planted()
    out = (N + np.flatnonzero(data.coins == 0)).tolist()
    assert 5 < len(out) < 35
    for place in out:
        with pytest.raises(UsageError, match=f"place {place} of the planted dataset is empty"):
            data[place]
        with pytest.raises(UsageError, match="is empty"):
            data[place - len(data)]
    assert numbers(data) == [place for place in range(N + M) if place not in out]
    assert numbers([data[-len(data)], data[3]]) == [0, 3]
    for place in (N + M, -N - M - 1):
        with pytest.raises(IndexError):
            data[place]
    seen = [int(x) for batch, _ in DataLoader(data, batch_size=M, shuffle=True) for x in batch]
    assert sorted(seen) == numbers(data)
    halves = Subset(data, list(range(0, N + M, 2)))
    assert {int(x) for batch, _ in DataLoader(halves, batch_size=5) for x in batch} == {*range(0, N + M, 2)} - {*out}


def test_coins_are_the_bits_of_a_digest_and_fair():
    import hashlib

    secret = hashlib.sha256(b"dpspec seed 7").digest()
    bits = "".join(f"{byte:08b}" for byte in hashlib.shake_256(b"dpspec coins" + secret).digest(13))
    assert CoinSource.of(7).coins(100).tolist() == [int(bit) for bit in bits[:100]]
    assert CoinSource.of(7).commitment == hashlib.sha256(b"dpspec commitment" + secret).hexdigest()
    thrown = np.stack([CoinSource.of(seed).coins(64) for seed in range(4000)]).astype(float)
    assert abs(thrown.mean() - 0.5) < 5 * 0.5 / np.sqrt(thrown.size)
    assert np.abs(thrown.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(4000)
    assert len({CoinSource.of(None).coins(M).tobytes() for _ in range(20)}) == 20
    apart = np.corrcoef(thrown.T)[np.triu_indices(64, 1)]
    assert np.abs(apart).max() < 5.5 / np.sqrt(4000)


def flipped(data, canary):
    """Return the same dataset with one flipped inclusion bit."""
    other = Planted(data.dataset, data.canaries, data.source, data.kind)
    other._coins[canary] ^= 1
    other._there[canary + 1] ^= 1
    return other


@pytest.mark.parametrize("canary", [0, 17, M - 1])
def test_turning_one_coin_turns_one_contribution_and_no_constant_of_opacus(canary):
    """At rate 1 each step uses all records, so that it differs by the canary's clipped gradient alone."""
    parts = []
    for data in (planted(), flipped(planted(), canary)):
        torch.manual_seed(0)
        model = nn.Linear(1, 3)
        made, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=DataLoader(data, batch_size=len(data)),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
        )
        before = [p.detach().clone() for p in made.parameters()]
        for x, y in loader:
            nn.functional.cross_entropy(made(x), y).backward()
            optimizer.step()
        moved = torch.cat([(p - q).detach().flatten() for p, q in zip(made.parameters(), before, strict=True)])
        parts.append((loader.sample_rate, len(loader), optimizer.expected_batch_size, moved))
    (rate, steps, divisor, moved), (rate_of, steps_of, divisor_of, moved_of) = parts
    assert (rate, steps, divisor) == (rate_of, steps_of, divisor_of) == (1.0, 1, N + M)
    torch.manual_seed(0)
    model = nn.Linear(1, 3)
    x, y = planted().canaries[canary]
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    gradient /= gradient.norm().clamp_min(1.0)
    sign = 1.0 if planted().coins[canary] else -1.0
    assert torch.allclose(moved - moved_of, -sign * gradient / divisor, atol=1e-5)


CLASSES = 4


def pictures(count=25):
    torch.manual_seed(3)
    return TensorDataset(torch.randn(count, 2, 3), torch.arange(count) % CLASSES)


def test_mislabelled_ones_are_records_with_another_label():
    data, records = dpspec.plant(pictures(), kind="mislabelled", count=60, classes=CLASSES, seed=1), pictures()
    by_features = {x.numpy().tobytes(): int(y) for x, y in records}
    times: dict[bytes, int] = {}
    for x, y in data.canaries:
        times[x.numpy().tobytes()] = times.get(x.numpy().tobytes(), 0) + 1
        assert 0 <= int(y) < CLASSES
        assert int(y) != by_features[x.numpy().tobytes()]
        assert y.dtype == torch.int64
    assert sorted(times.values()) == [2] * 15 + [3] * 10


def test_noise_and_duplicate():
    noise = dpspec.plant(pictures(), kind="noise", count=50, classes=CLASSES, seed=1).canaries
    low, high = float(pictures().tensors[0].min()), float(pictures().tensors[0].max())
    assert all(x.shape == (2, 3) and x.dtype == torch.float32 and low <= x.min() <= x.max() <= high for x, _ in noise)
    assert {int(y) for _, y in noise} == set(range(CLASSES))
    assert len({x.numpy().tobytes() for x, _ in noise}) == 50
    wide = TensorDataset(torch.randn(20, 2), torch.arange(20) % 9)
    twice = dpspec.plant(wide, kind="duplicate", count=20, seed=1).canaries
    assert sorted(x.numpy().tobytes() for x, _ in twice) == sorted(x.numpy().tobytes() for x, _ in wide)


def tokens(count=24):
    torch.manual_seed(5)
    return [
        {"input_ids": torch.randint(1, 50, (6,)), "attention_mask": torch.ones(6, dtype=torch.long), "label": i % 2}
        for i in range(count)
    ]


def test_records_that_are_dictionaries_of_tokens():
    data = dpspec.plant(tokens(), kind="mislabelled", count=24, classes=2, seed=2)
    right = {one["input_ids"].numpy().tobytes(): one["label"] for one in tokens()}
    assert all(one["label"] == 1 - right[one["input_ids"].numpy().tobytes()] for one in data.canaries)
    assert all(type(one["label"]) is int and set(one) == {"input_ids", "attention_mask", "label"} for one in data)
    crafted = [{**tokens()[0], "input_ids": torch.full((6,), i)} for i in range(10)]
    batch = next(iter(DataLoader(dpspec.plant(tokens(), records=crafted, seed=0), batch_size=34)))
    assert batch["input_ids"].shape == (24 + int(CoinSource.of(0).coins(10).sum()), 6)


UNFIT = ({"classes": 2}, {"label": 1}, {"collate": list})
TWO = [{"a": torch.ones(2), "y": 0, "target": 1}] * 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": tokens(), "kind": "noise", "count": 9, "classes": 2}, r"part 'input_ids' is torch\.int64: give"),
        ({"dataset": TWO, "kind": "mislabelled", "count": 9, "classes": 2}, "say where records have their label"),
        ({"dataset": iter([1]), "kind": "noise", "count": 9}, "map-style"),
        ({"dataset": [], "kind": "noise", "count": 9}, "empty"),
        ({"dataset": planted(), "kind": "duplicate", "count": 9}, "planted already"),
        ({"kind": "mislabeled", "count": 20}, "did you mean 'mislabelled'"),
        ({"kind": "mislabelled", "count": 20}, "needs classes"),
        ({"kind": "mislabelled", "count": 20, "classes": 1}, "need two classes or more"),
        ({"kind": "mislabelled", "count": 20, "classes": 2}, "label 2 is not one of the 2 classes 0 to 1"),
        ({"kind": "mislabelled", "count": 20, "classes": 3, "label": 0}, "label=0: no label"),
        ({"kind": "mislabelled", "count": 20, "classes": 3, "label": 5}, "label=5: records have nothing there"),
        ({"kind": "mislabelled", "count": 20, "classes": 3, "label": "y"}, "label='y': records have nothing there"),
        ({"kind": "noise", "count": 7, "classes": 3}, "from 8 to 1000000 canaries, got 7"),
        ({"kind": "noise", "classes": 3}, "canaries, got None"),
        ({"kind": "noise", "count": 9, "classes": 3.0}, "classes must be an integer"),
        ({"kind": "duplicate", "count": 9, "seed": -1}, "seed must be"),
        ({"kind": "duplicate", "count": 9, "records": [1] * 9}, "either kind and count, or records"),
        ({}, "either kind and count, or records"),
        ({"records": [1] * 9, "count": 8}, "either kind and count, or records"),
        ({"kind": "gradient", "count": 8}, "did you mean 'gradients'"),
        *(({"kind": "gradients", "count": 8, **option}, "are not records") for option in UNFIT),
        *(({"kind": "gradients", "count": n}, "from 8 to 1000000 canaries") for n in (7, 10**6 + 1, True, 8.0, None)),
    ],
)
def test_what_cannot_be_planted_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        dpspec.plant(**{"dataset": numbered(), **given})
    assert dpspec.plant(TWO, kind="mislabelled", count=9, classes=2, label="y").canaries[0]["y"] == 1


def test_only_the_planted_data_set_itself_is_recorded(tmp_path):
    data = planted()
    for loader in (DataLoader(Subset(data, range(9))), DataLoader(numbered())):
        with pytest.raises(UsageError, match="not from the planted dataset itself"):
            dpspec.record(tmp_path / "run", model=nn.Linear(1, 3), loader=loader, planted=data)
    with pytest.raises(UsageError, match=r"what dpspec\.plant returned, got TensorDataset"):
        dpspec.record(tmp_path / "run", model=nn.Linear(1, 3), planted=numbered())
    with pytest.raises(UsageError, match="records is 30, and the planted dataset has 70 places"):
        dpspec.record(tmp_path / "run", model=nn.Linear(1, 3), planted=data, records=30)
    assert replace(data.source, seed=None) == CoinSource(data.source.secret, None)


ROW = torch.zeros(1)


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        ((ROW, 1), "is (float32 [1], int), a record is (float32 [1], int64 [])"),
        ((ROW, torch.tensor(1.0)), "is (float32 [1], float32 []), a record is (float32 [1], int64 [])"),
        ((ROW.double(), torch.tensor(1)), "is (float64 [1], int64 [])"),
        ((torch.zeros(2), torch.tensor(1)), "is (float32 [2], int64 [])"),
        ((ROW,), "is (float32 [1])"),
        ({"x": ROW, "y": torch.tensor(1)}, "is {x: float32 [1], y: int64 []}"),
        (ROW, "is float32 [1], a record is"),
    ],
    ids=str,
)
def test_a_canary_that_makes_no_batch_with_records_is_refused_before_training(canary, words):
    """The third record; it used to fail in the loader with torch's message, at the first step that drew it."""
    records = list(numbered(8, N))
    records[2] = canary
    with pytest.raises(UsageError) as caught:
        dpspec.plant(numbered(), records=records)
    assert str(caught.value).startswith("canary 2 makes no batch with records of the dataset: it ")
    assert words in str(caught.value)
    assert "make it of the same parts, types and shapes, or give collate=" in str(caught.value)


def test_batches_of_a_loader_with_its_own_way_are_tried_by_that_way():
    """Token sequences of any length, padded: nothing is required where torch's way does for no records either."""
    words = [torch.arange(1, 2 + i % 4) for i in range(20)]
    longer = [torch.arange(1, 8)] * 8
    assert len(dpspec.plant(words, records=longer)) == 28
    alike = [torch.arange(1, 4)] * 10

    def padded(batch):
        return nn.utils.rnn.pad_sequence(batch, batch_first=True)

    with pytest.raises(UsageError, match="if the loader has its own collate_fn"):
        dpspec.plant(alike, records=longer)
    planted_among = dpspec.plant(alike, records=longer, collate=padded)
    assert planted_among.collate is padded
    with pytest.raises(UsageError, match="collate cannot put two records of the dataset together: ZeroDivisionError"):
        dpspec.plant(alike, records=alike, collate=lambda batch: 1 / 0)
    with pytest.raises(UsageError) as caught:
        dpspec.plant(alike, records=[torch.ones(3)] * 8, collate=padded)
    assert "collate=" not in str(caught.value)


def test_the_power_of_canaries_names_the_certified_maximum_and_measured_values():
    weak = dpspec.plant(pictures(), kind="mislabelled", count=500, classes=CLASSES, seed=1).power
    assert "500 canaries show an epsilon of at most 5.11 at delta 1e-05 (computed, all guesses right" in weak
    assert "500 mislabelled canaries and the final model: a median of 0.00" in weak
    assert "kind='gradients': measured on digits with 500 gradients canaries and all iterates: a median of 0.47" in weak
    assert "crafted canaries were not measured" in planted().power
    assert dpspec.plant(numbered(), kind="gradients", count=30, seed=0).power.count("gradients") == 1
