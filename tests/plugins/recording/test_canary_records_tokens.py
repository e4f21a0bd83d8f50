"""Canaries of token ids: separate tokens, one distribution for included and omitted ones, and groups of copies."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from scipy import stats
from support.checked_runs import checked
from support.opacus_training import SECRET
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec.cli.app import main
from dpspec.errors import ExitCode, UsageError
from dpspec_recording.planting.canary_records import IGNORED

USED, LENGTH, SIZE = 20, 6, 100


def ids(count=40, length=LENGTH):
    return torch.randint(0, USED, (count, length), generator=torch.Generator().manual_seed(1))


class Window(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def next_ids(count=40):
    whole = ids(count, LENGTH + 1)
    return [Window(row[:-1], row[1:]) for row in whole]


def padded(count=40):
    """Records of transformers' models, from 3 to 6 ids long and padded on the right."""
    found = []
    for number, row in enumerate(ids(count)):
        length = 3 + number % 4
        there = (torch.arange(LENGTH) < length).long()
        row = row * there
        found.append({"input_ids": row, "attention_mask": there, "labels": torch.where(there == 1, row, IGNORED)})
    return found


def plant(data, kind="new-tokens", count=30, **options):
    options = {"vocabulary": SIZE, **options} if kind == "new-tokens" else options
    return dpspec.plant(data, kind=kind, count=count, seed=0, **options)


@pytest.mark.parametrize(
    "data",
    [ids(), list(ids()), ids().numpy(), ids().tolist(), TensorDataset(ids())],
    ids=["tensor", "tensors", "numpy", "lists", "tuples"],
)
def test_sequences_end_in_a_token_of_their_own_and_keep_their_form(data):
    planted = plant(data)
    rows = [tuple(np.asarray(one[0] if isinstance(data, TensorDataset) else one).tolist()) for one in planted.canaries]
    prefixes = {tuple(row.tolist()[:-1]) for row in ids()}
    assert all(row[:-1] in prefixes and USED <= row[-1] < SIZE for row in rows)
    assert len({row[-1] for row in rows}) == 30
    assert all(type(one) is type(data[0]) for one in planted.canaries)
    assert planted.vocabulary == SIZE
    assert planted.new_ids == 0


def test_the_token_is_the_only_target_and_precedes_the_padding():
    for one in plant(next_ids()).canaries:
        assert isinstance(one, Window)
        assert one.inputs.max() < USED <= one.targets[-1]
        assert (one.targets[:-1] == IGNORED).all()
        assert any(torch.equal(one.inputs, row.inputs) for row in next_ids())
    for one in plant(padded()).canaries:
        last = int(one["attention_mask"].sum()) - 1
        token = int(one["input_ids"][last])
        assert token >= USED
        assert one["labels"].tolist() == [IGNORED] * last + [token] + [IGNORED] * (LENGTH - 1 - last)
        assert not one["input_ids"][last + 1 :].any()


@pytest.mark.ci
def test_random_tokens_are_uniform_over_the_ids_of_the_data():
    planted = plant(padded(), "random-tokens", 4000, special=(0, 3))
    drawn = np.concatenate([one["input_ids"].numpy()[one["attention_mask"].numpy() == 1] for one in planted.canaries])
    counts = np.bincount(drawn, minlength=USED)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert stats.chisquare(np.delete(counts, [0, 3])).pvalue > 1e-4
    for one in planted.canaries:
        there = one["attention_mask"] == 1
        assert torch.equal(one["labels"], torch.where(there, one["input_ids"], IGNORED))
    for one in plant(next_ids(), "random-tokens").canaries:
        assert torch.equal(one.targets[:-1], one.inputs[1:])
        assert one.targets.max() < USED


