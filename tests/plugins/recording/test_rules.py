"""Each rule on a training that breaks it, and on its honest twin."""

import contextlib
import json
import os
import random
import secrets
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from support.checked_runs import checked
from support.public_mistakes.parts import OpacusTraining
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpspec
from dpspec import decimals, json_records
from dpspec.contract.results import open_cautions
from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep, TrainingRule
from dpspec.errors import RecordingError
from dpspec_recording.folder.events import Header
from dpspec_recording.observers.constants.metric_scheduler import MetricScheduler
from dpspec_recording.observers.noise import guessable_seed
from dpspec_recording.observers.own_rules import RULES
from dpspec_recording.observers.released_model.trained_before import TrainedBefore
from dpspec_recording.observers.rules import RuleFact, RuleFacts, Rules, code_of
from dpspec_recording.observers.sampling.run_counts import EmptyBatchSkipped, LargeDelta, MoreRows, ZeroGradientRows
from dpspec_recording.observers.sensitivity import model_inputs
from dpspec_recording.observers.sensitivity.class_weights_from_labels import ClassWeightsFromLabels
from dpspec_recording.observers.sensitivity.duplicate_records import DuplicateRecords, ids_in
from dpspec_recording.observers.sensitivity.paired_records import PairedRecords, windows_of_a_value
from dpspec_recording.observers.sensitivity.standardized_features import StandardizedFeatures
from dpspec_recording.observers.update_rule.second_optimizer import SecondOptimizer
from dpspec_recording.pending_step import PendingStep
from dpspec_recording.step_replay.trace import StepTrace

RUN = RuleRun(own_loop=False, steps=100, delta=1e-5)
SECRET = 0x5A17_93C2_10B4_4D


def rows(count=200, width=6, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator)
    return x, (x[:, 0] > 0).long()


def loader(x, y):
    return DataLoader(TensorDataset(x, y), batch_size=20)


def caution(rule, run=RUN):
    return rule.caution(rule.facts(), run)


def started(rule, **setup):
    rule.start(RuleSetup(**{"model": nn.Linear(6, 2), **setup}))
    return rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("with_loader", [False, True])
def test_rules_may_stop_before_the_first_step_is_written(rule, with_loader):
    """An exception in the first step of a custom loop: the rest of the step is written after the block."""
    x, y = rows()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    observer = started(code_of(rule)(), model=model, optimizer=optimizer, loader=loader(x, y) if with_loader else None)
    model(x[:5]).sum().backward()
    optimizer.step()
    observer.stop()
    observer.after_step(RuleStep(number=1, drawn=np.arange(5), norms=np.ones(5), clip_norm=1.0, noise=torch.ones(14)))
    json_records.read(observer.kind, json_records.write(observer.facts()), "facts")


