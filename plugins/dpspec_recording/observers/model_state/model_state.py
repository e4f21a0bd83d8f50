"""The state of a model apart from its trained parameters.

The mistake: a layer keeps values of the records without noise, which the saved model releases::

    class Center(nn.Module):
        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()   # a buffer, or an attribute
            return x - self.mean

Buffers that a pass moves as functions of themselves and the weights read no record:
:mod:`dpspec_recording.watching.moving_buffers` replays the pass on other inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpspec_recording.folder.merging import Names, join_by, union
from dpspec_recording.observers.observer import Observer, Training
from dpspec_recording.outcomes.conditions import stated
from dpspec_recording.outcomes.faults import Fault
from dpspec_recording.outcomes.issue import Issue, Statement, asked, doubted

if TYPE_CHECKING:
    from dpspec_recording.observers.judged_run import JudgedRun, Terms

_UNION = join_by(union)


@dataclass(frozen=True, kw_only=True)
class ModelStateFacts:
    """Names of values that changed during the recording, at most 20 of each kind.

    buffers: in ``state_dict()``, and frozen parameters. state: that name another parameter than at the beginning.
    attributes: of modules, and further buffers. rounded: frozen parameters that changed by rounding alone; coarse: by
    rounding of half precision. unread: buffers that moved without reading a record. options: numbers of torch's layers.
    """

    buffers: Names = field(metadata=_UNION)
    state: Names = field(metadata=_UNION)
    attributes: Names = field(metadata=_UNION)
    rounded: Names = field(metadata=_UNION)
    coarse: Names = field(metadata=_UNION)
    unread: Names = field(metadata=_UNION)
    options: Names = field(default=(), metadata=_UNION)


CHANGED = Fault(
    name="changed-state",
    condition="model-state",
    title="changed model state without noise",
    observed="measured",
    source="https://github.com/meta-pytorch/opacus/issues/472",
    advice=(
        "Running statistics of a layer, means and histories of losses are computed from records: remove "
        "them. State that reads no record, such as a step counter, belongs outside of the recorded model."
    ),
)


class ModelState(Observer[ModelStateFacts]):
    """Compares buffers, frozen parameters and attributes with those at the beginning."""

    name, kind = "model_state", ModelStateFacts

    def start(self, training: Training) -> None:
        """Keep digests of all values."""
        from dpspec_recording.watching.module_values import ModuleValues

        self._training = training
        self._values = ModuleValues(training.script_parts.model, training.trained)
        training.frozen_digest = self._values.digest()
        hook = training.script_parts.model.register_forward_pre_hook(self._values.moving.hook, with_kwargs=True)
        training.undo.callback(hook.remove)

    def before_update(self) -> None:
        """Compare what torch counts as written, and at audited steps also some values of the rest."""
        self._values.compare(audited=self._training.audits.audited)

    def facts(self) -> ModelStateFacts:
        """The values that changed until now."""
        return ModelStateFacts(**{name: tuple(names) for name, names in self._values.changed().items()})

    @staticmethod
    def judge(facts: ModelStateFacts | None, run: JudgedRun) -> Iterator[Statement]:
        """Nothing that ``state_dict()`` holds may change without noise; the rest leaves the condition open."""
        if facts is None:
            yield _doubt("the recording does not compare the attributes of modules")
        elif run.internal is not None:
            names = _shown((*facts.buffers, *facts.state))
            note = ", ".join(names[:5]) or "buffers, frozen and new parameters, extra state"
            advice = f"Buffers, frozen or new parameters changed without noise: {note}. {CHANGED.advice}"
            yield CHANGED.none_found(len(names), note, None, advice=advice)
        if facts is not None and facts.attributes:
            yield _doubt(
                f"buffers or attributes of modules changed during the training: {_first(facts.attributes)}; "
                "state_dict() of the model does not hold them, but a model that is saved as a whole does"
            )
        if facts is not None and facts.coarse:
            yield _doubt(
                f"{', '.join(facts.coarse[:5])} changed by no more than rounding in half precision, as frozen weights "
                "do when adapters are merged and taken out, but a training may be as small: merge copies of the "
                "weights, or merge in float32"
            )
        if facts is not None and facts.unread:
            text = (
                f"{_first(facts.unread)} moved by one pass at each step, as functions of themselves and the weights "
                "(spectral normalization): at audited steps other records moved them by the same bits"
            )
            yield stated("model-state", text=text)
        if run.has_arrays:
            text = "the reported parameters are all of the model: it has no other state, such as running averages"
            yield stated("model-state", text=text)
        if facts is not None and facts.rounded:
            named = ", ".join(facts.rounded[:5])
            text = f"{named} changed by rounding alone, as frozen weights do when adapters are merged and taken out"
            yield stated("model-state", text=text)

    @staticmethod
    def ask(facts: ModelStateFacts | None, run: JudgedRun, terms: Terms) -> Iterator[Issue]:
        """Numbers of layers may change by a schedule."""
        if facts is not None and facts.options:
            text = "which changed during the training (a schedule may)"
            yield asked("model-state", f"no record and no loss changed {_first(facts.options)}, {text}")


def _doubt(text: str) -> Issue:
    return doubted("model-state", text=text)


def _shown(names: Names) -> list[str]:
    """Names without the prefix of Opacus' wrapper."""
    return [name.removeprefix("_module.") for name in names]


def _first(names: Names) -> str:
    return ", ".join(_shown(names)[:5])
