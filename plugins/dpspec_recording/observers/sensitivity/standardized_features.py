"""Whether features were scaled or filled by constants of exactly these records.

The mistakes: one record changes the mean, and with it the features of others::

    x = (x - x.mean(0)) / x.std(0)
    x = torch.where(x.isnan(), x.nanmean(0), x)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dpspec.contract.rules import Rule, RuleRun, RuleSetup, RuleStep
from dpspec.json_records import Count
from dpspec_recording.observers.sensitivity.model_inputs import InputRule
from dpspec_recording.watching.memory_rows import attributes_with_rows, tensors_of

RULE = Rule(
    name="standardized-features",
    summary="columns, channels or targets have mean 0 and deviation 1, another such range, or gaps filled with their "
    "means; or a step reads such a statistic",
    why="Statistics of the records scale or fill each record: a record changes the features of all.",
    fix="Scale and fill by public constants. dpspec.replay tests whether constants depend on a record.",
    source="https://github.com/NVIDIA/NVFlare/tree/main/examples/hello-world/hello-dp",
    code="dpspec_recording.observers.sensitivity.standardized_features:StandardizedFeatures",
)

#: The minimum number of records, and the maximum numbers of values whose quartiles and other statistics are computed.
_FEWEST, _MOST_QUARTILES, _MOST_COMPARED_VALUES = 20, 2**20, 2**22

#: The largest share of equal values between the ends of a column that is cut at public bounds.
_EQUAL = 0.1

#: The number of columns whose correlations are computed, the fewest, and a correlation that rounding leaves.
_MOST_COMPARED, _FEWEST_COMPARED, _ROUNDING = 64, 3, 1e-5

#: By name, the constants that a scaling gives each column of the records from which it computes them.
_SCALINGS = {
    "standardized": "mean 0 and deviation 1",
    "centered": "mean 0",
    "ranged": "minimum 0 and maximum 1",
    "signed": "minimum -1 and maximum 1, or largest absolute value 1",
    "robust": "median 0 and quartile distance 1",
    "uncorrelated": "correlation 0 with each other",
    "filled": "one frequent value, the mean of the others, like filled gaps",
}


@dataclass(frozen=True, kw_only=True)
class ScalingFacts:
    """Constants of exactly these records.

    Attributes:
        columns: The number of columns of the features.
        scaled: By the name of a scaling, the number of columns that have its constants.
        channels: The number of standardized channels of images.
        targets: The scaling of the targets; "" without.
        read: The number of constants that replayed steps read, and that are statistics of these records.
    """

    columns: Count = 0
    scaled: Mapping[str, Count] = field(default_factory=dict)
    channels: Count = 0
    targets: str = ""
    read: Count = 0


class StandardizedFeatures(InputRule[ScalingFacts]):
    kind, early = ScalingFacts, True

    def __init__(self) -> None:
        super().__init__()
        self._facts = ScalingFacts()
        self._attributes: list[Any] = []
        self._input: Any = None
        self._setup: RuleSetup | None = None

    def start(self, setup: RuleSetup) -> None:
        self._setup = setup
        if (tensors := tensors_of(setup.loader)) is not None:
            self._inspect(tensors)
        elif attributes := attributes_with_rows(setup.loader):
            self._attributes = attributes
            super().start(setup)

    def observe(self, inputs: Mapping[str, Any]) -> None:
        self._input = next(iter(inputs.values()), None)

    def after_step(self, step: RuleStep) -> None:
        """Inspect the attribute of a dataset whose drawn rows are the model's first inputs."""
        rows, self._input = self._input, None
        if rows is None or step.drawn is None or not len(step.drawn):
            return
        for attribute in self._attributes:
            drawn = attribute[step.drawn.tolist()].to(rows)
            if drawn.numel() == rows.numel() and bool((drawn.reshape(rows.shape) == rows).all()):
                self._inspect((attribute,))
        self._attributes = []
        super().stop()

    def stop(self) -> None:
        """Compare the constants that replayed steps read with statistics of the records."""
        import torch

        super().stop()
        setup, self._setup = self._setup, None
        if setup is None or setup.replayer is None:
            return
        read = setup.replayer.origins.constants
        if not (read.vectors or read.numbers):
            return
        tables = tensors_of(setup.loader) or attributes_with_rows(setup.loader) or list(read.tables.values())
        statistics = [statistic for table in tables for statistic in statistics_of(table)]
        values = [*read.vectors.values(), *(torch.tensor([number], dtype=torch.float64) for number in read.numbers)]
        self._facts = replace(self._facts, read=sum(any(map(partial(_is, value), statistics)) for value in values))

    def _inspect(self, tensors: tuple[Any, ...]) -> None:
        if len(tensors[0]) < _FEWEST:
            return
        features, last = tensors[0], tensors[-1]
        if features.is_floating_point() and features.dim() >= 2:
            rows = features.reshape(len(features), -1).double()
            counts = {name: int(scaled.sum()) for name, scaled in _scaled(rows).items()}
            counts["centered"] *= 2 * counts["centered"] >= rows.shape[1]  # the mean of one column may be 0
            counts["uncorrelated"] = _uncorrelated_columns(rows)
            counts["filled"] = filled_columns(rows)
            channels = 0
            if features.dim() == 4:
                of_channels = features.double().transpose(0, 1).flatten(1).T
                channels = int(_is_standardized(of_channels).sum())
            self._facts = replace(self._facts, columns=rows.shape[1], scaled=counts, channels=channels)
        if len(tensors) > 1 and last.is_floating_point() and last.numel() == len(last):
            targets = _scaled(last.reshape(-1, 1).double())
            scaling = next((name for name, scaled in targets.items() if bool(scaled)), "")
            self._facts = replace(self._facts, targets=scaling)

    def facts(self) -> ScalingFacts:
        return self._facts

    @staticmethod
    def caution(facts: ScalingFacts, run: RuleRun) -> str:
        phrases = [
            f"{facts.scaled[name]} of {facts.columns} columns have {constants} over exactly these records"
            for name, constants in _SCALINGS.items()
            if facts.scaled.get(name)
        ]
        if facts.channels and not phrases:
            phrases.append("channels of the images have mean 0 and deviation 1 over exactly these records")
        if facts.targets in _SCALINGS:
            phrases.append(f"targets have {_SCALINGS[facts.targets]} over exactly these records")
        if facts.read:
            number = "one constant" if facts.read == 1 else f"{facts.read} constants"
            phrases.append(f"steps read {number} with the value of a mean, deviation, median or end of records")
        text = "; ".join(phrases)
        return f"{text[:1].upper()}{text[1:]}: were the constants of the scaling computed from them?" if text else ""