def mistaken():
    """Overlapping windows of a circle, each twice: all columns have its values, with mean 0 and deviation 1."""
    series = torch.randn(150, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    series = ((series - series.mean()) / series.std(correction=0)).float()
    x = torch.cat([series, series[:19]]).unfold(0, 20, 1).repeat(2, 1)
    return TensorDataset(x, (x[:, 0] > 0.5).long())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_end_of_a_rule_keeps_what_its_beginning_found(rule):
    data = mistaken()
    model = nn.Linear(20, 2)
    model.weight.data.copy_(data.tensors[0][:2])
    model.register_buffer("mean", data.tensors[0].square().mean(0))
    observer = started(code_of(rule)(), model=model, loader=DataLoader(data, batch_size=20))
    found = caution(observer)
    for _ in range(2):  # a rule may stop twice
        observer.stop()
        assert bool(caution(observer)) >= bool(found)
        assert not found or caution(observer) == found


def test_findings_of_the_beginning_are_in_the_verdict(tmp_path):
    training = OpacusTraining(nn.Linear(20, 2), mistaken())
    training.plain.weight.data.copy_(training.data.tensors[0][:2])
    for x, y in training.recorded(tmp_path / "run", 1):
        training.step(training.criterion(training.model(x), y))
    fired = {rule.name for rule in open_cautions(checked(tmp_path / "run", epsilon=20.0).audit)}
    assert {"paired-records", "duplicate-records", "standardized-features", "records-in-model"} <= fired


def step(number=1, drawn=None, noise=None):
    return RuleStep(number=number, drawn=drawn, norms=None, clip_norm=1.0, noise=noise)


@pytest.mark.parametrize("seed", [0, 42, 2**31])
def test_a_small_seed_of_torch_before_the_block_is_guessable(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rule = started(guessable_seed.GuessableSeed())
        torch.randn(3)
        rule.after_step(step())
        assert f"torch.manual_seed({seed})" in caution(rule)


def test_a_secret_seed_and_an_unused_one_are_not_guessable():
    with torch.random.fork_rng():
        torch.manual_seed(SECRET)
        rule = started(guessable_seed.GuessableSeed())
        torch.randn(3)
        rule.after_step(step())
        assert caution(rule) == ""
        torch.manual_seed(0)
        rule = started(guessable_seed.GuessableSeed())
        rule.after_step(step())
        assert caution(rule) == ""


class _Noise:
    """Opacus' optimizer with a secret generator."""

    generator = torch.Generator().manual_seed(SECRET)
    params = (torch.zeros(1),)


@pytest.mark.parametrize("drawn_by", ["shuffle", "batch_sampler"])
def test_a_small_seed_of_the_loaders_generator_lets_batches_be_recomputed(drawn_by):
    generator, data = torch.Generator().manual_seed(0), TensorDataset(*rows())
    sampler = torch.utils.data.RandomSampler(data, generator=generator)
    options = {
        "shuffle": {"batch_size": 20, "shuffle": True, "generator": generator},
        "batch_sampler": {"batch_sampler": torch.utils.data.BatchSampler(sampler, 20, drop_last=False)},
    }
    rule = started(
        guessable_seed.GuessableSeed(), private_optimizer=_Noise(), loader=DataLoader(data, **options[drawn_by])
    )
    rule.after_step(step())
    assert "recompute the batches" in caution(rule)
    generator.manual_seed(SECRET)
    rule = started(
        guessable_seed.GuessableSeed(), private_optimizer=_Noise(), loader=DataLoader(data, **options[drawn_by])
    )
    rule.after_step(step())
    assert caution(rule) == ""


def test_one_seed_of_noise_and_batches_shows_the_batches():
    data, seeds = TensorDataset(*rows()), (SECRET, SECRET + 1)
    for seed in seeds:
        sampler = UniformWithReplacementSampler(
            num_samples=200, sample_rate=0.1, generator=torch.Generator().manual_seed(seed)
        )
        loader = DataLoader(data, batch_sampler=sampler)
        rule = started(guessable_seed.GuessableSeed(), private_optimizer=_Noise(), loader=loader)
        rule.after_step(step())
        assert ("two generators with one seed" in caution(rule)) is (seed == SECRET)


def traced(make):
    """The seeds of the noise, the indices and the sum of a step that ``make`` draws."""
    trace = StepTrace()
    trace.start()
    try:
        noise, drawn, total = make()
    finally:
        trace.stop()
    return [{source.initial_seed() for source in trace.generators_of([tensor])} for tensor in (noise, drawn, total)]


def loop_caution(noise=(), batches=()):
    rule = started(guessable_seed.GuessableSeed())
    rule.after_step(replace(step(), noise_generators=tuple(noise), batch_generators=tuple(batches)))
    return caution(rule)


PUBLIC = {
    "a number below 2^32": lambda: 987_654_321,
    "the seed of a new generator": lambda: torch.Generator().initial_seed(),
}
SECRETS = {
    "seed()": lambda: torch.Generator().seed(),
    "os.urandom": lambda: int.from_bytes(os.urandom(8), "big"),
    "secrets": lambda: secrets.randbits(63),
}


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_traced_generator_with_a_public_seed_is_guessable(kind):
    seed = PUBLIC[kind]()
    generator = torch.Generator().manual_seed(seed)
    assert f"torch.Generator().manual_seed({seed})" in loop_caution(noise=[generator])
    assert "recompute the noise" in loop_caution(noise=[generator])
    assert "recompute the batches" in loop_caution(batches=[generator])


@pytest.mark.parametrize("kind", SECRETS)
def test_a_traced_generator_with_a_secret_seed_is_not_guessable(kind):
    secret = torch.Generator().manual_seed(SECRETS[kind]())
    assert loop_caution(noise=[secret], batches=[secret]) == ""
    assert loop_caution(noise=[torch.Generator().manual_seed(0), secret]) == ""


@pytest.fixture
def seeded_default():
    with torch.random.fork_rng():
        torch.manual_seed(11)
        yield torch.default_generator


def test_a_seed_of_torch_is_no_seed_of_noise_that_another_generator_draws(seeded_default):
    secret = torch.Generator().manual_seed(SECRET)

    def said(**generators):
        rule = started(guessable_seed.GuessableSeed())
        torch.randn(3)  # of dropout, or of initial weights
        rule.after_step(replace(step(), **generators))
        return caution(rule)

    assert said(noise_generators=(secret,)) == ""
    assert "can recompute the noise" in said(noise_generators=(seeded_default,))
    assert "can recompute the batches" in said(noise_generators=(secret,), batch_generators=(seeded_default,))
    assert "If noise or batches come from it" in said()


def test_the_generators_of_noise_and_batches_are_found_in_the_operations_of_a_step():
    of_noise, of_batches, of_masks = (torch.Generator().manual_seed(SECRET + number) for number in range(3))
    x = torch.ones(50, 4)

    def make():
        drawn = (torch.rand(50, generator=of_batches) < 0.5).nonzero().squeeze(1)
        mask = torch.rand(4, generator=of_masks) < 0.5
        noise = torch.empty(4)
        noise.normal_(generator=of_noise)
        return 2.0 * noise.view(2, 2), drawn, (x[drawn] * mask).sum(0)

    noise, batches, total = traced(make)
    assert noise == {SECRET}
    assert batches == {SECRET + 1}
    assert total == {SECRET + 1, SECRET + 2}
    assert traced(lambda: (torch.randn(3), torch.arange(3), x)) == [
        {torch.default_generator.initial_seed()},
        set(),
        set(),
    ]


@pytest.mark.parametrize(("noise", "near"), [(0.01, 16), (None, 0)])
def test_copies_with_noise_are_counted(noise, near):
    x, y = rows(count=100)
    copies = x if noise is None else torch.cat([x, x + noise * torch.randn_like(x)])
    rule = started(DuplicateRecords(), loader=loader(copies, y.repeat(len(copies) // 100)))
    facts = rule.facts()
    assert (facts.most, facts.inspected, facts.near_copies) == (1, 16, near)
    assert caution(rule) == ""


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (torch.arange(40).repeat_interleave(5), (40, 5)),
        (torch.arange(100).repeat(2) * 7919, (100, 2)),
        (torch.arange(200) % 10, (0, 0)),  # balanced labels
        (torch.arange(200) // 2 % 2, (0, 0)),
        (torch.arange(200), (0, 0)),  # the number of the row
        (torch.poisson(torch.full((200,), 40.0), generator=torch.Generator().manual_seed(1)).long(), (0, 0)),
        (torch.ones(200).long(), (0, 0)),
    ],
)
def test_columns_of_ids_have_equally_many_rows_of_each_value(column, found):
    x, y = rows()
    assert ids_in((x, y, column)) == found
    assert ids_in((torch.cat([column[:, None].float(), x], 1), y)) == found
    facts = started(DuplicateRecords(), loader=DataLoader(TensorDataset(x, y, column))).facts()
    assert (facts.ids, facts.rows_of_an_id, facts.most) == (*found, 1)


def test_one_hot_codes_tokens_and_images_are_no_ids():
    x, y = rows()
    generator = torch.Generator().manual_seed(2)
    codes = torch.nn.functional.one_hot(torch.arange(200) % 25)
    tokens = torch.randint(0, 50, (200, 12), generator=generator)
    images = torch.randint(0, 256, (200, 1, 4, 4), generator=generator, dtype=torch.uint8)
    assert ids_in((x, codes, tokens, images, y.bool())) == (0, 0)


def test_equal_rows_are_duplicates_unless_the_claim_is_for_groups():
    x, y = rows()
    assert caution(started(DuplicateRecords(), loader=loader(x, y))) == ""
    copied = loader(torch.cat([x, x[:30].repeat(4, 1)]), torch.cat([y, y[:30].repeat(4)]))
    rule = started(DuplicateRecords(), loader=copied)
    assert "each of 30 records occurs up to 5 times: --group-size 5" in caution(rule)
    assert caution(rule, RuleRun(own_loop=False, steps=1, delta=1e-5, group_size=5)) == ""


SCALED = {
    "mean 0 and deviation 1": lambda x: (x - x.mean(0)) / x.std(0),
    "minimum 0 and maximum 1": lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)),
    "minimum -1 and maximum 1": lambda x: 2.0 * (x - x.amin(0)) / (x.amax(0) - x.amin(0)) - 1.0,
    "largest absolute value 1": lambda x: x / x.abs().amax(0),
    "median 0 and quartile distance 1": lambda x: (
        (x - x.quantile(0.5, 0)) / (x.quantile(0.75, 0) - x.quantile(0.25, 0))
    ),
}


class _Repeated(torch.utils.data.Dataset):
    """Each of 50 records three times, by its index."""

    def __len__(self):
        return 150

    def __getitem__(self, index):
        return rows(50)[0][index % 50]


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_in_other_datasets_are_seen_in_a_batch(copies):
    rule = started(DuplicateRecords(), loader=DataLoader(_Repeated(), batch_size=20))
    drawn = np.asarray([3, 7, 11, 53, 103][: 2 + copies])
    rule.observe({"0": rows(50)[0][drawn % 50]})
    rule.after_step(step(drawn=drawn))
    words = "In 1 of 1 inspected batches, drawn records are equal, up to 3 in one batch"
    assert (words in caution(rule)) == (copies == 3)
    assert caution(rule, RuleRun(own_loop=False, steps=100, delta=1e-5, group_size=3)) == ""


def _pairs(first, second):
    """The pairs in one tensor, and in two fields."""
    x, _ = rows(100)
    same = torch.arange(len(first)) % 2
    return TensorDataset(torch.stack([x[first], x[second]], 1), same), TensorDataset(x[first], x[second], same)


@pytest.mark.parametrize("form", [0, 1])
def test_pairs_with_a_record_in_several_rows_are_counted(form):
    first, second = torch.arange(99), torch.arange(1, 100)  # a chain: all but the ends are in two pairs
    rule = started(PairedRecords(), loader=DataLoader(_pairs(first, second)[form], batch_size=20))
    assert "Of 99 rows of several parts, 98 parts occur in more than one row, up to 2" in caution(rule)
    assert caution(rule, RuleRun(own_loop=False, steps=100, delta=1e-5, group_size=2)) == ""


@pytest.mark.parametrize("form", [0, 1])
def test_pairs_without_a_common_record_are_quiet(form):
    disjoint = _pairs(torch.arange(50), torch.arange(50, 100))[form]
    assert caution(started(PairedRecords(), loader=DataLoader(disjoint, batch_size=20))) == ""
    views = _pairs(torch.arange(100), torch.arange(100))[form]  # two equal views of one record in one row
    assert caution(started(PairedRecords(), loader=DataLoader(views, batch_size=20))) == ""


def test_fields_that_are_no_records_are_no_parts():
    x, y = rows(100)
    tokens = torch.randint(5, 90, (100, 12), generator=torch.Generator().manual_seed(0))
    mask, kinds = (torch.arange(12) < 7).long().expand(100, 12), (torch.arange(12) < 7).long().expand(100, 12)
    grey = torch.rand(100, 1, 4, 4, generator=torch.Generator().manual_seed(0)).expand(100, 3, 4, 4)
    for tensors in ((x, y), (tokens, mask, kinds, y), (tokens, tokens, mask), (grey, y), (x, torch.zeros(100, 6))):
        rule = started(PairedRecords(), loader=DataLoader(TensorDataset(*tensors), batch_size=20))
        assert caution(rule) == ""
    assert caution(started(PairedRecords(), loader=DataLoader(_Repeated(), batch_size=20))) == ""
    assert caution(started(PairedRecords(), loader=None)) == ""


@pytest.mark.parametrize(("step", "in_rows"), [(1, 20), (5, 4), (10, 2), (20, 0)])
@pytest.mark.parametrize("form", ["series", "channels", "steps", "tokens"])
def test_overlapping_windows_are_counted(step, in_rows, form):
    """Windows of 20 values in random order, as rows, as channels (n, 3, 20), as steps (n, 20, 3), or as tokens."""
    generator = torch.Generator().manual_seed(0)
    if form == "tokens":
        series = torch.randint(0, 500, (1, 1000), generator=generator)
    else:
        series = torch.randn(1 if form == "series" else 3, 1000, generator=generator).cumsum(1)
    windows = series.unfold(1, 20, step).transpose(0, 1)
    windows = windows[torch.randperm(len(windows), generator=generator)]
    rows = windows.transpose(1, 2) if form == "steps" else windows
    rows = rows.contiguous() if form in ("channels", "steps") else windows[:, 0].contiguous()
    assert windows_of_a_value(rows) == in_rows
    rule = started(PairedRecords(), loader=DataLoader(TensorDataset(rows, torch.zeros(len(rows))), batch_size=5))
    assert (f"a value is in up to {in_rows} rows" in caution(rule)) is (in_rows > 0)


def test_padded_texts_and_periodic_rows_are_no_windows():
    generator = torch.Generator().manual_seed(0)
    padded = torch.randint(1, 500, (200, 30), generator=generator)
    padded[:, 12:] = 0
    assert windows_of_a_value(padded) == 0
    phases = torch.randint(1, 500, (200, 5), generator=generator)
    assert windows_of_a_value(phases.repeat(1, 6)) == 0  # each row repeats its own values


def test_copies_in_joined_datasets_are_counted():
    data = torch.utils.data.ConcatDataset([TensorDataset(*rows(50)), TensorDataset(*rows(50))])
    rule = started(DuplicateRecords(), loader=DataLoader(data, batch_size=20))
    assert "Of 100 rows, each of 50 records occurs up to 2 times" in caution(rule)


@pytest.mark.parametrize("constants", SCALED)
def test_features_and_targets_that_are_scaled_by_their_own_constants(constants):
    x, y = rows()
    text = caution(started(StandardizedFeatures(), loader=loader(SCALED[constants](x), y)))
    assert text.startswith("6 of 6 columns have")
    assert constants in text
    text = caution(started(StandardizedFeatures(), loader=loader(x, SCALED[constants](x[:, :1]))))
    assert text.startswith("Targets have")
    assert constants in text


def test_public_scales_flags_and_pixels_are_not_constants_of_the_records():
    x, y = rows()
    pixels = torch.randint(256, (len(x), 1, 2, 3)).float()
    pixels[0], pixels[1] = 0.0, 255.0
    public = (x, (x - 0.1) / 1.2, (x > 0).float(), (x > 0).float() - (x < -1).float())
    for features in (*public, pixels / 255.0, pixels / 127.5 - 1.0, (pixels / 255.0 - 0.5) / 0.25):
        assert caution(started(StandardizedFeatures(), loader=loader(features, y))) == ""
    assert caution(started(StandardizedFeatures(), loader=loader(x, (x[:, :1] - 7.0) / 4.0))) == ""
    channels = (pixels - pixels.mean()) / pixels.std()
    assert "Channels of the images" in caution(started(StandardizedFeatures(), loader=loader(channels, y)))


def test_weights_and_a_bias_from_the_counts_of_labels():
    x, _ = rows()
    y = (torch.arange(len(x)) % 5 > 1).long()
    counts = torch.bincount(y).double()

    def observed(criterion, labels=y, bias=None):
        model = nn.Linear(6, 2)
        model.bias.data = torch.zeros(2) if bias is None else bias.float()
        rule = started(ClassWeightsFromLabels(), model=model, loader=loader(x, labels))
        outputs = model(x) if labels is y else model(x)[:, 0]
        criterion(outputs, labels)
        rule.stop()
        return caution(rule)

    weights = (1.0 / counts, counts.mean() / counts, counts**-0.5, 0.001 / (1.0 - 0.999**counts), 1.0 - counts / len(y))
    assert all("CrossEntropyLoss" in observed(nn.CrossEntropyLoss(weight=weight.float())) for weight in weights)
    assert "BCE" in observed(nn.BCEWithLogitsLoss(pos_weight=(counts[0] / counts[1]).float()), y.float())
    assert "bias" in observed(nn.CrossEntropyLoss(), bias=(counts / len(y)).log())
    assert observed(nn.CrossEntropyLoss(), bias=(counts / len(y)).log() + torch.tensor([0.0, 1e-4])) == ""
    assert observed(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))) == ""
    assert observed(nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), y.float()) == ""


