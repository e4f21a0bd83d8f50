"""The parts of a training that a script passes: their validation, and the header of their run."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dpspec.errors import UsageError
from dpspec_recording import recognized
from dpspec_recording.folder.coins import GRADIENTS
from dpspec_recording.folder.events import ADAPTIVE_CONSTANTS, RAND_ON_EMPTY, Header
from dpspec_recording.fsdp2 import is_for_shards, sharding_of
from dpspec_recording.origin import origin
from dpspec_recording.planting.planted import GradientCanaries, Planted
from dpspec_recording.public_data import PublicData
from dpspec_recording.ranks.group import Group
from dpspec_recording.ranks.rank_watch import data_digest
from dpspec_recording.shards import local
from dpspec_recording.watching.arrays import ArrayModel, ReportedUpdates
from dpspec_recording.watching.noise_sketch import width_of
from dpspec_recording.watching.trained_weights import TrainedWeights

_OF_SUM = operator.attrgetter("noise_multiplier", "expected_batch_size", "loss_reduction", "max_grad_norm")


class Parts:
    """Model, optimizer, loader and accountant of one training.

    Attributes:
        hooks: Opacus' object that computes per-sample gradients of a model that it does not wrap; None if it does.
        clipping: The clipping of Opacus' optimizer; None for a custom loop.
        compiled: The result of ``torch.compile`` that the script passed for the model; None without.
        sampler: None without a loader.
        declared: The intentions of a custom loop; None if it does not declare one.
        planted: The dataset with canaries, None without.
        public: The data that the script declares public; None without.
        earlier: The weights that the script trained before.
        federated: Whether the records are clients of a server.
        distributed: Whether Opacus' optimizer sums over several processes.
        sharding: How the parameters are dealt to several processes; None if they are whole.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: Any,
        engine: Any,
        planted: Any,
        declaration: Mapping[str, Any],
        *,
        federated: bool = False,
        public: Any = None,
        earlier: Sequence[TrainedWeights] = (),
    ) -> None:
        """Raises ``UsageError`` for parts that the recorder does not know, by name."""
        if isinstance(model, list | tuple) and model and all(hasattr(array, "__array__") for array in model):
            model = ArrayModel(model)
            optimizer = ReportedUpdates(model, optimizer)
        self.hooks, model = recognized.hooked(model)
        wrapper, model = model, recognized.uncompiled(model)
        self.compiled = wrapper if wrapper is not model else None
        recognized.refuse_model(model)
        optimizer = recognized.unwrapped(optimizer)
        recognized.refuse_parts("optimizer", optimizer)
        self.sharding = sharding_of(model, optimizer)
        if self.sharding is None:
            recognized.refuse_pieces(model)
            recognized.refuse_processes(optimizer, loader)
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.clipping = "ghost" if self.sharding else None if optimizer is None else recognized.clipping_of(optimizer)
        declared = sorted(name for name, value in declaration.items() if value is not None)
        if not self.is_custom_loop and declared:
            raise UsageError(f"{', '.join(declared)}: Opacus' optimizer and loader say so themselves; leave it out")
        if self.clipping == "ghost" and self.hooks is None and not hasattr(model, "get_clipping_coef"):
            raise UsageError(
                "model is not the one that make_private returned: with ghost clipping and wrap_model=False, give its "
                "first result, the GradSampleHooks"
            )
        recognized.refuse_wrapped_inside(optimizer)
        recognized.refuse_engine(engine, optimizer)
        recognized.refuse_other_loader(engine, loader)
        self.sampler = None if loader is None else recognized.sampler_of(loader)
        self._collate_fn: Any = None
        self._filling: Any = None
        self.accountant = None if engine is None else recognized.AccountantWatch(engine)
        self.planted = _planted(loader, planted)
        self.public = None if public is None else PublicData(public, loader)
        self.earlier = list(earlier)
        self.distributed = sums_over_processes(optimizer)
        if self.planted is not None and self.distributed:
            raise UsageError("canaries are for a training in one process: each rank would draw its own inclusion bits")
        self.declared, self.federated = checked_declaration(declaration), federated
        records = self.declared["records"]
        if self.planted is not None and records not in (None, len(self.planted)):
            raise UsageError(
                f"records is {records}, and the planted dataset has {len(self.planted)} places: leave it out"
            )
        model_parameters = {id(p) for p in self.model.parameters()}
        strange = sum(id(p) not in model_parameters for p in self._stepped())
        if strange:
            raise UsageError(
                f"optimizer: {strange} of its parameters are not in the model; give the model that it trains, "
                "as make_private returned it"
            )
        self._require_fit()

    @property
    def is_custom_loop(self) -> bool:
        """Whether the script reports its steps: no optimizer of Opacus makes them."""
        return self.clipping is None

    @property
    def shards(self) -> tuple[tuple[int, int], ...]:
        """Of each sharded parameter the place of this process' first coordinate, and the number of all; () if whole."""
        return () if self.sharding is None else self.sharding.places

    @property
    def private_optimizer(self) -> Any:
        """Opacus' optimizer; None for a custom loop."""
        return None if self.is_custom_loop else self.optimizer

    @property
    def inner_optimizer(self) -> Optimizer | None:
        """The optimizer of torch, which makes the updates; None without one."""
        inner: Optimizer | None = getattr(self.optimizer, "original_optimizer", self.optimizer)
        return inner

    def require_resumable(self) -> None:
        """Raise ``UsageError`` if no later part can continue this training."""
        if isinstance(self.optimizer, ReportedUpdates):
            raise UsageError("a loop over arrays cannot be resumed: the recorder does not see its optimizer's state")
        if self.shards:
            raise UsageError("a training whose ranks hold rows of the parameters cannot be resumed: record one part")

    def rank_sampler(self) -> Any:
        batches = None if self.sampler is None else self.sampler.batches
        return batches if type(batches).__name__ == "DistributedUniformWithReplacementSampler" else None

    def _stepped(self) -> list[nn.Parameter]:
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        return [p for group in groups for p in group["params"]]

    def _require_fit(self) -> None:
        """Raise ``UsageError`` if there are gradient canaries, and they cannot enter the sums of this training."""
        if self.planted is None or self.planted.kind != GRADIENTS:
            return
        if self.is_custom_loop:
            obstacle = "the recorder cannot add to the sums of a custom loop"
        elif self.clipping == "ghost":
            obstacle = "with ghost clipping no gradient of a single record is there"
        elif self.clipping != "flat":
            obstacle = (
                f"with {self.clipping} clipping no single clip norm bounds what all parameters of a record contribute"
            )
        elif self.sampler is None or self.sampler.batches is None:
            obstacle = "the recorder does not see the drawn records: pass the loader over the dataset with canaries"
        elif self.ahead:
            obstacle = (
                "its loader draws ahead, so that the batch of a step is not known in time: set num_workers=0, and do "
                "not let accelerate prepare the loader"
            )
        elif "add_noise" in vars(self.optimizer):
            obstacle = (
                "add_noise of this optimizer was replaced, by another recorder or the script: each could add them"
            )
        else:
            return
        hint = "" if ":" in obstacle else "; plant records, or use Opacus' DPOptimizer with flat clipping"
        raise UsageError(f"gradient canaries cannot enter this training: {obstacle}{hint}")

    @property
    def ahead(self) -> bool:
        """Whether the loader draws batches before the batch of the step: by its workers, or accelerate."""
        accelerated = type(self.loader).__module__.partition(".")[0] == "accelerate"
        return accelerated or int(getattr(self.loader, "num_workers", 0)) > 0

    @property
    def replay_obstacle(self) -> str:
        """Why no step of this training can be replayed; empty if steps can be."""
        if self.sharding is not None:
            return "each process holds rows of the parameters: record a run without FSDP2"
        if self.compiled is not None:
            return "the model is compiled: record a run without torch.compile"
        if not isinstance(self.model, nn.Module):
            return "the loop trains arrays, whose operations torch does not see"
        has_canaries = self.planted is not None and self.planted.kind == GRADIENTS
        return "sums contain gradient canaries: record a run without them" if has_canaries else ""

    def noisy_parameters(self) -> list[nn.Parameter]:
        if not self.is_custom_loop:
            return list(self.optimizer.params)
        return [p for p in self.model.parameters() if p.requires_grad]

    def gradient_canaries(self) -> GradientCanaries | None:
        if self.planted is None or self.planted.kind != GRADIENTS:
            return None
        self._require_fit()  # another recorder may have begun since this one was made
        return GradientCanaries(self.planted, self.noisy_parameters())

    def trained_parameters(self) -> list[nn.Parameter]:
        trained = [p for p in [*self._stepped(), *self.model.parameters()] if p.requires_grad]
        return list({id(p): p for p in trained}.values())

    def layers(self) -> tuple[tuple[str, int], ...]:
        names = {id(p): name for name, p in recognized.inner_module(self.model).named_parameters()}
        noisy = enumerate(self.noisy_parameters())
        return tuple((names.get(id(p), f"parameter {n}"), local(p).numel()) for n, p in noisy)

    def learning_rate(self) -> float:
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        if len(groups) == 1:
            return float(groups[0].get("lr", "nan"))
        rates = {float(group["lr"]) for group in groups if "lr" in group}
        return rates.pop() if len(rates) == 1 else float("nan")

    def private_options(self) -> dict[str, Any]:
        """The options of the private sum."""
        optimizer = self.optimizer
        multiplier, divisor, reduction, norm = _OF_SUM(optimizer)
        if self.clipping == "ghost":  # Opacus' ghost optimizer prefers this attribute
            multiplier = getattr(optimizer, "_adjusted_noise_multiplier", multiplier)
        if self.clipping == "adaptive":
            norms = tuple(getattr(optimizer, name, None) for name in ADAPTIVE_CONSTANTS)
        else:
            of_layers = getattr(optimizer, "max_grad_norms", None)
            norms = norm, of_layers and tuple(of_layers), vars(self.hooks or self.model).get("max_grad_norm")
        options = {
            "noise_multiplier": multiplier,
            "clip_norm": norms,
            "divisor": divisor,
            "loss_reduction": reduction,
        }
        rate = None if self.sampler is None else getattr(self.sampler.batches, "sample_rate", None)
        options |= {} if rate is None else {"rate": rate}
        return {**options, **self.loader_options()}

    def loader_options(self) -> dict[str, Any]:
        """Opacus' option to fill an empty batch with a random row; none of loaders without this option."""
        collate_fn = getattr(self.loader, "collate_fn", None)
        if collate_fn is not self._collate_fn:  # a search through the names in wrappers takes 0.1 ms
            self._collate_fn, self._filling = collate_fn, recognized.filling_collate(collate_fn)
        return {} if self._filling is None else {RAND_ON_EMPTY: bool(getattr(self._filling, RAND_ON_EMPTY))}

    def header(self, notes: Sequence[str], group: Group | None = None, part: int = 0) -> Header:
        """The header of the run, with notes on what cannot be observed. group: of several processes. part: if later."""
        optimizer, inner, sampler = self.optimizer, getattr(self.optimizer, "original_optimizer", None), self.sampler
        notes, layers = list(notes), self.layers()
        wrapped = type(self.model).__name__
        if wrapped.startswith("GradSampleModule") and self.is_custom_loop:
            notes.append(f"the model is Opacus' {wrapped}, and the optimizer {_kind(optimizer) or 'None'} is not")
        planted = self.planted
        canaries: dict[str, Any] = {}
        if planted is not None:
            canaries = {name: getattr(planted, name) for name in ("copies", "new_ids", "left_out")}
            canaries |= {"canaries": planted.count, "canary_kind": planted.kind, "canary_seed": planted.source.seed}
            canaries["commitment"] = planted.source.commitment
        ranks: dict[str, Any] = {}
        if group is not None:
            ranks = {"world": group.world, "rank": group.rank, "run": group.run}
            draws = self.rank_sampler()
            if draws is not None and (draws.rank, draws.num_replicas) == (group.rank, group.world):
                ranks["share"] = int(draws.num_samples)
            ranks["data"] = data_digest(group, getattr(self.loader, "dataset", None))
        expected = getattr(optimizer, "expected_batch_size", None)
        records = self.declared["records"] or (None if sampler is None else sampler.records)
        return Header(
            **origin(self.planted or getattr(self.loader, "dataset", None), self.noisy_parameters()),
            federated=self.federated,
            source="own-loop" if self.is_custom_loop else "opacus",
            optimizer=_kind(optimizer),
            inner=_kind(inner),
            model=_kind(recognized.inner_module(self.model)),
            sampler="" if sampler is None else sampler.kind,
            clipping=self.clipping or "own",
            scheme="none" if sampler is None else sampler.scheme,
            repeats=recognized.largest_multiplicity(getattr(self.planted or self.loader, "dataset", None)),
            rate=None if sampler is None else sampler.rate,
            records=records if planted is None else len(planted),
            batch_size=None if sampler is None else sampler.batch_size,
            workers=int(getattr(self.loader, "num_workers", 0)),
            reduction="" if self.is_custom_loop else optimizer.loss_reduction,
            expected_batch_size=None if self.is_custom_loop or expected is None else float(expected),
            accountant="" if self.accountant is None else self.accountant.mechanism,
            told_before=0 if self.accountant is None else self.accountant.told()[2],
            layers=layers,
            width=width_of([whole for _, whole in self.shards] or [size for _, size in layers]),
            **canaries,
            **ranks,
            shards=self.shards,
            part=part,
            no_loader=sampler is None,
            notes=tuple(notes),
        )


