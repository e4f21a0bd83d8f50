"""The parts of a training as a script hands them over: what they are, what they may be, and the header of their run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dpspec.errors import UsageError
from dpspec.recording.folder.header import Header
from dpspec.recording.planting.coins import GRADIENTS
from dpspec.recording.planting.gradients import GradientCanaries, refuse_unfit
from dpspec.recording.planting.planted import Planted
from dpspec.recording.repeated_records import largest_multiplicity
from dpspec.recording.watching import recognised
from dpspec.recording.watching.accountant_watch import AccountantWatch
from dpspec.recording.watching.noise_sketch import width_of
from dpspec.version import VERSION


class Parts:
    """Model, optimizer, loader and accountant of one training.

    clipping: how Opacus' optimizer clips; None for a loop of one's own. sampler: None without a loader. declared: what
    a loop of its own means to do, None for what it does not say. planted: the data set with canaries, None without.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: Any,
        engine: Any,
        planted: Any,
        given: Mapping[str, Any],
        loss: Any = None,
    ) -> None:
        """Raises ``UsageError`` for what is not known, by name."""
        recognised.refuse_processes()
        recognised.refuse_model(model)
        optimizer = recognised.unwrapped(optimizer)
        self.model, self.optimizer, self.loader, self._engine = model, optimizer, loader, engine
        self.clipping = None if optimizer is None else recognised.clipping_of(optimizer)
        said = sorted(name for name, value in given.items() if value is not None)
        if self.clipping is not None and said:
            raise UsageError(f"{', '.join(said)}: Opacus' optimizer and loader say so themselves; leave it out")
        if self.clipping is None:
            recognised.refuse_engine(engine, optimizer)
        self.loss = _probed(loss, self.clipping, loader)
        self.sampler = None if loader is None else recognised.sampler_of(loader)
        self.accountant = None if engine is None else AccountantWatch(engine)
        self.planted = _planted(loader, planted)
        self.declared = checked_declaration(given)
        told = self.declared["records"]
        if self.planted is not None and told not in (None, len(self.planted)):
            raise UsageError(
                f"records is {told}, and the planted data set has {len(self.planted)} places: leave it out"
            )
        self._require_one_model()
        self._require_fit()

    def _require_one_model(self) -> None:
        """Raise ``UsageError`` where the optimizer steps parameters that the model does not hold."""
        held = {id(p) for p in self.model.parameters()}
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        strange = sum(id(p) not in held for group in groups for p in group["params"])
        if strange:
            raise UsageError(
                f"optimizer: {strange} of its parameters are none of the model's; give the model that it trains, "
                "as make_private returned it"
            )

    def _require_fit(self) -> None:
        """Raise ``UsageError`` where gradient canaries were planted, and cannot enter."""
        if self.planted is not None and self.planted.kind == GRADIENTS:
            batches = None if self.sampler is None else self.sampler.batches
            refuse_unfit(self.clipping, self.optimizer, batches, self.workers)

    @property
    def workers(self) -> int:
        """How many processes load data ahead."""
        return int(getattr(self.loader, "num_workers", 0))

    def noisy_parameters(self) -> list[nn.Parameter]:
        """The parameters that noise is added to: those of Opacus' optimizer, or all that are trained."""
        if self.clipping is not None:
            return list(self.optimizer.params)
        return [p for p in self.model.parameters() if p.requires_grad]

    def gradient_canaries(self) -> GradientCanaries | None:
        """Those that were planted, where canaries are gradients, for a recording that begins now; raises as they do."""
        if self.planted is None or self.planted.kind != GRADIENTS:
            return None
        self._require_fit()  # another recorder may have begun since this one was made
        return GradientCanaries(self.planted, self.noisy_parameters())

    def trained_parameters(self) -> list[nn.Parameter]:
        """Those, and whatever else of the model or of the optimizer is trained."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        inside = [p for group in groups for p in group["params"]]
        trained = [p for p in [*inside, *self.model.parameters()] if p.requires_grad]
        return list({id(p): p for p in trained}.values())

    def layers(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the noisy parameters, in their order."""
        names = {id(p): name.replace("_module.", "") for name, p in self.model.named_parameters()}
        noisy = enumerate(self.noisy_parameters())
        return tuple((names.get(id(p), f"parameter {n}"), p.numel()) for n, p in noisy)

    def learning_rate(self) -> float:
        """The one of all parameter groups; NaN where they differ, or there is none."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        rates = {float(group["lr"]) for group in groups if "lr" in group}
        return rates.pop() if len(rates) == 1 else float("nan")

    def private_options(self) -> dict[str, Any]:
        """The options of Opacus' private sum and of its sampler, by name; none of a loop of its own."""
        if self.clipping is None:
            return {}
        optimizer = self.optimizer
        norms = [optimizer.max_grad_norm, getattr(optimizer, "max_grad_norms", None)]
        norms.append(vars(self.model).get("max_grad_norm"))
        found = {
            "noise_multiplier": optimizer.noise_multiplier,
            "clip_norm": [] if self.clipping == "adaptive" else norms,
            "divisor": optimizer.expected_batch_size,
            "loss_reduction": optimizer.loss_reduction,
        }
        rate = None if self.sampler is None else getattr(self.sampler.batches, "sample_rate", None)
        return found if rate is None else {**found, "rate": rate}

    def header(self, notes: Sequence[str]) -> Header:
        """What is known of the run when its recording begins."""
        optimizer, inner, sampler = self.optimizer, getattr(self.optimizer, "original_optimizer", None), self.sampler
        told, layers = list(notes), self.layers()
        wrapped = type(self.model).__name__
        if wrapped.startswith("GradSampleModule") and self.clipping is None:
            told.append(f"the model is Opacus' {wrapped}, and the optimizer {_kind(optimizer) or 'None'} is not")
        own = self.clipping is None
        expected = getattr(optimizer, "expected_batch_size", None)
        planted = self.planted
        records = self.declared["records"] or (None if sampler is None else sampler.records)
        return Header(
            versions=_versions(),
            source="own-loop" if own else "opacus",
            optimizer=_kind(optimizer),
            inner=_kind(inner),
            model=_kind(getattr(self.model, "_module", self.model)),
            loader=_kind(self.loader),
            sampler="" if sampler is None else sampler.kind,
            clipping=self.clipping or "own",
            scheme="none" if sampler is None else sampler.scheme,
            repeats=largest_multiplicity(getattr(self.planted or self.loader, "dataset", None)),
            rate=None if sampler is None else sampler.rate,
            records=records if planted is None else len(planted),
            batch_size=None if sampler is None else sampler.batch_size,
            workers=self.workers,
            reduction="" if own else str(optimizer.loss_reduction),
            expected_batch_size=None if own or expected is None else float(expected),
            accountant="" if self.accountant is None else self.accountant.mechanism,
            told_before=0 if self.accountant is None else self.accountant.told()[2],
            layers=layers,
            width=width_of([size for _, size in layers]),
            secure=_is_cryptographic(optimizer, self._engine),
            canaries=0 if planted is None else planted.count,
            canary_kind="" if planted is None else planted.kind,
            left_out=0 if planted is None else planted.left_out,
            commitment="" if planted is None else planted.source.commitment,
            canary_seed=None if planted is None else planted.source.seed,
            notes=tuple(told),
        )