def test_another_optimizer_is_seen_only_in_the_block():
    model, other = nn.Linear(6, 2), nn.Linear(6, 2)
    own, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(other.parameters())
    for p in (*model.parameters(), *other.parameters()):
        p.grad = torch.ones_like(p)
    second.step()
    rule = started(SecondOptimizer(), model=model, optimizer=own)
    own.step()
    assert caution(rule) == ""
    second.step()
    rule.stop()
    second.step()
    assert caution(rule) == "Another optimizer (Adam) stepped 1 time on 2 tensors outside the model."


@pytest.mark.parametrize(("number", "words"), [(3, "3"), (25, "At least 20")])
def test_equal_optimizers_are_counted(number, words):
    model, copies = nn.Linear(6, 2), [nn.Linear(6, 2) for _ in range(number)]
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = started(SecondOptimizer(), model=model, optimizer=own)
    for of_client in [torch.optim.SGD(of_copy.parameters(), lr=0.1) for of_copy in copies]:
        of_client.step()
        of_client.step()
    rule.stop()
    assert caution(rule) == f"{words} other optimizers (SGD) stepped 2 times each on 2 tensors outside the model."


def test_a_model_that_was_trained_before():
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert caution(started(TrainedBefore(), model=model, optimizer=optimizer)) == ""
    for _ in range(20):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert "at least 21 times" in caution(started(TrainedBefore(), model=model, optimizer=optimizer))
    assert caution(started(TrainedBefore(), model=model, optimizer=optimizer, resumes=True)) == ""


class OwnPlateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """A subclass of a script."""


@pytest.mark.family
@pytest.mark.parametrize("kind", [torch.optim.lr_scheduler.ReduceLROnPlateau, OwnPlateau])
@pytest.mark.parametrize("saved", [False, True], ids=["new", "saved"])
def test_a_scheduler_that_follows_a_metric_of_this_optimizer(kind, saved):
    """Also if the script has read the scheduler's dictionary of attributes, as for a checkpoint."""
    optimizers = [torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(3)]
    schedulers = [kind(optimizers[0]), torch.optim.lr_scheduler.StepLR(optimizers[2], 1)]
    if saved:
        assert "num_bad_epochs" in schedulers[0].state_dict()
        assert schedulers[1].state_dict()
    assert "follows a metric" in caution(started(MetricScheduler(), optimizer=optimizers[0]))
    assert caution(started(MetricScheduler(), optimizer=optimizers[1])) == ""
    assert caution(started(MetricScheduler(), private_optimizer=optimizers[2])) == ""


def test_a_scheduler_made_during_the_training_is_counted_once():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    rule = started(MetricScheduler(), optimizer=optimizer, private_optimizer=optimizer)
    assert caution(rule) == ""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    assert scheduler.state_dict()
    rule.stop()
    del scheduler
    rule.stop()
    assert rule.facts().schedulers == 1


