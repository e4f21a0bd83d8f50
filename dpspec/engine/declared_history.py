"""An accountant's history as evidence: JSON of Opacus or of dp-accounting, as the spec of a composition.

The history is declared: it does not show that a training executed it. JSON is read as data; no class that it names is
imported.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import FrozenMap, Json
from dpspec.errors import HistoryError, NothingToRunError, UsageError, format_path
from dpspec.errors import Path as Location
from dpspec.regular_files import NotRegularError, read_text
from dpspec.text import quoted, shortened

if TYPE_CHECKING:
    from dpspec.contract.catalog import Catalog
    from dpspec.contract.results import Result

#: The largest size of a file in bytes, the largest number of different entries, and of runs of one entry.
_LARGEST_FILE, _MOST_ENTRIES, _MOST_RUNS = 1 << 24, 1000, 10**9

#: The largest number of distances in a mixture of Gaussians.
_MOST_SHIFTS = 10_000

#: Supported noise: the range of the mechanism ``composition``.
_LEAST_NOISE, _MOST_NOISE = 1e-9, 1e12

#: The fields of dp-accounting's events, in the order of their definition.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "UnsupportedDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "DiscreteLaplaceDpEvent": ("noise_parameter", "sensitivity"),
    "RandomizedResponseDpEvent": ("noise_parameter", "num_buckets"),
    "ZCDpEvent": ("rho", "xi"),
    "SelfComposedDpEvent": ("event", "count"),
    "ComposedDpEvent": ("events",),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "SingleEpochTreeAggregationDpEvent": ("noise_multiplier", "step_counts"),
    "MixtureOfGaussiansDpEvent": ("standard_deviation", "sensitivities", "sampling_probs"),
    "TruncatedSubsampledGaussianDpEvent": (
        "dataset_size",
        "sampling_probability",
        "truncated_batch_size",
        "noise_multiplier",
    ),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
    "SampledWithReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
}

#: The module that defines these events.
_MODULE = "dp_accounting.dp_event"

#: Relations of neighbors.
ADJACENCIES = ("add-remove", "zero-out", "replace-one")

Release = Mapping[str, Json]


@dataclass(frozen=True)
class History:
    """A declared history.

    Attributes:
        releases: Entries of ``releases`` of the mechanism ``composition``, without repetitions.
        accountant: ``rdp``, ``prv`` or ``gdp`` of Opacus; empty for events of dp-accounting.
        steps: Opacus' entries (noise multiplier, sampling rate, number of steps); empty for events.
        file: The path of the file; empty for a history in memory.
    """

    releases: tuple[Release, ...]
    accountant: str = ""
    steps: tuple[tuple[float, float, int], ...] = ()
    file: str = ""

    @property
    def runs(self) -> int:
        """The number of releases with their repetitions."""
        return sum(int(str(release["times"])) for release in self.releases)


def read_history(history: Any, adjacency: str = "add-remove") -> History:
    """Read a file or the content of one.

    Args:
        history: A path, or the value of ``accountant.state_dict()`` or of ``event.to_named_tuple()``.
        adjacency: ``add-remove``, ``zero-out`` or ``replace-one``. Noise multipliers refer to the norm of one record's
            value: a replaced record changes a sum by twice this norm.

    Raises:
        HistoryError: The content is not a history, or has an event without a bound. The message has its place.
        NothingToRunError: The history has no release.
        UsageError: The file cannot be read.
    """
    file = str(fspath(history)) if isinstance(history, str | PathLike) else ""
    reader = _Reader(file or "history", adjacency)
    content = reader.parse(Path(file)) if file else history
    try:
        if isinstance(content, Mapping) and "history" in content:
            declared = reader.opacus(content)
        else:
            declared = History(reader.merged(reader.releases(content, (), 1)))
    except RecursionError:
        raise reader.error((), "the events are nested too deeply") from None
    if not declared.releases:
        raise NothingToRunError(f"{file or 'history'}: no release")
    return replace(declared, file=file)


class _Reader:
    """Reads the content of one file for an adjacency; ``name`` is the file, for messages."""

    def __init__(self, name: str, adjacency: str) -> None:
        self._name, self._adjacency = name, adjacency
        #: The largest change of a sum by one record, in units of its norm.
        self._change = 2.0 if adjacency == "replace-one" else 1.0

    def require(self, location: Location, subject: str, *relations: str) -> None:
        """Refuse an event that has no bound for the adjacency."""
        if self._adjacency not in relations:
            message = f"{subject} has a bound for {' and '.join(relations)}, not for {self._adjacency}"
            if subject == "a Poisson sample":
                message += "; a spec with mechanism: {kind: group} bounds such steps with Gaussian noise"
            raise self.error(location, message)

    def parse(self, path: Path) -> Json:
        try:
            text = read_text(path, _LARGEST_FILE)
        except (OSError, NotRegularError) as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise HistoryError(f"{path}: not UTF-8 text") from None
        try:
            return json.loads(text, object_pairs_hook=_distinct_keys)
        except RecursionError:
            raise HistoryError(f"{path}: nested too deeply") from None
        except ValueError as error:
            raise HistoryError(f"{path}: not JSON: {error}") from None

    def error(self, location: Location, problem: str) -> HistoryError:
        where = f"{format_path(location)}: " if location else ""
        return HistoryError(f"{self._name}: {where}{problem}")

    def number(self, value: Any, location: Location, name: str, least: float, most: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            allowed = f"a number from {least:g} to {most:g}"
            raise self.error(location, f"{name} must be {allowed}, got {shortened(repr(value), 40)}")
        return float(value)

    def count(self, value: Any, location: Location, name: str, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_RUNS:
            allowed = f"an integer from {least} to {_MOST_RUNS}"
            raise self.error(location, f"{name} must be {allowed}, got {shortened(repr(value), 40)}")
        return value

    def noise(self, value: Any, location: Location) -> float:
        if value == 0 and not isinstance(value, bool):
            raise self.error(location, "noise 0 has no finite epsilon")
        return self.number(value, location, "noise_multiplier", _LEAST_NOISE, _MOST_NOISE)

    def release(self, times: int, **keys: Json) -> Release:
        if keys["kind"] in ("gaussian", "laplace") and self._change != 1.0:
            keys["sensitivity"] = self._change
        return {**keys, "times": times}

    def merged(self, releases: Iterator[Release]) -> tuple[Release, ...]:
        """Add up the runs of equal releases."""
        runs: Counter[tuple[tuple[str, Any], ...]] = Counter()
        for release in releases:
            runs[tuple(item for item in release.items() if item[0] != "times")] += int(str(release["times"]))
            if len(runs) > _MOST_ENTRIES:
                raise self.error((), f"more than {_MOST_ENTRIES} different entries are not supported")
        if any(times > _MOST_RUNS for times in runs.values()):
            raise self.error((), f"more than {_MOST_RUNS} runs of one entry are not supported")
        return tuple({**dict(keys), "times": times} for keys, times in runs.items())

    def opacus(self, content: Mapping[str, Any]) -> History:
        mechanism, entries = content.get("mechanism"), content["history"]
        if mechanism not in ("rdp", "prv", "gdp"):
            raise self.error(("mechanism",), f"must be rdp, prv or gdp, got {shortened(repr(mechanism), 40)}")
        if not _is_list(entries):
            raise self.error(("history",), "must be a list of [noise multiplier, sampling rate, steps]")
        steps = []
        for i, entry in enumerate(entries):
            location: Location = ("history", i)
            if not _is_list(entry) or len(entry) != 3:
                raise self.error(location, "must be [noise multiplier, sampling rate, steps]")
            noise, rate = (
                self.noise(entry[0], (*location, 0)),
                self.number(entry[1], (*location, 1), "rate", 1e-30, 1.0),
            )
            if rate < 1.0:
                self.require((*location, 1), "a Poisson sample", "add-remove", "zero-out")
            steps.append((noise, rate, self.count(entry[2], (*location, 2), "the number of steps", 1)))
        releases = (self.release(n, kind="gaussian", sigma=noise, rate=rate) for noise, rate, n in steps)
        return History(self.merged(releases), mechanism, tuple(steps))

    def event(self, value: Any, location: Location) -> tuple[str, Mapping[str, Any]]:
        """The class and the fields of an event: a mapping with ``class_name``, or [module, class, field, ...]."""
        if isinstance(value, Mapping):
            fields = dict(value)
            module, name = fields.pop("module_name", _MODULE), fields.pop("class_name", None)
        elif _is_list(value) and len(value) >= 2:
            module, name = value[:2]
            fields = dict(enumerate(value[2:]))
        else:
            module, name, fields = _MODULE, None, {}
        if not isinstance(name, str):
            hint = "an event of dp-accounting needs class_name: write it by json.dump(event.to_named_tuple(), file)"
            raise self.error(location, f"neither an event nor a history of Opacus; {hint}")
        if module != _MODULE or name not in _FIELDS:
            raise self.error(location, f"no bound is known for the event {quoted(name)} of {quoted(str(module))}")
        names = _FIELDS[name]
        if _is_list(value):
            if len(fields) != len(names):
                raise self.error(location, f"{name} has {len(names)} fields, got {len(fields)}")
            fields = dict(zip(names, value[2:], strict=True))
        if name == "ZCDpEvent":
            fields.setdefault("xi", 0.0)
        for key in (*names, *fields):
            if key not in fields or key not in names:
                raise self.error((*location, str(key)), f"{'missing' if key in names else 'unknown'} field of {name}")
        return name, fields

    def releases(self, value: Any, location: Location, times: int) -> Iterator[Release]:
        """The releases of an event that runs ``times`` times on all records."""
        name, fields = self.event(value, location)
        match name:
            case "NoOpDpEvent":
                return
            case "ComposedDpEvent":
                if not _is_list(fields["events"]):
                    raise self.error((*location, "events"), "must be a list of events")
                for i, event in enumerate(fields["events"]):
                    yield from self.releases(event, (*location, "events", i), times)
            case "SelfComposedDpEvent":
                count = times * self.count(fields["count"], (*location, "count"), "count")
                if count > _MOST_RUNS:
                    raise self.error((*location, "count"), f"the event runs {count:.3g} times: at most {_MOST_RUNS:g}")
                if count:
                    yield from self.releases(fields["event"], (*location, "event"), count)
            case "PoissonSampledDpEvent":
                rate = self.number(
                    fields["sampling_probability"], (*location, "sampling_probability"), "rate", 0.0, 1.0
                )
                if 0.0 < rate < 1e-30:
                    raise self.error((*location, "sampling_probability"), "rate must be 0 or at least 1e-30")
                if rate == 1.0:
                    yield from self.releases(fields["event"], (*location, "event"), times)
                elif rate:
                    self.require(location, "a Poisson sample", "add-remove", "zero-out")
                    yield from self.sampled(fields["event"], (*location, "event"), times, {"rate": rate})
            case "SampledWithoutReplacementDpEvent":
                size = self.count(fields["sample_size"], (*location, "sample_size"), "sample_size")
                records = self.count(fields["source_dataset_size"], (*location, "source_dataset_size"), "the size", 2)
                self.require(location, "a sample of fixed size", "add-remove")
                if size:  # all records, too: one record more displaces another one
                    keys = {"batch_size": size, "records": records}
                    yield from self.sampled(fields["event"], (*location, "event"), times, keys)
            case "TruncatedSubsampledGaussianDpEvent":
                yield from self.truncated(fields, location, times)
            case "RepeatAndSelectDpEvent":
                raise self.error(
                    location, "a random number of runs has no bound here: see mechanism: {kind: selection}"
                )
            case _:
                yield self.simple(name, fields, location, times)

    def truncated(self, fields: Mapping[str, Any], location: Location, times: int) -> Iterator[Release]:
        """The release of Gaussian noise on a Poisson sample with a cap, of ``dataset_size`` records or one more."""
        self.require(location, "a truncated Poisson sample", "add-remove")
        records = self.count(fields["dataset_size"], (*location, "dataset_size"), "dataset_size")
        cap = self.count(fields["truncated_batch_size"], (*location, "truncated_batch_size"), "truncated_batch_size")
        rate_location = (*location, "sampling_probability")
        rate = self.number(fields["sampling_probability"], rate_location, "rate", 0.0, 1.0)
        if not rate or not cap or not records:
            return
        noise = self.noise(fields["noise_multiplier"], (*location, "noise_multiplier"))
        keys = {"sigma": noise, "rate": self.number(rate, rate_location, "rate", 1e-30, 1.0)}
        if cap <= records:  # one more record may exceed the cap
            yield self.release(times, kind="gaussian", **keys, records=records, max_batch=cap)
        else:
            yield self.release(times, kind="gaussian", **keys)

    def sampled(self, value: Any, location: Location, times: int, sample: Mapping[str, Json]) -> Iterator[Release]:
        """The release of one mechanism with noise on a sample."""
        inner, fields = self.event(value, location)
        if inner == "NoOpDpEvent":
            return
        if inner != "GaussianDpEvent" and (inner != "LaplaceDpEvent" or "rate" not in sample):
            raise self.error(location, f"no bound is known for {inner} on this sample")
        yield {**self.simple(inner, fields, location, times), **sample}

    def simple(self, name: str, fields: Mapping[str, Any], location: Location, times: int) -> Release:
        match name:
            case "GaussianDpEvent" | "LaplaceDpEvent":
                noise = self.noise(fields["noise_multiplier"], (*location, "noise_multiplier"))
                if name == "LaplaceDpEvent":
                    return self.release(times, kind="laplace", scale=noise)
                return self.release(times, kind="gaussian", sigma=noise)
            case "DiscreteLaplaceDpEvent":
                noise = self.number(
                    fields["noise_parameter"], (*location, "noise_parameter"), "noise_parameter", 1e-9, 1e3
                )
                change = self.count(fields["sensitivity"], (*location, "sensitivity"), "sensitivity", 1)
                # the log-ratio of two probabilities is at most noise * change: a guarantee, rounded up
                return self.release(times, kind="approx-dp", epsilon=noise * change * self._change * (1.0 + 1e-15))
            case "RandomizedResponseDpEvent":
                self.require(location, "randomized response", "replace-one", "zero-out")
                wrong = self.number(
                    fields["noise_parameter"], (*location, "noise_parameter"), "noise_parameter", 0.0, 1.0
                )
                answers = self.count(fields["num_buckets"], (*location, "num_buckets"), "num_buckets", 2)
                if not 1e-300 < wrong < 1.0:
                    raise self.error((*location, "noise_parameter"), f"must be above 0 and below 1, got {wrong:g}")
                epsilon = math.log1p(answers * (1.0 - wrong) / wrong)
                return self.release(times, kind="randomized-response", epsilon=epsilon, answers=answers)
            case "MixtureOfGaussiansDpEvent":
                return self.mixture(fields, location, times)
            case "ZCDpEvent":
                if fields["xi"] != 0:
                    raise self.error((*location, "xi"), "only xi = 0 is supported")
                rho = self.number(fields["rho"], (*location, "rho"), "rho", 1e-30, 1e12)
                return self.release(times, kind="zcdp", rho=rho)
            case "SingleEpochTreeAggregationDpEvent":
                self.require(
                    location, "tree aggregation", "zero-out"
                )  # an added record moves later ones to other steps
                counts, counted = fields["step_counts"], (*location, "step_counts")
                if _is_list(counts) and not counts:
                    raise self.error(counted, "step_counts must have at least one number")
                steps = max(
                    self.count(n, counted, "step_counts", 1) for n in (counts if _is_list(counts) else [counts])
                )
                noise = self.noise(fields["noise_multiplier"], (*location, "noise_multiplier"))
                # the first record is in one complete node on each level: of 1, 2, 4, ... steps
                return self.release(times * steps.bit_length(), kind="gaussian", sigma=noise)
            case "NonPrivateDpEvent":
                raise self.error(location, "an operation without noise has no finite epsilon")
            case _:
                raise self.error(location, f"no bound is known for {name}")

    def mixture(self, fields: Mapping[str, Any], location: Location, times: int) -> Release:
        """The release of noise that one record moves by a random distance."""
        self.require(location, "a mixture of Gaussians", "add-remove", "zero-out")
        noise = self.noise(fields["standard_deviation"], (*location, "standard_deviation"))
        columns = {}
        for key, field, most in (("shifts", "sensitivities", 1e9), ("probabilities", "sampling_probs", 1.0)):
            values, column = fields[field], (*location, field)
            if not _is_list(values) or not 1 <= len(values) <= _MOST_SHIFTS:
                raise self.error(column, f"must be a list of 1 to {_MOST_SHIFTS} numbers")
            columns[key] = tuple(self.number(value, (*column, i), field, 0.0, most) for i, value in enumerate(values))
        if len(columns["shifts"]) != len(columns["probabilities"]):
            raise self.error((*location, "sampling_probs"), "must have a probability for each sensitivity")
        total = math.fsum(columns["probabilities"])
        if abs(total - 1.0) > 1e-9:
            raise self.error((*location, "sampling_probs"), f"must sum to 1, got {total:.12g}")
        return self.release(times, kind="gaussian-mixture", sigma=noise, **columns)


def _distinct_keys(pairs: Sequence[tuple[str, Json]]) -> Json:
    """A JSON object; of a repeated key the parser would keep the last value alone."""
    keys = Counter(key for key, _ in pairs)
    for key, count in keys.items():
        if count > 1:
            raise ValueError(f"key {quoted(key)} occurs {count} times in one object")
    return dict(pairs)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def check_history(
    history: Any,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    group_size: int | Sequence[int] = 1,
    adjacency: str = "add-remove",
    catalog: Catalog | None = None,
) -> Result:
    """Certify the epsilon of an accountant's history, like ``dpspec check --history``.

        result = dpspec.check_history(engine.accountant.state_dict(), epsilon=8, delta=1e-5)

    Args:
        history: Path of a JSON file, or its content: ``accountant.state_dict()`` of Opacus, or
            ``event.to_named_tuple()`` of an event of dp-accounting. Or a history that was read.
        epsilon: The claim; None for no claim.
        delta: Of the claim and of the reported epsilon, in (0, 1).
        group_size: The number of records of one person, or several numbers; the claim is for the first one.
        adjacency: ``add-remove``, ``zero-out`` or ``replace-one``.
        catalog: Providers of plugins; the installed ones by default.

    Returns:
        The result, with the certified interval of epsilon.

    Raises:
        HistoryError: The content is not a history, or has an event without a bound.
        NothingToRunError: The history has no release.
        UsageError: An argument is invalid.
    """
    from dpspec.engine.stated_claim import StatedClaim, run_spec, spec_name
    from dpspec.language.load import from_document
    from dpspec.registry.loader import load_catalog

    sizes = (group_size,) if isinstance(group_size, int) else tuple(dict.fromkeys(group_size))
    claim = StatedClaim(delta=delta, epsilon=epsilon, group_sizes=sizes)
    claim.require_valid()
    if adjacency not in ADJACENCIES:
        raise UsageError(f"--adjacency must be {', '.join(ADJACENCIES)}, got {adjacency!r}")
    declared = history if isinstance(history, History) else read_history(history, adjacency)
    sampled_from = [int(release["records"]) for release in declared.releases if "records" in release]
    document: dict[str, Json] = {
        "dpspec": 1,
        "name": spec_name(Path(declared.file).stem) or "history",
        "description": headline(declared),
        "mechanism": {
            "kind": "composition",
            "releases": [dict(release) for release in declared.releases],
            "delta": delta,
        },
        "data": {"kind": "declared", "records": max(sampled_from, default=1)},
        "threat_model": {"adjacency": adjacency, "group_size": sorted(sizes)},
        "claims": claim.claims,
    }
    options: dict[str, Sequence[object]] = {
        "--epsilon": [] if epsilon is None else [epsilon],
        "--delta": [delta],
        "--adjacency": [adjacency],
        "--group-size": sizes if sizes != (1,) else (),
    }
    command = ["dpspec", "check", "--history", declared.file or "FILE"]
    catalog = catalog or load_catalog()
    return run_spec(from_document(document, catalog), catalog, command, options)


def headline(history: History) -> str:
    """A sentence on the evidence."""
    runs = f"{history.runs:,} release{'s' if history.runs > 1 else ''}"
    source = f"Opacus' accountant {history.accountant}" if history.accountant else "dp-accounting"
    return f"Declared, not observed: {runs} in a history of {source}."


#: A claim at most this share below the certified interval may be an accountant's rounding or grid error.
_NEAR = 0.05

#: Smaller deltas are close to the rounding errors of Opacus' transform.
_PRV_DELTA = 1e-10

_REASONS = {
    "rdp": "Renyi divergences at a list of orders, and their conversion, bound epsilon from above only",
    "prv": "its figure is an estimate plus a margin of 0.01 for its error",
    "gdp": "a central limit theorem approximates epsilon, and is not a bound",
}


def differences(history: History, result: Result, delta: float) -> Iterator[str]:
    """Sentences on the differences of the accountant's figure, and of a claim, from the certified interval."""
    from dpspec import decimals
    from dpspec.engine.accountant_figure import accountant_epsilon

    (audit,) = result.audits
    conditions = FrozenMap({"delta": delta, "group_size": 1})
    ends = {f.bound: f.value for f in audit.findings if f.quantity == "epsilon" and f.at == conditions}
    lower, upper = ends.get("lower", 0.0), ends.get("upper", math.inf)
    figure = accountant_epsilon(history.accountant, history.steps, delta) if history.accountant else None
    if figure is not None:
        side = "in the certified interval"
        if figure > upper:
            excess = f"{figure / upper - 1.0:.1%} " if upper > 0.0 else ""
            side = f"{excess}above the certified interval"
        elif figure < lower:
            side = f"{1.0 - figure / lower:.1%} below the certified interval, so too small"
        shown = f"epsilon {decimals.nearest(figure)} at delta = {decimals.exact(delta)} (recomputed)"
        yield f"Opacus' {history.accountant} reports {shown}: {side}; {_REASONS[history.accountant]}."
        if history.accountant == "prv" and delta < _PRV_DELTA:
            yield f"At delta below {_PRV_DELTA:g} its transform in floating point may give less, or fail."
    for verdict in audit.verdicts:
        size = audit.document["claims"][0]["group_size"]
        if size == 1 and verdict.claimed is not None and (1.0 - _NEAR) * lower <= verdict.claimed < lower:
            yield (
                f"The claim is {1.0 - verdict.claimed / lower:.1%} below the certified interval: an accountant "
                "that reports it rounds, or has a grid or tail error at this delta."
            )
