"""The suite for model kinds: reproducible, of the stated size, and without interaction between records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpspec.contract import Facts, Json, ModelFactory, thaw
from dpspec.testing.provider import ProviderSuite, filled, imported_by, impurities, require

if TYPE_CHECKING:
    import torch

_BATCH = 4


class ModelSuite(ProviderSuite):
    """Subclass it and set ``kind``; build the model with ``options`` for data with ``facts``."""

    family: ClassVar[str] = "model"
    options: ClassVar[Mapping[str, Json]] = {}
    facts: ClassVar[Facts] = Facts(records=100, features=64, classes=10, shape=(1, 8, 8), digest="0")

    @classmethod
    def factory(cls) -> ModelFactory:
        """Create a factory."""
        made: ModelFactory = cls.code()(filled(cls.provider().schema, cls.options), cls.facts)
        return made

    def test_counting_parameters_is_light(self) -> None:
        """Counting the parameters imports neither torch nor scipy, so that ``dpspec plan`` is fast."""
        module, _, name = self.provider().factory.partition(":")
        options = thaw(filled(self.provider().schema, self.options))
        statements = f"""
            import importlib
            from dpspec.contract import Facts, FrozenMap
            factory = getattr(importlib.import_module({module!r}), {name!r})
            factory(FrozenMap({options!r}), {self.facts!r}).parameters()
        """
        heavy = imported_by(statements, ("torch", "scipy"))
        require(not heavy, f"parameters() imports {', '.join(heavy)}; import them inside build()")

    def test_parameters_are_those_of_the_built_module(self) -> None:
        """``parameters()`` is the number of trainable parameters of the module from ``build()``."""
        factory = self.factory()
        built = sum(p.numel() for p in factory.build(0).parameters() if p.requires_grad)
        require(factory.parameters() == built, f"parameters() says {factory.parameters()}, the module has {built}")

    def test_module_is_float32_on_the_cpu(self) -> None:
        """The module is float32 and on the CPU; core moves it to the training device."""
        kinds = {(str(p.dtype), p.device.type) for p in self.factory().build(0).parameters()}
        require(kinds == {("torch.float32", "cpu")}, f"parameters are {sorted(kinds)}")

    def test_building_is_reproducible_by_seed(self) -> None:
        """Equal seeds give equal weights, other seeds other weights, and no global generator is used."""
        import torch

        first, touched = impurities(lambda: _weights(self.factory().build(3)))
        require(not [t for t in touched if "generator" in t], "; ".join(touched))
        torch.rand(1)
        require(torch.equal(first, _weights(self.factory().build(3))), "two builds of one seed differ")
        require(not torch.equal(first, _weights(self.factory().build(4))), "the seed does not decide the weights")

    def test_outputs_are_one_score_per_class(self) -> None:
        """Records (b, *shape) give finite outputs (b, classes)."""
        import torch

        outputs = self.factory().build(0)(self._records(0))
        wanted = (_BATCH, self.facts.classes)
        require(tuple(outputs.shape) == wanted, f"outputs have shape {tuple(outputs.shape)}, not {wanted}")
        require(bool(torch.isfinite(outputs).all()), "outputs are not finite")

    def test_records_do_not_see_each_other(self) -> None:
        """In training mode a record's output does not depend on the other records of its batch.

        Clipping assumes this. Batch normalisation breaks it.
        """
        import torch

        module = self.factory().build(0).train()
        batch, others = self._records(0), self._records(1)
        others[0] = batch[0]
        among_some = self._first_output(module, batch)
        among_others = self._first_output(module, others)
        require(
            torch.allclose(among_some, among_others, rtol=1e-5, atol=1e-6),
            "the output of one record depends on the other records of its batch",
        )

    def test_nothing_but_parameters_remembers_records(self) -> None:
        """A forward pass in training mode changes no buffer: running statistics leak records without noise."""
        import torch

        module = self.factory().build(0).train()
        before = {name: b.clone() for name, b in module.named_buffers()}
        module(self._records(0))
        changed = [name for name, b in module.named_buffers() if not torch.equal(b, before[name])]
        require(not changed, f"a forward pass changes the buffers {', '.join(changed)}")

    def test_per_example_gradients_are_those_of_each_record_alone(self) -> None:
        """The vectorized per-example gradients equal one backward pass per record."""
        import torch

        from dpspec.training.gradients.persample import per_example_gradients

        module = self.factory().build(0)
        x = self._records(0)
        y = torch.arange(_BATCH) % self.facts.classes
        rows = per_example_gradients(module, x, y)
        for i in range(_BATCH):
            loss = torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            trained = [p for p in module.parameters() if p.requires_grad]
            alone = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
            close = torch.allclose(rows[i], alone, rtol=1e-3, atol=1e-5)
            require(close, f"the gradient of record {i} differs from the one computed alone")

    def _records(self, seed: int) -> torch.Tensor:
        import torch

        shape = self.facts.shape or (self.facts.features,)
        if self.facts.vocabulary is not None:
            source = torch.Generator().manual_seed(seed)
            return torch.randint(0, self.facts.vocabulary, (_BATCH, *shape), generator=source).float()
        return torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(seed))

    def _first_output(self, module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)  # dropout, where there is some, drops the same
            output: torch.Tensor = module(x)[0]
        return output


def _weights(module: Any) -> torch.Tensor:
    import torch

    return torch.cat([p.detach().flatten() for p in module.parameters()])