def test_widths_of_inputs_that_vary_with_the_batch():
    def observed(shapes, drawn=20):
        rule, model = model_inputs.VaryingPadding(), nn.Flatten()
        rule.start(RuleSetup(model=model))
        for number, shape in enumerate(shapes, start=1):
            model(torch.zeros(shape, requires_grad=True))
            rule.after_step(step(number, drawn=np.arange(drawn if isinstance(drawn, int) else drawn[number - 1])))
        rule.stop()
        return caution(rule)

    assert "2 widths, 7 to 9" in observed([(20, 7), (20, 9)])
    assert observed([(20, 7), (18, 7)], [20, 18]) == ""
    assert observed([(7, 20), (7, 18)], [20, 18]) == ""  # the batch is the second dimension
    assert observed([(7, 7), (7, 18)], [7, 18]) == ""  # also if it is once as large as the first
    assert "2 widths, 7 to 9" in observed([(7, 7), (18, 9)], [7, 18])


class Trimming(nn.Module):
    """Cuts tokens (b, 12) to the longest record, before or after the embedding."""

    def __init__(self, *, trims):
        super().__init__()
        self.trims, self.table, self.out = trims, nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        tokens = tokens[:, : int((tokens > 0).sum(1).max())] if self.trims else tokens
        return self.out(self.table(tokens).mean(1))


