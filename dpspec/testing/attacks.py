"""The suites for canaries and scores: shapes, reproducibility by seed, and light limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import Facts, FrozenMap, Json, TrainingJob
from dpspec.contract.attacks import Asked, Canary, Observed, Records
from dpspec.testing.provider import ProviderSuite, filled, imported_by, impurities, require

if TYPE_CHECKING:
    import numpy as np

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
        asked = Asked(
            count=cls.count,
            seed=seed,
            facts=cls.facts,
            options=filled(provider.schema, cls.options),
            x=x if provider.reads_data else None,
            y=y if provider.reads_data else None,
        )
        found = cls.code()(asked)
        if provider.space == "input":
            require(isinstance(found, tuple) and len(found) == 2, f"make() returns a {type(found).__name__}")
            return (np.asarray(found[0]), np.asarray(found[1]))
        if isinstance(found, np.ndarray):
            return (found,)
        return (found.directions(torch.arange(cls.count)).numpy(),)

    def test_it_makes_what_is_asked_for(self) -> None:
        """Records have the shape and types of training records; directions are orthonormal."""
        import numpy as np

        made = self.made(1)
        if self.provider().space == "gradient":
            wanted = (self.count, self.facts.parameters)
            require(made[0].shape == wanted, f"directions have the shape {made[0].shape}, not {wanted}")
            products = made[0].astype(np.float64) @ made[0].astype(np.float64).T
            off = float(np.abs(products - np.eye(self.count)).max())
            require(off <= _TOLERANCE, f"products of directions are off by {off:.2g}: they must be orthonormal")
            return
        x, y = made
        wanted_x = (self.count, *(self.facts.shape or (self.facts.features,)))
        require(x.shape == wanted_x and x.dtype.kind == "f", f"x is {x.dtype} of shape {x.shape}, not {wanted_x}")
        require(bool(np.isfinite(x).all()), "x holds values that are not finite")
        require(y.shape == (self.count,) and y.dtype.kind in "iu", f"y is {y.dtype} of shape {y.shape}")
        require(bool(((y >= 0) & (y < self.facts.classes)).all()), f"y holds labels beyond 0..{self.facts.classes - 1}")

    def test_the_seed_decides(self) -> None:
        """Equal seeds give equal canaries, and no global generator is used."""
        first, touched = impurities(lambda: self.made(3))
        require(not [t for t in touched if "generator" in t], "; ".join(touched))
        again = self.made(3)
        require(all((a == b).all() for a, b in zip(first, again, strict=True)), "two calls with one seed differ")

    def test_the_limit_is_light(self) -> None:
        """``limit`` imports neither torch nor numpy, and returns a number with its reason, or None."""
        provider = self.provider()
        if not provider.limit:
            return
        module, _, name = provider.limit.partition(":")
        statements = f"""
            import importlib
            from dpspec.contract import Facts, FrozenMap
            limit = getattr(importlib.import_module({module!r}), {name!r})
            found = limit({self.facts!r}, FrozenMap({dict(filled(provider.schema, self.options))!r}))
            assert found is None or (isinstance(found[0], int) and isinstance(found[1], str)), found
        """
        heavy = imported_by(statements, ("torch", "numpy", "scipy"))
        require(not heavy, f"limit() imports {', '.join(heavy)}")


class ScoreSuite(ProviderSuite):
    """Subclass it and set ``kind``; ``options`` are the kind's keys."""

    family: ClassVar[str] = "score"
    options: ClassVar[Mapping[str, Json]] = {}
    count: ClassVar[int] = 40

    @classmethod
    def observed(cls) -> Observed:
        """Observations of ``count`` records: a linear model, and log-odds before and after training."""
        import numpy as np
        import torch

        rng = np.random.default_rng(2)
        facts = Facts(records=50, features=12, classes=3, shape=(12,), digest="0")
        x, y = _rows(facts)
        coins = np.full(cls.count, -1, dtype=np.int8)
        if cls.provider().learns:
            coins[: cls.count // 2] = rng.integers(0, 2, cls.count // 2)
        first, last = rng.normal(size=(2, 39)).astype(np.float32)
        model = torch.nn.Sequential(torch.nn.Linear(12, 3))
        phase = FrozenMap(
            {"steps": 4, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": {"scheme": "poisson", "rate": 0.2}}
        )
        job = TrainingJob(
            x=x,
            y=y,
            model=model,
            phases=(phase,),
            options=FrozenMap({"learning_rate": 0.5, "reduction": "mean", "optimizer": "sgd"}),
            expected_batch_size=10.0,
            device="cpu",
            seed=0,
        )

        def ask(records: Records) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            sums = np.asarray(records.x).reshape(len(records.x), -1).sum(1)
            return np.tanh(sums), np.tanh(sums) + 0.5

        canaries = Records(*(part[: cls.count] for part in (x, y)))
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

        seen = self.observed()
        first, touched = impurities(lambda: np.array(self.code()(seen)))
        require(not [t for t in touched if "generator" in t], "; ".join(touched))
        require(bool((first == np.array(self.code()(self.observed()))).all()), "two calls give different scores")


def _rows(facts: Facts) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    rng = np.random.default_rng(1)
    shape = (facts.records, *(facts.shape or (facts.features,)))
    x = rng.normal(size=shape) if facts.vocabulary is None else rng.integers(0, facts.vocabulary, size=shape)
    return x.astype(np.float32), rng.integers(0, facts.classes, size=facts.records)
