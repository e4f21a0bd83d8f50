"""The suites for datasets, models, losses, canaries and scores."""

from __future__ import annotations

import shutil
import unittest
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import DataError, DataSource, Facts, FrozenMap, Json, LoadedData, ModelError, ModelFactory, thaw
from dpspec.contract.attacks import Asked, Canary, Observed, Records
from dpspec.contract.sampling import poisson_sampling
from dpspec.testing.backend import CLASSES, FEATURES, parameters, small_job
from dpspec.testing.provider import ProviderSuite, filled, require, require_light, seeded

if TYPE_CHECKING:
    import numpy as np
    import torch


class DatasetSuite(ProviderSuite):
    """Subclass it and set ``kind``; override :meth:`write_files` if ``options`` name files.

    rows: False for a kind that only declares facts.
    """

    family: ClassVar[str] = "dataset"
    options: ClassVar[Mapping[str, Json]] = {}
    rows: ClassVar[bool] = True

    def write_files(self, directory: Path) -> None:
        """Write the files that ``options`` name into ``directory``, the spec's folder."""

    def source(self, directory: Path) -> DataSource:
        """Create a source, after :meth:`write_files`."""
        self.write_files(directory)
        source: DataSource = self.code()(self._options(), directory)
        return source

    def test_options_fit_the_schema(self) -> None:
        """The options of this suite are valid under the kind's own schema."""
        from jsonschema import Draft202012Validator

        validator = Draft202012Validator(thaw(self.provider().schema))
        errors = [e.message for e in validator.iter_errors(thaw(self._options()))]
        require(not errors, "\n".join(errors))

    def test_facts_are_light(self, tmp_path: Path) -> None:
        """The facts import neither torch nor scipy, so that ``dpspec validate`` is fast."""
        self.write_files(tmp_path)
        options = thaw(self._options())
        call = f"found(FrozenMap({options!r}), Path({str(tmp_path)!r})).facts()"
        require_light(self.provider().source, call, ("torch", "scipy", "sklearn"), " in facts(): import it in load()")

    def test_facts_are_stable(self, tmp_path: Path) -> None:
        """Two sources, and one in another folder with the same files, return the same facts and digest."""
        folder = tmp_path / "here"
        folder.mkdir()
        facts = self.source(folder).facts()
        require(self.source(folder).facts() == facts, "two sources of the same options state different facts")
        shutil.copytree(folder, tmp_path / "there")
        moved = self.code()(self._options(), tmp_path / "there").facts()
        require(moved == facts, "the facts depend on the folder: paths must not enter the digest")

    def test_facts_equal_the_rows(self, tmp_path: Path) -> None:
        """Counts, shapes, classes and dtypes of the rows equal the facts, and the rows are finite."""
        import numpy as np

        source = self.source(tmp_path)
        facts = source.facts()
        require(facts.records >= 1, f"facts promise {facts.records} records")
        require(facts.features == prod(facts.shape), f"{facts.features} features do not fill shape {facts.shape}")
        if not self.rows:
            require(facts.digest is None, "a kind without rows has no digest")
            try:
                source.load()
            except DataError:
                return
            raise AssertionError("a kind without rows must refuse to load() with a DataError")
        require(facts.digest, "a kind with rows must state their digest")
        loaded = source.load()
        for split, x, y, count in (
            ("train", loaded.train_x, loaded.train_y, facts.records),
            ("test", loaded.test_x, loaded.test_y, facts.test_records),
        ):
            of_target = "float32" if facts.real_target else "int64"
            arrays = (("x", x, (count, *facts.shape), "float32"), ("y", y, (count,), of_target))
            for name, array, shape, dtype in arrays:
                require(array.shape == shape, f"{split}_{name} has shape {array.shape}, not {shape}")
                require(str(array.dtype) == dtype, f"{split}_{name} is {array.dtype}, not {dtype}")
            require(bool(np.isfinite(x).all()), f"{split}_x holds values that are not finite")
            if facts.real_target:
                require(bool(np.isfinite(y).all()), f"{split}_y holds values that are not finite")
                continue
            low, high = int(y.min(initial=0)), int(y.max(initial=0))
            require(low >= 0 and high < facts.classes, f"{split}_y runs over {low}..{high} of {facts.classes} classes")

    def test_rows_are_the_same_every_time(self, tmp_path: Path) -> None:
        """Loading twice gives equal rows, also after the caller writes into the first ones."""
        if not self.rows:
            return
        import numpy as np

        def load() -> list[Any]:
            loaded: LoadedData = self.source(tmp_path).load()
            return [loaded.train_x, loaded.train_y, loaded.test_x, loaded.test_y]

        first = load()
        copies = [array.copy() for array in first]
        for array in first:
            if array.flags.writeable:
                array[...] = 0
        same = all(np.array_equal(a, b) for a, b in zip(copies, load(), strict=True))
        require(same, "loading twice gives different rows")

    def _options(self) -> FrozenMap:
        return filled(self.provider().schema, self.options)