@pytest.mark.parametrize("trims", [True, False])
def test_a_model_that_cuts_its_inputs_to_the_longest_record(trims):
    rule, model = model_inputs.VaryingPadding(), Trimming(trims=trims)
    rule.start(RuleSetup(model=model))
    for number, longest in enumerate((12, 9, 11, 12), start=1):
        model(torch.ones(20 + number, 12, dtype=torch.long) * (torch.arange(12) < longest))
        rule.after_step(step(number, drawn=np.arange(20 + number)))
    assert model.table._forward_pre_hooks
    rule.stop()
    assert not model.table._forward_pre_hooks
    assert caution(rule).startswith("In the first steps, the input of layer table has 3 widths, 9 to 12") == trims
    assert (caution(rule) == "") != trims


@pytest.mark.parametrize("is_padded_to_one_length", [False, True])
def test_records_that_the_loader_pads_to_their_own_length(is_padded_to_one_length):
    """All batches may have a longest record, so that their widths are equal."""
    records = [torch.ones(3 + number % 6, 2) for number in range(90)]

    def collate(batch):
        torch.randn(1), np.random.rand(), random.random()
        padded = nn.utils.rnn.pad_sequence([*batch, torch.ones(9, 2)] if is_padded_to_one_length else batch, True)
        return {"x": padded[: len(batch)], "y": torch.zeros(len(batch))}

    rule, model = model_inputs.VaryingPadding(), nn.Flatten()
    rule.start(RuleSetup(model=model, loader=DataLoader(records, batch_size=9, collate_fn=collate)))
    model(torch.zeros((9, 8, 2), requires_grad=True))
    rule.after_step(step(1, drawn=np.arange(9)))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    rule.stop()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert ("records have widths 3 to" in caution(rule)) != is_padded_to_one_length


def test_mixtures_of_two_records_are_not_augmentations_of_one():
    x, y = rows(width=16)
    drawn = np.arange(10, 40)
    batch = x[drawn.tolist()]

    def observed(inputs):
        model = nn.Linear(16, 2)
        rule = started(model_inputs.ChangedInputs(), model=model, loader=loader(x, y))
        model(inputs)
        rule.after_step(step(drawn=drawn))
        rule.stop()
        return caution(rule)

    assert observed(batch) == ""
    assert observed(batch.flip(1)) == ""
    assert observed(batch + 0.1 * torch.randn(batch.shape, generator=torch.Generator().manual_seed(1))) == ""
    assert observed(0.5 * batch) == ""
    assert observed(batch.flip(0)) == ""  # sorted, for example by length
    assert observed(torch.cat([batch[:, :8], torch.zeros(30, 8)], 1)) == ""
    assert "8 of 8 inspected rows" in observed(0.7 * batch + 0.3 * batch.roll(1, 0))
    assert "8 of 8 inspected rows" in observed(torch.cat([batch[:, :8], batch.roll(1, 0)[:, 8:]], 1))


def test_inputs_with_mean_0_over_each_batch_are_not_scaled_records():
    def observed(scale):
        model, x = nn.Linear(6, 2), rows()[0]
        rule = started(model_inputs.ChangedInputs(), model=model)
        for number in range(1, 8):
            model(scale(x[number : number + 30]))
            rule.after_step(step(number, drawn=np.arange(number, number + 30)))
        rule.stop()
        return caution(rule)

    assert "In 7 of 7 inspected batches" in observed(lambda batch: batch - batch.mean(0))
    assert observed(lambda batch: batch - batch.mean(1, keepdim=True)) == ""
    assert observed(lambda batch: batch) == ""