@pytest.mark.ci
def test_included_and_omitted_canaries_have_one_distribution():
    """Over seeds, neither the token nor the prefix of a canary depends on its inclusion bit."""
    tokens: dict[int, list[int]] = {0: [], 1: []}
    firsts: dict[int, list[int]] = {0: [], 1: []}
    for seed in range(150):
        planted = dpspec.plant(ids(), kind="new-tokens", count=40, vocabulary=USED + 40, seed=seed)
        for coin, row in zip(planted.coins.tolist(), planted.canaries, strict=True):
            tokens[coin].append(int(row[-1]))
            firsts[coin].append(int(row[0]))
    for found in (tokens, firsts):
        values = sorted({*found[0], *found[1]})
        table = [[found[coin].count(value) for value in values] for coin in (0, 1)]
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_vocabulary_is_extended_only_on_request():
    with pytest.raises(
        UsageError, match=r"30 canaries .* need a token id each, and 5 of the 25 ids occur in no record"
    ):
        plant(ids(), vocabulary=USED + 5)
    with pytest.raises(UsageError, match="and 20 of the 51 ids"):
        plant(ids(), vocabulary=USED + 31, special=range(USED, USED + 11))
    planted = plant(ids(), vocabulary=USED + 5, extend=True)
    assert sorted(int(row[-1]) for row in planted.canaries) == list(range(USED + 5, USED + 35))
    assert (planted.vocabulary, planted.new_ids) == (USED + 35, 30)
    assert all(int(row[-1]) not in range(25, 30) for row in plant(ids(), special=range(25, 30)).canaries)


def test_templates_come_first_and_several_new_tokens_last() -> None:
    """A record is the ids, a pair with shifted targets, or padded; targets are the new tokens alone."""
    options = {"count": 9, "tokens": 3, "vocabulary": USED, "extend": True}
    rows = np.array([row.tolist() for row in plant(ids(), template=[2, 1], **options).canaries])
    assert (rows[:, :2] == [2, 1]).all()
    assert sorted(rows[:, -3:].ravel()) == list(range(USED, USED + 27))
    planted = plant(next_ids(), template=[2], **options)
    assert planted.vocabulary == USED + 27
    for inputs, targets in planted.canaries:
        assert inputs[0] == 2
        assert (inputs[-2:] >= USED).all()
        assert torch.equal(targets[-3:-1], inputs[-2:])
        assert (targets[-3:] >= USED).all()
        assert (targets[:-3] == IGNORED).all()
    for record in plant(padded(), template=[2], **options | {"tokens": 2}).canaries:
        there = record["attention_mask"].nonzero().flatten()
        assert record["input_ids"][0] == 2
        assert (record["input_ids"][there[-2:]] >= USED).all()
        assert (record["labels"] != IGNORED).nonzero().flatten().tolist() == there[-2:].tolist()
    free = plant(ids(), count=9, template=[USED], vocabulary=USED + 10).canaries
    assert all(int(row[0]) == USED and int(row[-1]) > USED for row in free)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (ids(), {"vocabulary": None}, "needs vocabulary, the model's number of token ids"),
        (ids(), {"vocabulary": USED - 5}, rf"a record has the token id {USED - 1}, and vocabulary=15"),
        (ids(), {"vocabulary": 0}, "vocabulary must be the model's number"),
        (ids(), {"special": [-1]}, "special must be token ids"),
        (ids() - 1, {}, "the token id -1: no vocabulary has it"),
        (ids(), {"kind": "random-tokens", "extend": True}, "leave vocabulary, extend, tokens and template out"),
        (ids(), {"tokens": 0}, "tokens must be the number of new tokens"),
        (ids(), {"tokens": 2, "vocabulary": USED + 31}, "30 canaries .* need 2 token ids each"),
        (ids(), {"template": [SIZE]}, "template must be token ids from 0 to"),
        (ids(), {"count": 9, "tokens": 3, "template": range(LENGTH - 2)}, "has no place for a template of"),
        (torch.zeros(9, 3, dtype=torch.int64), {"kind": "random-tokens"}, "fewer than two token ids"),
        (ids(length=1), {}, "two token ids or more"),
        (torch.randn(9, 4), {}, "is not a sequence of token ids"),
        ([{"tokens": ids()[0]}] * 9, {}, "at the key input_ids"),
        ([(ids()[0], ids()[1])] * 9, {}, "must hold the targets of the token ids"),
        ([(ids()[0], 1)] * 9, {}, "part 1 of a record is not a sequence"),
        ([(1, 2, 3)] * 9, {}, "token canaries need records of token ids"),
        ([*padded()[:9], {"input_ids": ids()[0]}], {"count": 9}, "'labels', which other records have"),
        (ids(), {"kind": "duplicate", "vocabulary": SIZE}, "are for canaries of kind"),
        (ids(), {"kind": "duplicate", "copies": 0}, "copies must be an integer"),
        (ids(), {"kind": "gradients", "copies": 2}, "omit classes, label, collate and copies"),
    ],
)
def test_unusable_records_and_options_are_refused(data, options, message):
    with pytest.raises(UsageError, match=message):
        plant(data, **{"kind": "new-tokens", **options})


