"""Which columns count as scaled by the records, and in which kinds of datasets."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec.recording.rules.class_weights_from_labels import ClassWeightsFromLabels
from dpspec.recording.rules.standardized_features import StandardizedFeatures

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


def test_columns_cut_at_their_quantiles_or_with_few_values_are_noticed():
    x, y = rows()
    bounds = torch.quantile(x, torch.tensor([0.05, 0.95]), dim=0)
    cut = x.maximum(bounds[0]).minimum(bounds[1])
    ages = torch.randint(17, 91, (200, 6), generator=torch.Generator().manual_seed(0)).float()
    for values in (cut, ages):
        ranged = (values - values.amin(0)) / (values.amax(0) - values.amin(0))
        assert "6 of 6 columns have minimum 0 and maximum 1" in caution(TensorDataset(ranged, y))


def test_equal_class_weights_do_not_follow_from_the_labels():
    x, y = rows()
    for weight, fires in ((torch.ones(2), False), (1.0 / torch.bincount(y).float(), True)):
        rule, loss = ClassWeightsFromLabels(), nn.CrossEntropyLoss(weight=weight)
        rule.start(RuleSetup(model=nn.Linear(6, 2), loader=DataLoader(TensorDataset(x, y), batch_size=20)))
        loss(torch.zeros(4, 2), y[:4])
        rule.stop()
        assert bool(rule.caution(rule.facts(), RUN)) is fires