def test_rules_over_the_counts_of_a_run():
    counts = {"own_loop": False, "steps": 86, "delta": 1e-5, "records": 200, "rate": 0.01, "drawn_batches": 100}
    assert "14 of 100 drawn batches" in EmptyBatchSkipped.caution({}, RuleRun(**counts, empty_steps=0))
    assert EmptyBatchSkipped.caution({}, RuleRun(**counts, empty_steps=10)) == ""
    assert EmptyBatchSkipped.caution({}, RuleRun(**{**counts, "records": 2000}, empty_steps=0)) == ""
    own = {**counts, "own_loop": True, "drawn_batches": None, "records": 40, "rate": 0.05}  # P(no empty) = 0.87^steps
    text = EmptyBatchSkipped.caution({}, RuleRun(**{**own, "steps": 101}, empty_steps=0))
    assert "None of 101 steps has an empty batch, where about 13 are expected" in text
    assert EmptyBatchSkipped.caution({}, RuleRun(**{**own, "steps": 100}, empty_steps=0)) == ""
    assert EmptyBatchSkipped.caution({}, RuleRun(**{**own, "steps": 101}, empty_steps=1)) == ""
    assert EmptyBatchSkipped.caution({}, RuleRun(**{**own, "steps": 101}, empty_steps=None)) == ""
    assert LargeDelta.caution({}, RuleRun(own_loop=False, steps=1, delta=0.01, records=100))
    assert LargeDelta.caution({}, RuleRun(own_loop=False, steps=1, delta=0.009, records=100)) == ""
    rows_of = {"own_loop": False, "steps": 1, "delta": 1e-5, "drawn_records": 3000}
    assert "2 rows for each record" in MoreRows.caution({}, RuleRun(**rows_of, gradient_rows=6000))
    assert MoreRows.caution({}, RuleRun(**rows_of, gradient_rows=3000)) == ""
    steps = {"own_loop": False, "steps": 60, "delta": 1e-5, "norm_steps": 60}
    assert ZeroGradientRows.caution({}, RuleRun(**steps, zero_quarter_steps=58))
    assert ZeroGradientRows.caution({}, RuleRun(**steps, zero_quarter_steps=10)) == ""


def rules_of(*rules):
    """The probe of these rules, which observes a training of nothing."""
    observed = Rules(rules)
    parts = SimpleNamespace(model=nn.Linear(2, 2), loader=None, compiled=None, earlier=[])
    observed.start(
        SimpleNamespace(
            replayer=None,
            script_parts=parts,
            optimizer=None,
            private_optimizer=None,
            part=1,
            undo=contextlib.ExitStack(),
            header=Header(),
        )
    )
    return observed


class Broken(TrainingRule):
    stopped = False

    def after_step(self, step):
        raise RuntimeError("no")

    def stop(self):
        Broken.stopped = True


def test_a_rule_that_fails_ends_alone():
    broken = Rule(name="broken", summary="", why="", fix="", code=f"{__name__}:Broken")
    observed = rules_of(broken, RULES[0])
    observed.after_step(PendingStep(number=1))
    (facts,) = observed.facts().by_rule
    assert Broken.stopped
    assert facts["broken"] == RuleFact(error="RuntimeError: no")
    assert observed.facts().failed == ("broken",)
    assert observed.facts().of(RULES[0], guessable_seed.GuessableSeeds)[0].noise == ()


class Early(TrainingRule):
    early = True

    @staticmethod
    def caution(facts, run):
        return "The seed is 3."


@pytest.mark.filterwarnings("error")
def test_a_caution_stays_where_warnings_are_errors(capsys):
    """As under ``python -W error``: the warning ended the rule, and no caution was left."""
    early = Rule(name="early", summary="", why="", fix="Draw it.", code=f"{__name__}:Early")
    observed = rules_of(early)
    observed.after_step(PendingStep(number=1))
    assert observed.facts().failed == ()
    assert observed.cautions(100, 1e-5) == ("early",)
    assert "rule early: The seed is 3. Draw it." in capsys.readouterr().err


class Counted(TrainingRule):
    """A rule of a plugin that names no kind: its facts are a mapping, as in the versions before 0.3."""

    def facts(self):
        return {"steps": 3, "names": ["a"]}

    @staticmethod
    def caution(facts, run):
        return f"{facts['steps']} steps of {', '.join(facts['names'])}."


@dataclass(frozen=True, kw_only=True)
class NamedFacts:
    steps: int


class Named(Counted):
    """A rule whose facts are not of the kind that it names."""

    kind = NamedFacts


def test_a_rule_of_a_plugin_may_state_a_mapping():
    rule = Rule(name="counted", summary="", why="", fix="", code=f"{__name__}:Counted")
    stated = json.loads(json.dumps(asdict(rules_of(rule).facts())))
    facts = json_records.read(RuleFacts, stated, "here")
    assert Counted.caution(facts.of(rule, Counted.kind)[0], RUN) == "3 steps of a."
    assert rules_of(rule).cautions(100, 1e-5) == ("counted",)


def test_a_rule_whose_facts_are_of_another_kind_fails_in_the_training():
    rule = Rule(name="named", summary="", why="", fix="", code=f"{__name__}:Named")
    facts = rules_of(rule).facts()
    assert facts.failed == ("named",)
    assert facts.of(rule, NamedFacts) == (None,)