class ModelSuite(ProviderSuite):
    """Subclass it and set ``kind``; build the model with ``options`` for data with ``facts``."""

    family: ClassVar[str] = "model"
    options: ClassVar[Mapping[str, Json]] = {}
    facts: ClassVar[Facts] = Facts(records=100, features=64, classes=10, shape=(1, 8, 8), digest="0")

    @classmethod
    def factory(cls) -> ModelFactory:
        """Create a factory."""
        factory: ModelFactory = cls.code()(filled(cls.provider().schema, cls.options), cls.facts)
        return factory

    def test_counting_parameters_is_light(self) -> None:
        """Counting the parameters imports neither torch nor scipy, so that ``dpspec plan`` is fast."""
        options = thaw(filled(self.provider().schema, self.options))
        call = f"found(FrozenMap({options!r}), {self.facts!r}).parameters()"
        require_light(self.provider().factory, call, ("torch", "scipy"), " in parameters(): import it in build()")

    def test_parameters_are_those_of_the_built_module(self) -> None:
        """``parameters()`` counts the trainable parameters of the module from ``build()``, float32 on the CPU.

        Core moves the module to the training device.
        """
        factory = self.factory()
        module = factory.build(0)
        kinds = {(str(p.dtype), p.device.type) for p in module.parameters()}
        require(kinds == {("torch.float32", "cpu")}, f"parameters are {sorted(kinds)}")
        built = sum(p.numel() for p in module.parameters() if p.requires_grad)
        require(factory.parameters() == built, f"parameters() says {factory.parameters()}, the module has {built}")

    def test_building_is_reproducible_by_seed(self) -> None:
        """Equal seeds give equal weights, other seeds other weights, and no global generator is used."""
        import torch

        first = seeded(lambda: parameters(self.factory().build(3)))
        torch.rand(1)
        require(torch.equal(first, parameters(self.factory().build(3))), "two builds of one seed differ")
        require(not torch.equal(first, parameters(self.factory().build(4))), "the seed does not decide the weights")

    def test_outputs_are_one_score_per_class(self) -> None:
        """Records (b, *shape) give finite outputs (b, classes)."""
        import torch

        records = self._records(0)
        outputs = self.factory().build(0)(records)
        expected_shape = (len(records), self.facts.classes)
        shape = tuple(outputs.shape)
        require(shape == expected_shape, f"outputs have shape {shape}, not {expected_shape}")
        require(bool(torch.isfinite(outputs).all()), "outputs are not finite")

    def test_records_do_not_see_each_other(self) -> None:
        """In training mode a record's output does not depend on the other records of its batch.

        Clipping assumes this. Batch normalisation breaks it.
        """
        first, second = self._records(0), self._records(1)
        second[0] = first[0]
        self._require("require_separate_records", first, second)

    def test_nothing_but_parameters_remembers_records(self) -> None:
        """A forward pass in training mode changes no buffer: running statistics leak records without noise."""
        self._require("require_constant_buffers", self._records(0))

    def test_per_example_gradients_are_those_of_each_record_alone(self) -> None:
        """The vectorized per-example gradients equal one backward pass per record."""
        from dpspec.training.function_model import targets_of

        self._require("require_own_gradients", self._records(0), targets_of(self.facts))

    def _require(self, check: str, *batches: torch.Tensor) -> None:
        from dpspec.training import function_model

        try:
            getattr(function_model, check)(self.factory().build(0).train(), *batches)
        except ModelError as error:
            raise AssertionError(str(error)) from None

    def _records(self, seed: int) -> torch.Tensor:
        from dpspec.training.function_model import records_of

        return records_of(self.facts, seed).float()


