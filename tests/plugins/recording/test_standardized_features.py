"""Which columns count as scaled by the records, and in which kinds of datasets."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.observers.sensitivity.class_weights_from_labels import ClassWeightsFromLabels
from dpspec_recording.observers.sensitivity.standardized_features import StandardizedFeatures, filled_columns

RUN = RuleRun(own_loop=False, steps=100, delta=1e-5)


def rows(count=200, width=6):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(3))
    return x, (x[:, 0] > 0).long()


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


class Arrays(Dataset):
    """Arrays of NumPy in attributes."""

    def __init__(self, x, factor=1.0):
        self.labels, self.features, self.factor = np.zeros(len(x), dtype=np.int64), x.numpy(), factor

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return torch.from_numpy(self.features[index]) * self.factor, self.labels[index]


def caution(data, drawn=None):
    """The caution after one step on the records ``drawn``."""
    rule, model = StandardizedFeatures(), nn.Linear(6, 2)
    rule.start(RuleSetup(model=model, loader=DataLoader(data, batch_size=20)))
    if drawn is not None:
        model(torch.stack([data[index][0] for index in drawn]))
        rule.after_step(RuleStep(number=1, drawn=np.array(drawn), norms=None, clip_norm=1.0, noise=None))
    rule.stop()
    return rule.caution(rule.facts(), RUN)


def test_columns_scaled_in_the_attributes_of_a_dataset_are_noticed():
    drawn = [3, 17, 4, 90]
    assert "6 of 6 columns have mean 0 and deviation 1" in caution(Arrays(standardized(rows()[0])), drawn)
    assert caution(Arrays(rows()[0]), drawn) == ""


def test_attributes_that_the_model_does_not_get_are_not_inspected():
    scaled = standardized(rows()[0])
    assert caution(Arrays(scaled, factor=2.0), [3, 17, 4, 90]) == ""


def test_the_rows_of_a_subset_are_those_of_its_records():
    x = rows()[0]
    train = list(range(50, 150))
    x[train] = standardized(x[train])
    assert "over exactly these records" in caution(Subset(Arrays(x), train), [3, 17, 4, 90])


def test_scaled_columns_of_a_list_of_dictionaries_are_noticed():
    x, y = rows()
    for features, expected in ((x, ""), (standardized(x), "6 of 6 columns have mean 0 and deviation 1")):
        data = [{"features": row, "label": label} for row, label in zip(features, y, strict=True)]
        assert expected in caution(data)
        assert bool(caution(data)) == bool(expected)


def test_features_minus_their_mean_are_noticed_unless_few_columns_are():
    x, y = rows()
    centered = x - x.mean(0)
    assert "6 of 6 columns have mean 0 over exactly" in caution(TensorDataset(centered, y))
    principal = x.sub(x.mean(0)) @ torch.linalg.svd(x - x.mean(0))[2].T[:, :4]
    assert "4 of 4 columns have mean 0 over exactly" in caution(TensorDataset(principal, y))
    assert caution(TensorDataset(torch.cat([centered[:, :2], x[:, 2:]], dim=1), y)) == ""


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0)])
def test_columns_cut_at_public_bounds_are_not_scaled_by_the_records(low, high):
    x, y = rows()
    public = (x / 2.0).clamp(-1.0, 1.0)
    assert caution(TensorDataset(low + (high - low) * (public + 1.0) / 2.0, y)) == ""


def test_scaled_columns_with_few_values_are_noticed():
    _, y = rows()
    ages = torch.randint(17, 91, (200, 6), generator=torch.Generator().manual_seed(0)).float()
    ranged = (ages - ages.amin(0)) / (ages.amax(0) - ages.amin(0))
    assert "6 of 6 columns have minimum 0 and maximum 1" in caution(TensorDataset(ranged, y))


def test_equal_class_weights_do_not_follow_from_the_labels():
    x, y = rows()
    for weight, fires in ((torch.ones(2), False), (1.0 / torch.bincount(y).float(), True)):
        rule, loss = ClassWeightsFromLabels(), nn.CrossEntropyLoss(weight=weight)
        rule.start(RuleSetup(model=nn.Linear(6, 2), loader=DataLoader(TensorDataset(x, y), batch_size=20)))
        loss(torch.zeros(4, 2), y[:4])
        rule.stop()
        assert bool(rule.caution(rule.facts(), RUN)) is fires


def pixels(columns=16, top=16):
    """Integers from 0 to ``top``, or to less in some columns, as the corners of handwritten digits have them."""
    generator = torch.Generator().manual_seed(5)
    most = torch.tensor([top if column % 3 else top - 1 - column % 5 for column in range(columns)])
    drawn = (torch.rand(400, columns, generator=generator) * (most + 1)).floor()
    drawn[0], drawn[1] = 0.0, most.float()
    return drawn


@pytest.mark.parametrize(("top", "divisor"), [(16, 16.0), (15, 15.0), (255, 255.0), (255, 256.0), (100, 100.0)])
def test_one_public_constant_for_all_columns_fires_nothing(top, divisor):
    x = pixels(top=top)
    labels = torch.zeros(len(x), dtype=torch.long)
    assert caution(TensorDataset(x / divisor, labels)) == ""
    assert caution(TensorDataset(x / divisor * 2.0 - 1.0, labels)) == ""


def test_constants_of_the_columns_of_pixels_are_noticed():
    """The twin of the public constant: each column is divided by its own maximum, which a record changes."""
    x = pixels()
    labels = torch.zeros(len(x), dtype=torch.long)
    assert "14 of 16 columns have minimum 0 and maximum 1" in caution(TensorDataset(x / x.amax(0), labels))
    signed = caution(TensorDataset(2.0 * x / x.amax(0) - 1.0, labels))  # a column of maximum 15 has levels of 4 bits
    assert "columns have minimum -1 and maximum 1" in signed


def test_a_maximum_of_all_pixels_that_is_no_public_number_is_noticed():
    x = pixels(top=173)
    labels = torch.zeros(len(x), dtype=torch.long)
    assert "columns have minimum 0 and maximum 1" in caution(TensorDataset(x / 173.0, labels))


@pytest.mark.parametrize("whitened", [False, True])
def test_principal_components_of_the_records_are_noticed(whitened):
    x, y = rows(300, 8)
    x = x @ torch.randn(8, 8, generator=torch.Generator().manual_seed(4)) + 0.3
    _, values, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    components = x @ axes[:5].T / (values[:5] if whitened else 1.0)
    assert "5 of 5 columns have correlation 0 with each other" in caution(TensorDataset(components, y))
    public = rows(301, 8)[0]
    _, _, axes = torch.linalg.svd(public - public.mean(0), full_matrices=False)
    assert caution(TensorDataset(x @ axes[:5].T, y)) == ""


def test_columns_that_are_few_or_integers_may_have_no_correlation():
    levels = torch.tensor([0.0, 3.0])
    design = torch.cartesian_prod(*[levels] * 5).repeat(4, 1)
    assert caution(TensorDataset(design, torch.zeros(128))) == ""
    angles = torch.arange(100) * (2.0 * torch.pi / 100)
    assert caution(TensorDataset(torch.stack([angles.sin() + 0.1, angles.cos() + 0.1], 1), torch.zeros(100))) == ""


def filled(x, fill):
    """A tenth of the values are missing, and filled by a function of the known ones of their column."""
    gaps = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.1
    constants = torch.stack([fill(column[~missing]) for column, missing in zip(x.T, gaps.T, strict=True)])
    return torch.where(gaps, constants, x)


def test_gaps_that_are_filled_with_means_are_noticed():
    x, y = rows(count=301)
    assert "6 of 6 columns have one frequent value" in caution(TensorDataset(filled(x, torch.mean) * 2.0 - 0.3, y))


@pytest.mark.parametrize("constant", [0.0, 0.1234567])
def test_gaps_that_are_filled_with_constants_are_not(constant):
    x, y = rows(count=301)
    assert caution(TensorDataset(filled(x, lambda known: torch.tensor(constant)), y)) == ""
    few = torch.randint(0, 5, (301, 6), generator=torch.Generator().manual_seed(1)) * 0.12345
    assert filled_columns(few.double()) == 0
