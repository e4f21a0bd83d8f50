"""Trial records in a store that somebody else can write to: what does not fit its digests is never believed."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fuzzing.chance import mutate_bytes, mutate_tree
from support.fuzzing.target import Target

KEY = "ab" * 32

#: The state of a trial in work, beside the store's records.
STATE = "unfinished"


@dataclass(frozen=True)
class Given:
    """Another content of one of a record's files."""

    file: str
    content: bytes


class _Part:
    def state(self) -> Any:
        import numpy as np

        return {"place": np.arange(9.0)}

    def restore(self, state: Any) -> None:
        assert state["place"].sum() == 36.0, "a part remembers something else"


class Records(Target):
    """A stored trial, changed behind the store's back: as bytes, or as a record that vouches for itself."""

    name = "records"

    def warm(self, folder: Path) -> None:
        """One stored trial with an array."""
        import numpy as np

        from dpspec.contract import FrozenMap, Trial

        self._trial = Trial(index=0, evidence=FrozenMap({"hits": 3, "odds": [0.5, 1e-9]}), arrays={"x": np.arange(9.0)})
        place = self._stored(folder)
        self._files = {path.name: path.read_bytes() for path in place.iterdir()}
        self._files[STATE] = self._saved(folder / "work")
        for name, content in self._files.items():
            assert self.feed(Given(name, content), folder) == "believed"

    def case(self, chance: random.Random) -> Given:
        """One of its files with other bytes, or another record under a digest that is right."""
        name = chance.choice(sorted(self._files))
        if name != "record.json" or chance.randrange(2):
            return Given(name, mutate_bytes(chance, self._files[name]))
        from dpspec.contract.frozen import digest

        body = mutate_tree(chance, json.loads(self._files[name]))
        if isinstance(body, dict):
            body.pop("digest", None)
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                body["digest"] = digest(body)
        try:
            return Given(name, json.dumps(body).encode())
        except ValueError:
            return Given(name, b"")

    def feed(self, case: Given, folder: Path) -> str:
        """Read it; a record that is not believed is out of the way and can be stored again."""
        from dpspec.engine.storage.trial_store import Store

        if case.file == STATE:
            return self._resumed(case.content, folder / "work")
        place = self._stored(folder)
        (place / case.file).write_bytes(case.content)
        store = Store(folder / "store")
        found = store.get(KEY)
        if found is not None:
            for array in found.trial.arrays.values():
                array.sum()
            return "believed"
        assert self._stored(folder).is_dir(), "a damaged record is in the way of a good one"
        return "set aside"

    def _saved(self, folder: Path) -> bytes:
        """The state of a run, as it is written."""
        import torch

        self._checkpoint(folder).save(3, torch.arange(40.0), {"part": _Part()})
        (path,) = folder.iterdir()
        return path.read_bytes()

    def _resumed(self, content: bytes, folder: Path) -> str:
        """A run that finds a state believes it whole, or begins anew."""
        import torch

        self._saved(folder)
        (path,) = folder.iterdir()
        path.write_bytes(content)
        found = self._checkpoint(folder).load({"part": _Part()}, torch.zeros(40))
        if found is None:
            return "set aside"
        assert found[0] == 3, "a run goes on from another step"
        assert torch.equal(found[1], torch.arange(40.0)), "a run goes on from another state"
        return "believed"

    def _checkpoint(self, folder: Path) -> Any:
        from dpspec.contract import Resumable
        from dpspec.training.loop.checkpoint import Checkpoint

        return Checkpoint(Resumable(folder=folder, steps=1), lambda: KEY)

    def _stored(self, folder: Path) -> Path:
        from dpspec.contract import FrozenMap
        from dpspec.engine.storage.trial_store import Store

        Store(folder / "store").put(KEY, self._trial, FrozenMap({"device": "cpu"}))
        found = [path.parent for path in (folder / "store").rglob("record.json") if path.parent.name == KEY]
        (place,) = (path for path in found if "damaged" not in path.parts)
        return place