def checked_declaration(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the loop says it means to do; ``UsageError`` for numbers that cannot be meant."""
    limits = {"noise_multiplier": (0.0, 1e9, True), "clip_norm": (0.0, 1e9, False), "rate": (0.0, 1.0, False)}
    for name, (low, high, closed) in limits.items():
        value = given[name]
        fits = value is None or (isinstance(value, int | float) and (low < value <= high or (closed and value == low)))
        if not fits or isinstance(value, bool):
            least = f"{'from' if closed else 'above'} {low:g}"
            raise UsageError(f"{name} must be a number {least} to {high:g}, got {value!r}")
    records = given["records"]
    if records is not None and (type(records) is not int or records < 1):
        raise UsageError(f"records must be a whole number from 1 on, got {records!r}")
    return dict(given)


def _probed(loss: Any, clipping: str | None, loader: Any) -> Any:
    """The loss of the sensitivity probe; ``UsageError`` if the probe cannot be made."""
    if loss is None:
        return None
    if not callable(loss):
        raise UsageError(f"loss must be a function of a model and a batch, got {type(loss).__name__}")
    if clipping is None:
        raise UsageError("loss is for Opacus' optimizer: the recorder does not see how another loop forms its sums")
    if not hasattr(getattr(loader, "dataset", None), "__getitem__"):
        raise UsageError("loss needs loader=, over a dataset that can be indexed: the probe fetches records from it")
    return loss


def _planted(loader: Any, given: Any) -> Planted | None:
    """The planted data set that the loader draws from, or that a loop of one's own was given."""
    if given is not None and not isinstance(given, Planted):
        raise UsageError(f"planted must be what dpspec.plant returned, got {type(given).__name__}")
    drawn_from = getattr(loader, "dataset", None)
    if given is not None and loader is not None and drawn_from is not given:
        raise UsageError(
            f"the loader draws from a {_kind(drawn_from)}, not from the planted data set itself: wrap and cut data "
            "before dpspec.plant, so that its places are the loader's"
        )
    return drawn_from if isinstance(drawn_from, Planted) else given


def _is_cryptographic(optimizer: Any, engine: Any) -> bool:
    """Whether noise comes from a generator of torchcsprng: ``secure_mode`` alone adds up draws of torch's own."""
    generator = getattr(optimizer, "generator", None)
    if generator is None or not getattr(optimizer, "secure_mode", False) or "torchcsprng" not in sys.modules:
        return False
    made_by = type(generator).__module__.partition(".")[0]
    return made_by == "torchcsprng" or getattr(engine, "secure_rng", None) is generator


def _kind(thing: Any) -> str:
    return "" if thing is None else type(thing).__name__


def _versions() -> dict[str, str]:
    found = {"dpspec": VERSION, "torch": str(torch.__version__)}
    opacus = sys.modules.get("opacus")
    if opacus is not None:
        found["opacus"] = str(getattr(opacus, "__version__", ""))
    return found
