"""The state of a training whenever its script saves it, which a later part must start with.

Scripts save checkpoints by ``state_dict()`` of the model or the optimizer. The recorder then notes digests of the
state, and the facts that it would write at the end, because a killed process writes no end.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dpspec_recording.fingerprints import readable_digest, tensor_digest
from dpspec_recording.folder.events import NotedFacts, OptionChange, SavedState
from dpspec_recording.model_hook import ModelHook
from dpspec_recording.parts import Parts
from dpspec_recording.ranks.group import Group
from dpspec_recording.ranks.rank_watch import data_digest
from dpspec_recording.recognized import inner_module
from dpspec_recording.watching.generators import continued_state, keep, keep_state
from dpspec_recording.watching.optimizer_updates import is_fresh

#: Seconds, and share of the elapsed time, that notes may take; a script that saves at each step is noted at some.
_SECONDS, _SHARE = 2.0, 0.05


def digest_of_records(dataset: Any, secret: str) -> str:
    """The digest of some records of a dataset, at places that follow from a recording's secret; "" if unreadable."""
    return data_digest(Group(0, 1, bytes.fromhex(secret)), dataset)


class StateWatch:
    def __init__(
        self,
        training_parts: Parts,
        trained: Iterable[Tensor],
        frozen: str,
        secret: str,
    ) -> None:
        """frozen: digest of buffers and frozen parameters. secret: of the first part."""
        self._parts, self._inner, self._trained = training_parts, training_parts.inner_optimizer, list(trained)
        self._frozen, self._secret = frozen, secret
        dataset = getattr(training_parts.planted or training_parts.loader, "dataset", None)
        self._data = digest_of_records(dataset, secret) if dataset is not None else ""
        self._started, self._spent, self._busy = time.monotonic(), 0.0, False
        self._noted: Any = None
        self._begun = [self._current(drawing) for drawing in self._drawing()]

    def attach(self, saves: Callable[[], None], undo: contextlib.ExitStack) -> None:
        """Call ``saves`` when the script calls ``state_dict()``, until ``undo`` ends it."""
        hook = ModelHook(lambda *_: None if self._busy else saves())
        for part in (inner_module(self._parts.model), self._inner):
            if part is not None:
                undo.callback(part.register_state_dict_pre_hook(hook).remove)

    def note(self, step: int, options: Mapping[str, OptionChange], write: Callable[[], None]) -> None:
        """Call ``write`` unless it was called for this state, or notes took too long. It may call ``state_dict()``."""
        now, began = (step, repr(options), [p._version for p in self._trained]), time.monotonic()
        if now == self._noted or self._spent > _SECONDS + _SHARE * (began - self._started):
            return
        self._noted, self._busy = now, True
        try:
            write()
        finally:
            self._busy = False
            self._spent += time.monotonic() - began

    @torch.no_grad()
    def state(
        self,
        step: int,
        options: Mapping[str, OptionChange],
        facts: NotedFacts | None = None,
        *,
        start: bool = False,
    ) -> SavedState:
        """The current state. start: whether a later part of the recording begins with it."""
        accountant, inner = self._parts.accountant, self._inner
        history = [] if accountant is None else accountant.history()
        groups = [] if inner is None else inner.param_groups
        entries = [] if inner is None else [inner.state.get(p) for group in groups for p in group["params"]]
        noise, batches = (self._generator(drawing, start=start) for drawing in self._drawing())
        return SavedState(
            step=step,
            digests={
                "parameters": parameters_digest(self._trained),
                "frozen": self._frozen,
                "optimizer": _digest(entries),
                "accountant": hashlib.sha256(json.dumps(history).encode()).hexdigest(),
                "data": self._data,
                "noise_seed": noise[0],
                "noise_state": noise[1],
                "batch_seed": batches[0],
                "batch_state": batches[1],
            },
            accounted=sum(int(steps) for _, _, steps in history),
            fresh=inner is None or is_fresh(inner),
            options=options,
            secret=self._secret,
            facts=facts,
        )

    def end(self) -> None:
        """The recording ends after the last state: a later part may run on from its generators."""
        generators = {}
        for drawing, start in zip(self._drawing(), self._begun, strict=True):
            with contextlib.suppress(RuntimeError, TypeError, AttributeError):
                generator = self._generator_of(drawing)
                if start is not None and id(generator) not in generators:
                    generators[id(generator)] = generator
                    keep(generator, start, self._secret)

    def _drawing(self) -> tuple[Any, Any]:
        """The objects that draw noise and batches."""
        return self._parts.optimizer, None if self._parts.sampler is None else self._parts.sampler.batches

    def _generator_of(self, drawing: Any) -> Any:
        """An object's generator, by default torch's of the model's device."""
        generator = getattr(drawing, "generator", None)
        if generator is not None:
            return generator
        device = self._trained[0].device if self._trained else torch.device("cpu")
        on_host = device.type != "cuda" or drawing is not self._parts.optimizer
        return torch.default_generator if on_host else torch.cuda.default_generators[device.index or 0]

    def _current(self, drawing: Any) -> Tensor | None:
        try:
            state: Tensor = self._generator_of(drawing).get_state()
        except (RuntimeError, TypeError, AttributeError):
            return None
        return state

    def _generator(self, drawing: Any, *, start: bool) -> tuple[str, str]:
        """Digests of the seed and the state of an object's generator; at the start, of the state that it continues."""
        generator = self._generator_of(drawing)
        try:
            state = continued_state(generator, self._secret) if start else generator.get_state()
            if not start:
                keep_state(generator, state)
            return hashlib.sha256(f"seed {generator.initial_seed()}".encode()).hexdigest(), tensor_digest(state)
        except (RuntimeError, TypeError, AttributeError):
            return "", ""


def parameters_digest(trained: Iterable[Tensor]) -> str:
    """The digest of the trained parameters in a saved state."""
    return _digest(trained)


def _digest(values: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for value in values:
        for name, entry in sorted(value.items()) if isinstance(value, dict) else [("", value)]:
            digest = tensor_digest(entry) if isinstance(entry, Tensor) else readable_digest(entry)
            whole.update(f"{name} {digest} ".encode())
        whole.update(b"\n")
    return whole.hexdigest()
