"""Which columns count as scaled by the records, and in which kinds of datasets."""

import numpy as np
import pytest
import torch
from scipy.stats import cramervonmises
from sklearn.preprocessing import QuantileTransformer
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from dpspec.contract.rules import RuleRun, RuleSetup, RuleStep
from dpspec_recording.rules.class_weights_from_labels import ClassWeightsFromLabels
from dpspec_recording.rules.standardized_features import (
    StandardizedFeatures,
    cut_columns,
    filled_columns,
    ranked_columns,
)

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


def ranks(x):
    return x.argsort(0).argsort(0).double()


RANKED = {
    "uniform": lambda x: (ranks(x) + 0.5) / len(x),
    "uniform in float32": lambda x: ((ranks(x) + 0.5) / len(x)).float(),
    "from 0 to 1": lambda x: ranks(x) / (len(x) - 1),
    "from -1 to 1": lambda x: 2.0 * (ranks(x) + 0.5) / len(x) - 1.0,
    "integers": lambda x: ranks(x) + 1.0,
    "normal": lambda x: torch.special.ndtri((ranks(x) + 0.5) / len(x)),
    "erfinv": lambda x: torch.erfinv(2.0 * (ranks(x) + 0.5) / len(x) - 1.0),
    "QuantileTransformer": lambda x: torch.from_numpy(
        QuantileTransformer(n_quantiles=min(len(x), 1000)).fit_transform(x.double().exp().numpy())
    ),
    "QuantileTransformer of few quantiles": lambda x: torch.from_numpy(
        QuantileTransformer(n_quantiles=min(len(x), 100)).fit_transform(x.double().exp().numpy())
    ),
    "normal QuantileTransformer": lambda x: torch.from_numpy(
        QuantileTransformer(n_quantiles=min(len(x), 1000), output_distribution="normal").fit_transform(x.exp().numpy())
    ),
}


@pytest.mark.parametrize("count", [70, 200, 5000])
@pytest.mark.parametrize("kind", RANKED)
def test_ranks_of_the_records_are_noticed(kind, count):
    x, _ = rows(count)
    assert ranked_columns(RANKED[kind](x).double()) == 6


def test_the_caution_names_ranked_columns():
    x, y = rows()
    data = TensorDataset(torch.cat([RANKED["normal"](x[:, :2]).float(), x[:, 2:]], dim=1), y)
    assert "2 of 6 columns have values of uniform or normal quantiles, like ranks" in caution(data)


@pytest.mark.parametrize("count", [200, 1000, 5000])
def test_random_numbers_bins_and_public_orders_are_no_ranks(count):
    generator = torch.Generator().manual_seed(count)
    uniform = torch.rand(count, 40, generator=generator, dtype=torch.float64)
    order = torch.arange(count, dtype=torch.float64)[:, None]
    cases = {
        "uniform": uniform,
        "signed": 2.0 * uniform - 1.0,
        "normal": torch.randn(count, 40, generator=generator, dtype=torch.float64),
        "bins": torch.bucketize(uniform, torch.linspace(0.0, 1.0, 11, dtype=torch.float64)).double() / 10.0,
        "one-hot": torch.eye(10, dtype=torch.float64)[torch.arange(count) % 10],
        "constant": torch.ones(count, 3, dtype=torch.float64),
        "public order": torch.cat([order / count, -order, order.flip(0)], dim=1),
        "equal classes": (order % 10.0) / 9.0,
    }
    assert {name: ranked_columns(columns) for name, columns in cases.items()} == dict.fromkeys(cases, 0)


@pytest.mark.parametrize("count", [20, 25, 40, 100, 1000, 5000, 100_000])
def test_independent_records_have_quantiles_like_ranks_with_a_negligible_probability(count):
    shift = ((0.005 - 1.0 / (12.0 * count)) / count) ** 0.5
    levels = (np.arange(count) + 0.5) / count + shift
    test = cramervonmises(levels, lambda x: x)
    assert test.statistic == pytest.approx(0.005)
    assert 1.0 - test.pvalue < 1e-10


def cut(x, *, bounds):
    """Values beyond ``bounds`` are moved to them."""
    return x.clamp(*(torch.as_tensor(bound, dtype=x.dtype) for bound in bounds))


def filled(x, fill):
    """A tenth of the values are missing, and filled by a function of the known ones of their column."""
    gaps = torch.rand(x.shape, generator=torch.Generator().manual_seed(5)) < 0.1
    constants = torch.stack([fill(column[~missing]) for column, missing in zip(x.T, gaps.T, strict=True)])
    return torch.where(gaps, constants, x)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_columns_that_are_cut_at_their_quantiles_are_noticed(share):
    x, y = rows(count=500, width=12)
    at_quantiles = cut(x, bounds=[x.quantile(share, 0), x.quantile(1.0 - share, 0)])
    assert "12 of 12 columns have equally many values at the ends" in caution(TensorDataset(at_quantiles, y))
    limit = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1.0 - share))
    assert caution(TensorDataset(cut(x, bounds=[-limit, limit]), y)) == ""


def test_flags_counts_and_rounded_values_are_not_cut():
    x, _ = rows(count=400, width=12)
    assert cut_columns((x > 0).double()) == 0
    assert cut_columns(x.mul(3.0).round().double()) == 0
    assert cut_columns((x * 100.0).round().double() / 100.0) == 0
    assert cut_columns(x[:, :1].expand(-1, 3).clamp(-1.0, 1.0).double()) == 0
    assert cut_columns(x[:, :0].double()) == 0


@pytest.mark.parametrize("times", [2, 5])
def test_records_that_occur_several_times_are_not_cut(times):
    x, _ = rows(count=200, width=12)
    assert cut_columns(x.repeat_interleave(times, dim=0).double()) == 0


@pytest.mark.parametrize("fill", [torch.mean, torch.median, lambda known: known.quantile(0.5)])
def test_gaps_that_are_filled_with_means_or_medians_are_noticed(fill):
    x, y = rows(count=301)
    assert "6 of 6 columns have one frequent value" in caution(TensorDataset(filled(x, fill) * 2.0 - 0.3, y))


@pytest.mark.parametrize("constant", [0.0, 0.1234567])
def test_gaps_that_are_filled_with_constants_are_not(constant):
    x, y = rows(count=301)
    assert caution(TensorDataset(filled(x, lambda known: torch.tensor(constant)), y)) == ""
    few = torch.randint(0, 5, (301, 6), generator=torch.Generator().manual_seed(1)) * 0.12345
    assert filled_columns(few.double()) == 0