def sums_over_processes(optimizer: Any) -> bool:
    """Whether Opacus' optimizer sums gradients over several processes."""
    return recognized.is_distributed(optimizer) or is_for_shards(optimizer)


def checked_declaration(declaration: Mapping[str, Any]) -> dict[str, Any]:
    limits = {"noise_multiplier": (0.0, 1e9, True), "clip_norm": (0.0, 1e9, False), "rate": (0.0, 1.0, False)}
    for name, (low, high, closed) in limits.items():
        value = declaration[name]
        fits = value is None or (isinstance(value, int | float) and (low < value <= high or (closed and value == low)))
        if not fits or isinstance(value, bool):
            least = f"{'from' if closed else 'above'} {low:g}"
            raise UsageError(f"{name} must be a number {least} to {high:g}, got {value!r}")
    records = declaration["records"]
    if records is not None and (type(records) is not int or records < 1):
        raise UsageError(f"records must be an integer of at least 1, got {records!r}")
    return dict(declaration)


def _planted(loader: Any, planted: Any) -> Planted | None:
    if planted is not None and not isinstance(planted, Planted):
        raise UsageError(f"planted must be what dpspec.plant returned, got {type(planted).__name__}")
    drawn_from = getattr(loader, "dataset", None)
    if planted is not None and loader is not None and drawn_from is not planted:
        raise UsageError(
            f"the loader draws from a {_kind(drawn_from)}, not from the planted dataset itself: wrap and cut data "
            "before dpspec.plant, so that its places are the loader's"
        )
    return drawn_from if isinstance(drawn_from, Planted) else planted


def _kind(part: Any) -> str:
    return "" if part is None else type(part).__name__