def test_a_canary_is_in_all_of_its_places_or_in_none():
    written = [torch.full((LENGTH,), number) for number in range(10)]
    planted = dpspec.plant(ids(), records=written, copies=3, seed=2)
    assert len(planted) == 40 + 30
    assert planted.left_out == 3 * (10 - int(planted.coins.sum()))
    there = planted.present(range(70))
    assert there == list(range(40)) + [40 + 3 * i + j for i in np.flatnonzero(planted.coins) for j in range(3)]
    fetched = [int(row[0]) for row in planted.__getitems__(range(40, 70))]
    assert fetched == [int(i) for i in np.flatnonzero(planted.coins) for _ in range(3)]


class Bigram(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding, self.head = nn.Embedding(size, 16), nn.Linear(16, size, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs):
        return self.head(self.embedding(inputs))


def of_each(model, batch):
    inputs, targets = batch
    losses = cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
    return losses.sum(1) / (targets != IGNORED).sum(1)


def repeated(count):
    """Written canaries: one id, then a separate id in each place."""
    return [Window(torch.full((LENGTH,), 7), torch.full((LENGTH,), USED + number)) for number in range(count)]


def train(folder, planted, *, noise=1.0, steps=8, size=SIZE):
    torch.manual_seed(SECRET)
    engine = PrivacyEngine()
    model = Bigram(planted.vocabulary or size)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(planted, batch_size=len(planted) // 2),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    with dpspec.record(folder, model=model, optimizer=optimizer, loader=loader, engine=engine) as run:
        for _ in range(steps // 2):
            for batch in loader:
                optimizer.zero_grad()
                of_each(model, batch).mean().backward()
                optimizer.step()
    run.score(model, of_each)


@pytest.mark.ci
def test_new_tokens_show_more_than_random_ones_and_no_more_than_the_schedule(tmp_path, capsys):
    shown = {}
    for kind in ("new-tokens", "random-tokens"):
        options = {"vocabulary": USED, "extend": True} if kind == "new-tokens" else {}
        planted = dpspec.plant(next_ids(60), kind=kind, count=400, seed=3, **options)
        train(tmp_path / kind, planted)
        found = checked(tmp_path / kind, epsilon=12.0)
        assert (found.verdict, found.exit_code) == ("proved", ExitCode.OK)
        assert found.canaries.lower <= found.costs[1].interval.upper
        shown[kind] = found.canaries.lower
    assert shown["new-tokens"] > 1.0 > 2 * shown["random-tokens"]
    main(["check", str(tmp_path / "new-tokens"), "-v"])
    page = " ".join(capsys.readouterr().out.split())
    assert "400 canaries (new-tokens)" in page
    assert "the canaries extend the model's vocabulary by 400 ids" in page


@pytest.mark.ci
def test_copies_are_a_group_and_their_bound_one_of_its_size(tmp_path, capsys):
    planted = dpspec.plant(next_ids(60), records=repeated(60), copies=4, seed=3)
    train(tmp_path / "run", planted, noise=2.0)
    found = checked(tmp_path / "run", epsilon=6.0, group_sizes=(1, 4))
    assert found.costs[1].interval.upper < found.costs[4].interval.upper
    assert found.canaries.upper == pytest.approx(found.costs[4].interval.upper)
    assert 1.0 < found.canaries.lower <= found.costs[4].interval.upper
    assert [main(["check", str(tmp_path / "run"), *options]) for options in ([], ["-v"])] == [5, 5]
    page = " ".join(capsys.readouterr().out.split())
    assert "group size 4, lower bound: statistical at confidence 0.95: one run, final model, 60 canaries of 4" in page
    assert "60 canaries (crafted) of 4 equal records each" in page
    assert "group size 4, upper bound" in page


@pytest.mark.ci
def test_the_bound_of_a_group_refutes_no_claim_for_single_records(tmp_path):
    planted = dpspec.plant(next_ids(60), records=repeated(600), copies=4, seed=3)
    train(tmp_path / "run", planted, noise=6.0, size=USED + 600)
    single, group = (checked(tmp_path / "run", epsilon=1.0, group_sizes=sizes) for sizes in ((1,), (4,)))
    assert group.canaries.lower > 1.0 > single.costs[1].interval.upper
    assert (single.verdict, group.verdict) == ("proved", "refuted")
    assert (single.exit_code, group.exit_code) == (ExitCode.OK, ExitCode.UNEXPECTED)