def test_facts_of_another_form_in_a_folder_are_refused():
    facts = RuleFacts(by_rule=({"guessable-seed": RuleFact(facts={"torch": [1]})},))
    with pytest.raises(RecordingError, match="rule guessable-seed"):
        facts.of(RULES[0], guessable_seed.GuessableSeeds)


def test_every_rule_has_code_and_texts():
    assert len({rule.name for rule in RULES}) == len(RULES) >= 15
    for rule in RULES:
        assert issubclass(code_of(rule), TrainingRule)
        assert rule.summary
        assert rule.why.endswith(".")
        assert rule.fix.endswith(".")
        code_of(rule).caution(code_of(rule)().facts(), RUN)


def own_loop(folder, *, seed, noise=1.0, steps=60, is_asked=False, **options):
    torch.manual_seed(seed)
    model = nn.Linear(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epsilons = []
    given = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rate": 0.05, "records": 400}
    with dpspec.record(folder, model=model, optimizer=optimizer, **given, **options) as run:
        for _ in range(steps):
            drawn = (torch.rand(400) < 0.05).nonzero().squeeze(1)
            total = [torch.zeros_like(p) for p in model.parameters()]
            std = noise * torch.ones(())
            drawn_noise = [std * torch.randn(p.shape) for p in model.parameters()]
            for p, t, z in zip(model.parameters(), total, drawn_noise, strict=True):
                p.grad = (t + z) / 20
            optimizer.step()
            run.sampled(drawn)
            run.clipped(torch.full((len(drawn),), 1e-6))
            run.summed(total)
            run.noised(drawn_noise)
            run.stepped()
            if is_asked:
                epsilons.append(run.epsilon(1e-5))
    return epsilons, run


@pytest.mark.ci
def test_a_caution_fails_the_check_until_it_is_accepted(tmp_path):
    with torch.random.fork_rng(), pytest.warns(UserWarning, match="rule guessable-seed") as caught:
        epsilons, run = own_loop(tmp_path / "run", seed=0, is_asked=True)
    assert len([one for one in caught if "guessable-seed" in str(one.message)]) == 1
    unreplayed = {"epsilon": 8, "accept": ["not-replayed"]}  # no record moves the sum of this loop
    found = dpspec.check(tmp_path / "run", **unreplayed)
    assert (found.proved, found.passed, found.cautions) == (True, False, ("guessable-seed",))
    assert (
        repr(found) == f"CheckedRun(proved=True, epsilon={decimals.upper(found.epsilon)}, cautions=['guessable-seed'])"
    )
    accepted = dpspec.check(tmp_path / "run", epsilon=8, accept=["not-replayed", "guessable-seed"])
    assert accepted.passed
    assert dpspec.check(tmp_path / "run", **unreplayed, ignore=["guessable-seed"]).passed
    assert dpspec.check(tmp_path / "run", **unreplayed, select=["large-delta"]).passed
    with pytest.raises(dpspec.errors.UsageError, match="is no rule"):
        dpspec.check(tmp_path / "run", epsilon=8, accept=["guessable-sed"])
    assert epsilons[-1] == found.epsilon == run.summary()["epsilon"]
    assert 0.0 < epsilons[0] < epsilons[-1]


@pytest.mark.ci
def test_an_own_loop_costs_what_its_measured_noise_supports(tmp_path):
    with torch.random.fork_rng():
        own_loop(tmp_path / "sound", seed=SECRET)
        own_loop(tmp_path / "less", seed=SECRET, noise=0.95)
    sound, less = (dpspec.check(tmp_path / name, epsilon=8).epsilon for name in ("sound", "less"))
    from dpspec.accounting import Mixture, PrivacyLoss

    executed = PrivacyLoss(((Mixture.poisson(1, 0.05, 0.95), 60),)).epsilon(1e-5).lower
    assert sound < executed < less
    assert not dpspec.check(tmp_path / "less", epsilon=executed).proved


@pytest.mark.ci
def test_a_recording_is_overwritten_or_numbered(tmp_path):
    with torch.random.fork_rng():
        own_loop(tmp_path / "run", seed=SECRET, steps=3)
        with pytest.raises(dpspec.errors.UsageError, match=r"runs/\{n\}.*overwrite=True.*resume=True"):
            own_loop(tmp_path / "run", seed=SECRET, steps=3)
        own_loop(tmp_path / "run", seed=SECRET, steps=4, overwrite=True)
        assert dpspec.check(tmp_path / "run").result.audits[0].recording.facts["steps"] == 4
        for number in (1, 2):
            _, run = own_loop(tmp_path / "run-{n}", seed=SECRET, steps=1)
            assert run.folder == tmp_path / f"run-{number}"
        (tmp_path / "run" / "notes.txt").write_text("mine")
        with pytest.raises(dpspec.errors.UsageError, match=r"notes.txt is none"):
            own_loop(tmp_path / "run", seed=SECRET, steps=3, overwrite=True)
        assert (tmp_path / "run" / "public.log").exists()
