"""The recordings of one script: it notices private trainings as they begin, and ends all recordings at its end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.errors import DpspecError, UsageError
from dpspec_recording.notices import say, use_lines
from dpspec_recording.scripts.imported import Imported
from dpspec_recording.scripts.named_values import named_values
from dpspec_recording.scripts.patched_names import ITERATE, LOAD, MAKE_PRIVATE, MAKE_PRIVATE_WITH_EPSILON
from dpspec_recording.scripts.references import kept_dataset, reference_to

if TYPE_CHECKING:
    from dpspec_recording.received_weights import LoadedTensors
    from dpspec_recording.scripts.steps import CountedSteps
    from dpspec_recording.scripts.training import PreparedTraining
    from dpspec_recording.watching.trained_weights import SteppedWeights, TrainedWeights

#: What to do about a training that no library prepares.
OWN_LOOP = (
    "A custom loop needs `with dpspec.record(...) as run` around it, and in each step the calls run.sampled(indices), "
    "run.clipped(norms), run.summed(total), run.noised(noise) and run.stepped(); start it by python, without this "
    "command: docs/how-to/audit-your-own-loop.md#a-loop-without-opacus"
)

#: By the package of a library whose trainings are not recognized, what to do. Nothing of these packages is imported.
OTHER_LIBRARIES = {
    "jax_privacy": (
        "jax-privacy adds the noise inside of compiled functions: a loop needs `with record_steps(...)` around it, and "
        "in it one call steps.report(...) in each step, with independent noise (num_bands=1): "
        "docs/how-to/audit-your-own-loop.md#a-loop-in-jax"
    ),
    "fastDP": (
        "fastDP clips and sums inside of backward passes, under no public name: prepare the training by Opacus' "
        "make_private, or write a loop that reports the sum and the noise: docs/how-to/audit-your-own-loop.md"
    ),
    "flwr": (
        "Flower's strategies with privacy clip whole updates of clients, and the noise is the server's: put "
        "`with RecordedStrategy(strategy, RUN, clients=...)` around the server's rounds, with clipping at the server, "
        "since no server sees whether a client clipped; clients that train privately themselves need Opacus' "
        "make_private: docs/how-to/audit-federated-rounds.md#flower"
    ),
}

#: What to do about Opacus' optimizer without ``make_private``.
OWN_PARTS = (
    "the script made Opacus' optimizer without make_private, so its parts are not known: put `with dpspec.record(RUN, "
    "model=..., optimizer=..., loader=..., engine=...)` around the training, with the accountant as engine"
)

#: What to do about versions of Opacus before 1.0.
OLD_OPACUS = (
    "the script imports a version of Opacus without make_private: only Opacus 1.0 and newer ones are recognized; an "
    "older engine is attached to the optimizer, and its accountant assumes Poisson batches that it does not draw"
)

#: The session of this process.
_current: list[Session] = []


def start(
    folder: Path, *, whole: bool, summary: bool = True, client: bool = False, public: Sequence[str] = ()
) -> Session:
    """Begin to record this process, once; the session ends with the process.

    Args:
        folder: Training N is recorded in its subfolder N.
        whole: Whether the script has not begun.
        summary: Whether the end says where the recordings are.
        client: Whether the script is a client of a federation, or simulates clients: weights that it loads come from a
            server, and trainings on the same records are parts of one recording.
        public: The names of variables of the script that hold public data.
    """
    if not _current:
        _current.append(Session(folder.absolute(), whole=whole, summary=summary, client=client, public=public))
    return _current[0]


class Session:
    """Watches a script by the names of :mod:`dpspec_recording.scripts.patched_names`. Its faults never end the script.

    Attributes:
        trainings: All private trainings that the script prepared, in this order.
        error: The exception that ended the script, or the last cell of a notebook that trained; the user of the session
            sets it.
        after_end: Called when all recordings have ended.
    """

    def __init__(
        self, folder: Path, *, whole: bool, summary: bool, client: bool = False, public: Sequence[str] = ()
    ) -> None:
        """Begin. The arguments are as for :func:`start`."""
        self.folder, self._whole, self._summary, self._public = folder, whole, summary, public
        self.trainings: list[PreparedTraining] = []
        self.error: BaseException | None = None
        self.after_end: Callable[[], None] = lambda: None
        self._steps_of_cells = 0
        self._process, self._lock, self._depth = os.getpid(), threading.RLock(), 0
        self._steps: CountedSteps | None = None
        self._is_client, self._obstacle = client, ""
        self._loaded: LoadedTensors | None = None
        self._earlier: SteppedWeights | None = None
        #: References to the iterators of loaders, and to their datasets.
        self._iterated: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
        #: By folder, the counted steps at the end of the last part.
        self._steps_at_end: dict[Path, list[int]] = {}
        self._undo = contextlib.ExitStack()
        self._imported = Imported({"torch": self._attach_torch, "opacus": self._attach_opacus})
        self._imported.start()
        use_lines(True)
        atexit.register(self.end)
        Finalize(None, self.end, exitpriority=0)  # processes of multiprocessing end without atexit

    def _attach_torch(self, torch: Any) -> None:
        with self._guarded():
            from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

            from dpspec_recording.model_hook import suppressed
            from dpspec_recording.scripts.steps import CountedSteps
            from dpspec_recording.watching.trained_weights import SteppedWeights

            self._steps = CountedSteps()
            self._earlier = None if self._is_client else SteppedWeights()  # a server's weights are trained by clients
            self._undo.callback(register_optimizer_step_post_hook(suppressed(self._stepped)).remove)
            self._undo.callback(register_optimizer_step_pre_hook(suppressed(self._stepping)).remove)
            self._replace(torch.utils.data.DataLoader, ITERATE.name, self._iterating)
            if self._is_client:
                from dpspec_recording.received_weights import LoadedTensors

                self._loaded = LoadedTensors()
                self._replace(torch.nn.Module, LOAD.name, self._loading)

    def _attach_opacus(self, opacus: Any) -> None:
        if not hasattr(opacus.PrivacyEngine, "make_private"):
            self._obstacle = OLD_OPACUS
            return
        with self._guarded():
            for patched in (MAKE_PRIVATE, MAKE_PRIVATE_WITH_EPSILON):
                self._replace(opacus.PrivacyEngine, patched.name, self._preparing)

    def _replace(self, holder: type, name: str, wrapping: Callable[[Any], Any]) -> None:
        """Replace the method of a patched name until the end."""
        from dpspec_recording.watching.step_hooks import put_method

        method = name.rpartition(".")[2]
        self._undo.callback(put_method(holder, method, wrapping(getattr(holder, method))))

    def _preparing(self, method: Any) -> Any:
        @functools.wraps(method)
        def make(engine: Any, *args: Any, **named: Any) -> Any:
            self._depth += 1  # one of the two methods calls the other
            try:
                prepared = method(engine, *args, **named)
            finally:
                self._depth -= 1
            if self._depth == 0:
                with self._guarded():
                    self._prepare(engine, prepared)
            return prepared

        return make

    def _iterating(self, method: Any) -> Any:
        @functools.wraps(method)
        def iterate(loader: Any) -> Any:
            with self._guarded():
                owners = [training for training in self.trainings if training.is_of(loader)]
                waiting = [training for training in reversed(self.trainings) if training.is_waiting]
                if not owners:  # a loader that a trainer built, for the last training that it fits
                    taken = next((training for training in waiting if training.take(loader)), None)
                    owners = [] if taken is None else [taken]
                for training in owners:
                    if training.is_waiting:
                        self._begin(training)
            iterator = method(loader)
            with self._guarded():
                self._iterated = [pair for pair in self._iterated if pair[0]() is not None]
                self._iterated.append((reference_to(iterator), kept_dataset(loader)))
            return iterator

        return iterate

    def _loading(self, method: Any) -> Any:
        @functools.wraps(method)
        def load(module: Any, state_dict: Any, *args: Any, **named: Any) -> Any:
            with self._guarded(), self._lock:
                for training in self.trainings:
                    if training.recorder is not None and training.recorder.steps and training.holds(module):
                        self._suspend(training)
            result = method(module, state_dict, *args, **named)
            with self._guarded():
                if self._loaded is not None:
                    self._loaded.note(module, set(state_dict))
                for training in self.trainings:
                    if training.has_begun and training.holds(module):
                        training.note_load()
            return result

        return load

    def _stepping(self, optimizer: Any, *_: Any) -> None:
        is_private = any(training.optimizer() is optimizer for training in self.trainings)
        if self._earlier is not None and not is_private and not hasattr(optimizer, "original_optimizer"):
            self._earlier.begin(optimizer)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._steps is None or hasattr(optimizer, "original_optimizer"):
            return
        datasets = [dataset for iterator, dataset in self._iterated if iterator() is not None]
        if self._earlier is not None:
            self._earlier.end(optimizer, datasets)
        stepped = [training for training in self.trainings if training.optimizer() is optimizer]
        if not stepped:
            self._steps.add(optimizer, datasets)
            if not self._obstacle and any(hasattr(p, "summed_grad") for p in optimizer.param_groups[0]["params"]):
                self._obstacle = OWN_PARTS
        elif all(training.recorder is None for training in stepped):
            for training in stepped:
                training.missed += 1

    def _prepare(self, engine: Any, prepared: Any) -> None:
        from dpspec_recording.scripts.training import PreparedTraining

        with self._lock:
            self._enter_process()
            training = PreparedTraining(engine, prepared, [peer for peer in self.trainings if peer.has_begun])
            self.trainings.append(training)
            training.wait(
                functools.partial(self._begin_guarded, training), functools.partial(self._begin_inside, training)
            )

    def _begin_guarded(self, training: PreparedTraining) -> None:
        with self._guarded():
            self._begin(training)

    def _begin_inside(self, training: PreparedTraining) -> None:
        """Begin a training whose trainer calls the module inside of Opacus' wrapper, unless a later one shares it."""
        if not any(peer.shares_model_with(training) for peer in self.trainings[self.trainings.index(training) + 1 :]):
            self._begin_guarded(training)

    def _begin(self, training: PreparedTraining) -> None:
        """Begin the recording of a training, or its next part."""
        with self._lock:
            if not training.is_waiting or os.getpid() != self._process or self._steps is None:
                return
            for peer in self.trainings:
                is_together = peer.is_concurrent_with(training) and not self._is_client
                if peer.recorder is not None and not is_together and peer.recorder.steps:
                    self._suspend(peer)
            try:
                self._record(training, first=not training.has_begun)
            except Exception as error:
                stated = isinstance(error, DpspecError)
                training.failure = (
                    str(error) if stated else f"an error of the recorder, {type(error).__name__}: {error}"
                )
                say(f"dpspec record: a training is not recorded: {training.failure}")

    def _record(self, training: PreparedTraining, *, first: bool) -> None:
        earlier = [peer for peer in training.before if peer.has_begun and training.shares_model_with(peer)]
        if first and earlier and earlier[-1].folder is not None:
            with contextlib.suppress(DpspecError):  # of another dataset, for example: a separate training
                self._begin_in(earlier[-1].folder, training, resume=True)
                return
        if first and self._is_client and (folder := self._folder_of_records(training)) is not None:
            with contextlib.suppress(DpspecError):  # of another model
                self._begin_in(folder, training, resume=True)
                return
        folder = training.folder or self._new_folder(training)
        self._begin_in(folder, training, resume=self._is_client or not first)

    def _begin_in(self, folder: Path, training: PreparedTraining, *, resume: bool) -> None:
        assert self._steps is not None
        start, now = self._steps_at_end.get(folder, []), self._steps.now()
        before = self._steps.since(start, now, training.tensors, training.dataset())
        public = self._public_data()
        earlier = () if resume else self._earlier_weights(training)
        training.begin(folder, resume=resume, before=before, received=self._loaded, public=public, earlier=earlier)

    def _earlier_weights(self, training: PreparedTraining) -> list[TrainedWeights]:
        """The weights that the script trained before a training: by other optimizers, and in private trainings."""
        peers = [peer.weights for peer in training.before if peer.weights is not None]
        for weights in peers:
            weights.note()
        return [*peers, *([] if self._earlier is None else self._earlier.until_now())]

    def _public_data(self) -> list[Any]:
        """The public data of the script; without a variable, the training is recorded as without its name."""
        try:
            return named_values(self._public)
        except UsageError as error:
            say(f"dpspec record: {error}: the training is recorded without public data")
            return []

    def _folder_of_records(self, training: PreparedTraining) -> Path | None:
        """The folder of the recording, also of another process, whose dataset has this training's records."""
        from dpspec_recording.folder.recording import earlier_part
        from dpspec_recording.state_watch import digest_of_records

        dataset = training.dataset()
        folders = sorted(entry for entry in self.folder.glob("[1-9]*") if entry.name.isdecimal())
        for folder in folders if dataset is not None else ():
            part = earlier_part(folder, "", 2)
            states = [] if part is None else part.states()
            if states and states[0].digests["data"] == (digest_of_records(dataset, states[0].secret) or None):
                return folder
        return None

    def _suspend(self, training: PreparedTraining) -> None:
        training.end(None)
        self._note_end(training)
        training.wait(functools.partial(self._begin_guarded, training))

    def _note_end(self, training: PreparedTraining) -> None:
        training.steps_at_end = [] if self._steps is None else self._steps.now()
        if training.folder is not None:
            self._steps_at_end[training.folder] = training.steps_at_end

    def _new_folder(self, training: PreparedTraining) -> Path:
        """The folder of a new training, with the next free number; all ranks of one training get the same."""
        number, folder = 0, self.folder
        while folder == self.folder:
            number += 1
            with contextlib.suppress(FileExistsError):
                (self.folder / str(number)).mkdir(parents=True)
                folder = self.folder / str(number)
        if training.is_distributed:
            from dpspec_recording.ranks.group import agreed

            begun = sum(peer.is_distributed and peer.has_begun for peer in self.trainings)
            common = self.folder / agreed(f"dpspec-script/{begun}", str(number))
            if common != folder:
                folder.rmdir()
            return common
        return folder

    def _enter_process(self) -> None:
        """Begin again in a forked process: the trainings of its parent are recorded there."""
        if os.getpid() != self._process:
            self._process, self.trainings, self._lock = os.getpid(), [], threading.RLock()
            Finalize(None, self.end, exitpriority=0)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            say(f"dpspec record: an error of the recorder, {type(error).__name__}: {error}; the script continues")

    def end(self) -> None:
        """End all recordings, and leave no patched name."""
        if os.getpid() != self._process or self not in _current:
            return
        _current.remove(self)
        error = None if self.error is None or isinstance(self.error, SystemExit) else type(self.error)
        for training in self.trainings:
            with self._guarded():
                if training.recorder is not None:
                    training.end(error)
                    self._note_end(training)
                training.stop_waiting()
        for training in self.trainings:
            with self._guarded():
                self._note(training)
        with self._guarded():
            self._undo.close()
        self._imported.stop()
        use_lines(False)
        if self._summary:
            say(f"dpspec record: {self.summary()}")
        self.after_end()

    def after_cell(self, result: Any) -> None:
        """A cell of a notebook has run: after Ctrl-C or an error in it, the training may go on in another cell.

        Args:
            result: IPython's, with the exception that ended the cell.
        """
        steps = sum(
            training.steps + (0 if training.recorder is None else training.recorder.steps)
            for training in self.trainings
        )
        if steps != self._steps_of_cells:
            self._steps_of_cells, self.error = steps, getattr(result, "error_in_exec", None)

    def _note(self, training: PreparedTraining) -> None:
        if self._steps is None or not training.has_begun:
            return
        from dpspec_recording.folder.script_facts import OtherTraining
        from dpspec_recording.recognized import have_common_records

        peers = list[OtherTraining]()
        for peer in self.trainings:
            if peer.folder is None or peer.folder == training.folder:
                continue
            datasets = training.dataset(), peer.dataset()
            common = None if None in datasets else have_common_records(*datasets)
            peers.append(OtherTraining(folder=peer.folder.name, common=common))
        after = self._steps.since(training.steps_at_end, self._steps.now(), training.tensors, training.dataset())
        training.note(whole=self._whole, after=after, peers=tuple(peers))

    @property
    def folders(self) -> list[Path]:
        """The folders of the recordings."""
        recorded = {training.folder: None for training in self.trainings if training.folder is not None}
        return list(recorded)

    @property
    def failures(self) -> list[str]:
        """Why trainings were not recorded."""
        return [training.failure for training in self.trainings if training.failure]

    def summary(self) -> str:
        """The number of recordings, and the next command."""
        names = [os.path.relpath(folder) for folder in self.folders if _has_steps(folder)]
        if self.folders and not names:
            ended = "" if self.error is None else f": {type(self.error).__name__} ended the script"
            return f"no step of a private training was recorded{ended}"
        if len(names) == 1:
            return f"1 training is recorded: dpspec check {names[0]} --epsilon E --delta D"
        if names:
            return f"{len(names)} trainings are recorded: dpspec check {names[0]}, ..., {names[-1]}"
        if self.failures:
            return "nothing was recorded"
        if self.trainings:
            return "nothing was recorded: the script prepared a private training by make_private, and none began"
        reasons = [self._obstacle, *(text for name, text in OTHER_LIBRARIES.items() if name in sys.modules)]
        if obstacles := "; ".join(filter(None, reasons)):
            return f"nothing was recorded: {obstacles}"
        if self.error is not None and not isinstance(self.error, SystemExit):  # its traceback says what to do
            return f"nothing was recorded: {type(self.error).__name__} ended the script before a private training"
        if self._steps is None:
            return f"nothing was recorded: the script did not import torch. {OWN_LOOP}"
        return f"nothing was recorded: no call of make_private of Opacus' PrivacyEngine returned. {OWN_LOOP}"


def _has_steps(folder: Path) -> bool:
    """Whether the recording in a folder, of any part and rank, has a step."""
    from dpspec_recording.folder.reader import has_trained
    from dpspec_recording.folder.writer import INTERNAL

    return any(map(has_trained, folder.rglob(INTERNAL)))