class LossSuite(ProviderSuite):
    """Subclass it and set ``kind``; ``options`` are the loss's keys, ``classes`` the number of outputs per record.

    With ``classes`` 1 the targets are real numbers.
    """

    family: ClassVar[str] = "loss"
    options: ClassVar[Mapping[str, Json]] = {}
    classes: ClassVar[int] = CLASSES

    def test_every_record_has_its_own_loss(self) -> None:
        """The loss of a record and its gradient are the same alone, in other batches and in another order."""
        from dpspec.training.losses import checked_loss

        options = filled(self.provider().schema, self.options)
        try:
            seeded(lambda: checked_loss(partial(self.code(), **options), self.classes))
        except ModelError as error:
            raise AssertionError(str(error)) from None


#: Largest deviation of the Gram matrix of directions from the identity.
_TOLERANCE = 1e-5


class CanarySuite(ProviderSuite):
    """Subclass it and set ``kind``; ``options`` are the kind's keys, ``facts`` describe the data to try it on."""

    family: ClassVar[str] = "canary"
    options: ClassVar[Mapping[str, Json]] = {}
    facts: ClassVar[Facts] = Facts(records=50, features=12, classes=3, shape=(12,), parameters=400, digest="0")
    count: ClassVar[int] = 3

    @classmethod
    def made(cls, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
        """The canaries as arrays: x and y of records, or the rows of directions."""
        import numpy as np
        import torch

        provider: Canary = cls.provider()
        x, y = _rows(cls.facts)
        options = filled(provider.schema, cls.options)
        request = Asked(count=cls.count, seed=seed, facts=cls.facts, options=options)
        canaries = cls.code()(replace(request, x=x, y=y) if provider.reads_data else request)
        if provider.space == "input":
            require(isinstance(canaries, tuple) and len(canaries) == 2, f"make() returns a {type(canaries).__name__}")
            return (np.asarray(canaries[0]), np.asarray(canaries[1]))
        if isinstance(canaries, np.ndarray):
            return (canaries,)
        return (canaries.directions(torch.arange(cls.count)).numpy(),)

    def test_it_makes_what_is_asked_for(self) -> None:
        """Records have the shape and types of training records; directions are orthonormal."""
        import numpy as np

        canaries = self.made(1)
        if self.provider().space == "gradient":
            rows, expected_shape = canaries[0], (self.count, self.facts.parameters)
            require(rows.shape == expected_shape, f"directions have the shape {rows.shape}, not {expected_shape}")
            products = rows.astype(np.float64) @ rows.astype(np.float64).T
            off = float(np.abs(products - np.eye(self.count)).max())
            require(off <= _TOLERANCE, f"products of directions are off by {off:.2g}: they must be orthonormal")
            return
        x, y = canaries
        wanted_x = (self.count, *(self.facts.shape or (self.facts.features,)))
        require(x.shape == wanted_x and x.dtype.kind == "f", f"x is {x.dtype} of shape {x.shape}, not {wanted_x}")
        require(bool(np.isfinite(x).all()), "x holds values that are not finite")
        require(y.shape == (self.count,) and y.dtype.kind in "iu", f"y is {y.dtype} of shape {y.shape}")
        require(bool(((y >= 0) & (y < self.facts.classes)).all()), f"y holds labels beyond 0..{self.facts.classes - 1}")

    def test_the_seed_decides(self) -> None:
        """Equal seeds give equal canaries, and no global generator is used."""
        first = seeded(lambda: self.made(3))
        again = self.made(3)
        require(all((a == b).all() for a, b in zip(first, again, strict=True)), "two calls with one seed differ")

    def test_the_limit_is_light(self) -> None:
        """``limit`` imports neither torch nor numpy, and returns a number with its reason, or None."""
        provider = self.provider()
        if not provider.limit:
            return
        options = dict(filled(provider.schema, self.options))
        call = f"""limit = found({self.facts!r}, FrozenMap({options!r}))
        assert limit is None or (isinstance(limit[0], int) and isinstance(limit[1], str)), limit"""
        require_light(provider.limit, call, ("torch", "numpy", "scipy"), "")


class ScoreSuite(ProviderSuite):
    """Subclass it and set ``kind``; ``options`` are the kind's keys."""

    family: ClassVar[str] = "score"
    options: ClassVar[Mapping[str, Json]] = {}
    count: ClassVar[int] = 40

    @classmethod
    def observed(cls) -> Observed:
        """Observations of ``count`` records: a linear model, and log-odds before and after training."""
        import numpy as np

        rng = np.random.default_rng(2)
        x, y = _rows(Facts(records=cls.count, features=FEATURES, classes=CLASSES, shape=(FEATURES,), digest="0"))
        coins = np.full(cls.count, -1, dtype=np.int8)
        if cls.provider().learns:
            coins[: cls.count // 2] = rng.integers(0, 2, cls.count // 2)
        options = FrozenMap({"learning_rate": 0.5, "reduction": "mean"})
        job = small_job(options=options, steps=4, sampling=poisson_sampling(0.2), seed=0)
        first, last = rng.normal(size=(2, len(parameters(job.model)))).astype(np.float32)

        def ask(records: Records) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            sums = np.asarray(records.x).reshape(len(records.x), -1).sum(1)
            return np.tanh(sums), np.tanh(sums) + 0.5

        canaries = Records(x, y)
        before, after = ask(canaries)
        return Observed(
            canaries=canaries,
            copies=np.ones(cls.count, dtype=np.int64),
            before=before,
            after=after,
            ask=ask,
            first=first,
            last=last,
            coins=coins,
            unit=0.1,
            many=False,
            planted=cls.count // 2,
            job=job,
            options=filled(cls.provider().schema, cls.options),
        )

    def test_it_gives_a_number_for_every_canary(self) -> None:
        """Scores are finite real numbers, one per canary, in one run and in many."""
        import numpy as np

        for many in (False, True):
            scores = np.asarray(self.code()(replace(self.observed(), many=many)))
            require(scores.shape == (self.count,), f"scores have the shape {scores.shape}, not {(self.count,)}")
            require(scores.dtype.kind in "fiu" and bool(np.isfinite(scores).all()), "scores are not finite numbers")

    def test_equal_observations_have_equal_scores(self) -> None:
        """Scores depend on the observations only; no global generator is used."""
        import numpy as np

        observed = self.observed()
        first = seeded(lambda: np.array(self.code()(observed)))
        require(bool((first == np.array(self.code()(self.observed()))).all()), "two calls give different scores")

    def test_scores_do_not_depend_on_the_order_of_canaries(self) -> None:
        """Canaries in another order have the same ranks, and a canary and its copy nearly the same score.

        Who plants canaries may order them by their inclusion bits. A score that learns from half of the canaries is
        not tried.
        """
        import numpy as np

        if self.provider().learns:
            raise unittest.SkipTest("a score that learns may order the canaries")
        observed = self.observed()
        order = np.random.default_rng(4).permutation(self.count)
        order[1] = order[0]  # the same canary twice
        records = Records(np.asarray(observed.canaries.x)[order], np.asarray(observed.canaries.y)[order])
        before, after = np.asarray(observed.before)[order], np.asarray(observed.after)[order]
        expected = np.asarray(self.code()(replace(observed, many=True)))
        scores = np.asarray(self.code()(replace(observed, canaries=records, before=before, after=after, many=True)))
        # a score may draw points around each canary: then a copy has nearly the same score
        equal = abs(float(scores[0] - scores[1])) <= 0.1 * float(scores.std()) + 1e-9
        require(equal, f"a canary and its copy have the scores {scores[0]:.6g} and {scores[1]:.6g}")
        ranks = [
            np.argsort(np.argsort(values[2:], kind="stable"), kind="stable") for values in (expected[order], scores)
        ]
        agreement = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
        require(
            agreement > 0.9, f"in another order, scores rank the canaries differently (correlation {agreement:.3f})"
        )


def _rows(facts: Facts) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    rng = np.random.default_rng(1)
    shape = (facts.records, *(facts.shape or (facts.features,)))
    x = rng.normal(size=shape) if facts.vocabulary is None else rng.integers(0, facts.vocabulary, size=shape)
    return x.astype(np.float32), rng.integers(0, facts.classes, size=facts.records)