def _scaled(rows: Any) -> dict[str, Any]:
    """By scaling, for each column of ``rows`` (n, d) whether it has its constants."""
    import torch

    low, high = rows.amin(0), rows.amax(0)
    largest = rows.abs().amax(0)
    unit = (high - 1.0).abs() < 1e-6
    signed = ((largest - 1.0).abs() < 1e-6) & (low < 0.0)
    robust = torch.zeros_like(unit)
    if rows.numel() <= _MOST_QUARTILES:
        first, median, third = torch.quantile(rows, torch.tensor([0.25, 0.5, 0.75], dtype=rows.dtype), dim=0)
        robust = (median.abs() < 1e-6) & ((third - first - 1.0).abs() < 1e-4)
    public = _has_public_levels(rows)
    return {
        "standardized": (standardized := _is_standardized(rows)),
        "centered": (rows.mean(0).abs() < 1e-6 * rows.std(0)) & ~standardized & ~_on_grid(rows),
        "ranged": _unless_cut((low == 0.0) & unit & ~_on_grid(rows * 255.0) & (not public), rows),
        "signed": _unless_cut(signed & ~_on_grid(rows * 127.5 + 127.5) & ~_on_grid(rows) & (not public), rows),
        "robust": robust & ~_on_grid(rows) & (not public),
    }


#: Numbers of levels that make one constant for all columns public: pixels of up to 8 bits, and percent. 256 includes
#: all lower powers of two, 255 the 15 of 4 bits.
_LEVELS = (256.0, 255.0, 100.0, 127.0, 63.0, 31.0)

#: The number of rows that reject most of these numbers.
_GLANCE = 64


def _uncorrelated_columns(rows: Any) -> int:
    """The number of columns of ``rows`` (n, d) without correlation, like principal components of these rows; else 0.

    Independent columns have correlations of about 1 / sqrt(n). Designs of integers may have none.
    """
    first = rows[:, :_MOST_COMPARED]
    first = first[:, (first.std(0) > 0.0) & ~_on_grid(first)]
    count = first.shape[1]
    if count < _FEWEST_COMPARED or len(rows) <= count:
        return 0
    above = first.T.corrcoef().abs().triu(1)  # zeros on and below the diagonal
    return count if float(above.sum()) < _ROUNDING * count * (count - 1) / 2 else 0


#: The largest number of values of columns that are searched for filled gaps, and the fewest filled gaps of a column.
_MOST_SEARCHED, _FEWEST_FILLED = 2**20, 3

#: The part of a deviation, and the units in the last place of single precision, by which a statistic may differ.
_PART, _UNITS = 1e-6, 4.0

#: Public constants have at most three decimals.
_DECIMALS = 1000.0


def filled_columns(rows: Any) -> int:
    """The number of columns of ``rows`` (n, d) whose most frequent value is the mean of the others."""
    columns = rows[:, : _MOST_SEARCHED // len(rows)]
    value = columns.mode(0).values
    gaps = columns == value
    number = len(rows) - gaps.sum(0)  # of other values
    mean, deviation = (columns * ~gaps).sum(0) / number.clamp_min(1), columns.std(0)
    is_filled = (gaps.sum(0) >= _FEWEST_FILLED) & (number >= _FEWEST) & (deviation > 0.0)
    is_filled &= ~_on_grid(value[None] * _DECIMALS)
    return int((is_filled & ((value - mean).abs() <= _rounding(value, deviation))).sum())


def statistics_of(table: Any) -> list[tuple[Any, Any]]:
    """Means, deviations, medians and ends of a table (n, ...): of its columns, its channels, and all values.

    Each with the deviations, for its rounding. Columns that are cut at public bounds have several values at their ends.
    """
    if len(table) < _FEWEST or table.numel() > _MOST_COMPARED_VALUES or table.is_complex():
        return []
    rows = table.detach().double().cpu()
    views = [rows.reshape(len(rows), -1), rows.reshape(-1, 1)]
    views += [rows.transpose(0, 1).flatten(1).T] if rows.dim() == 4 else []
    statistics = []
    for columns in views:
        ends = [end for end in (columns.amin(0), columns.amax(0)) if bool(((columns == end).sum(0) == 1).all())]
        deviation = columns.std(0)
        of_columns = (columns.mean(0), deviation, columns.std(0, correction=0), columns.median(0).values, *ends)
        statistics += [(statistic, deviation) for statistic in of_columns]
    return statistics


def _is(values: Any, statistic: tuple[Any, Any]) -> bool:
    """Whether a vector has the values of a statistic with more decimals than public constants, except for a few."""
    expected, deviation = statistic
    if values.shape != expected.shape or not bool(expected.isfinite().all()):
        return False
    decimals = expected * _DECIMALS
    is_free = int(((decimals - decimals.round()).abs() > 1e-3).sum()) > len(expected) / 2
    return is_free and bool(((values - expected).abs() <= _rounding(expected, deviation)).all())


def _rounding(values: Any, deviation: Any) -> Any:
    import torch

    return _PART * deviation + _UNITS * torch.finfo(torch.float32).eps * values.abs()


def _has_public_levels(rows: Any) -> bool:
    """Whether all columns have values of one public scale from 0 or -1 to 1 that some columns do not reach the end of.

    Constants of the columns themselves give every column that varies the same range; a public constant does not.
    """
    low, high = rows.amin(0), rows.amax(0)
    signed = bool((low < 0.0).any())
    if not bool(((high > low) & (high < 1.0 - 1e-6)).any()) or bool((high > 1.0 + 1e-6).any()):
        return False
    unit = (rows + 1.0) / 2.0 if signed else rows
    return any(
        bool(_on_grid(unit[:_GLANCE] * levels).all()) and bool(_on_grid(unit * levels).all()) for levels in _LEVELS
    )


def _unless_cut(scaled: Any, rows: Any) -> Any:
    """The ``scaled`` columns (d,); none if at least half have several values at both ends and few equal ones between.

    They were then cut at bounds.
    """
    import torch

    ordered = rows[:, scaled].sort(0).values
    at_low, at_high = ordered == ordered[:1], ordered == ordered[-1:]
    equal = (ordered.diff(dim=0) == 0.0) & ~at_low[1:] & ~at_high[:-1]
    ends = torch.stack([at_low.sum(0), at_high.sum(0)])
    cut = (ends > 1).all(0) & (equal.sum(0) <= _EQUAL * (len(rows) - ends.sum(0)))
    return torch.zeros_like(scaled) if len(cut) and 2 * int(cut.sum()) >= len(cut) else scaled


def _is_standardized(rows: Any) -> Any:
    mean = rows.mean(0)
    squares = ((rows - mean) ** 2).sum(0)
    deviations = (squares / len(rows)).sqrt(), (squares / (len(rows) - 1)).sqrt()
    unit = (deviations[0] - 1.0).abs().minimum((deviations[1] - 1.0).abs())
    return (mean.abs() < 1e-5) & (unit < 1e-4)


def _on_grid(levels: Any) -> Any:
    """Whether all values of a column are integers: flags, and pixels that are divided by a public 255."""
    return ((levels - levels.round()).abs() < 1e-3).all(0)
