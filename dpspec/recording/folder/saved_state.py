"""The state of a training at the start of a part, whenever its script saves a checkpoint, and at the end.

Readers join the parts of a training in several jobs by them. They hold digests of data, and are not for publication.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpspec.recording.folder.step_record import UNSEEN, OptionChange, decode_options, encode_options

#: The names of the digests.
DIGESTS = (
    *("parameters", "frozen", "optimizer", "accountant", "data"),
    *("noise_seed", "noise_state", "batch_seed", "batch_state"),
)

#: Largest number of characters of a digest or secret.
_LONGEST = 100


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A state between two steps.

    step: the number of the part's steps before it. digests: by name, "" if unknown: of the trained parameters, of
    everything else in the model, of the optimizer's state, of the accountant's history, of some records, and of the
    seeds and states of the generators of noise and batches. accounted: the accountant's number of steps. fresh: whether
    the optimizer has no state. options: their values, with the origin of a change since the last step. secret: the key
    of the noise's directions and of the records' digest, equal in all parts. facts: as in the end record.
    """

    step: int
    digests: Mapping[str, str]
    accounted: int = 0
    fresh: bool = True
    options: Mapping[str, OptionChange] = field(default_factory=dict)
    secret: str = ""
    facts: Mapping[str, Any] | None = None

    def encode(self) -> bytes:
        written = {**vars(self), "options": encode_options(self.options).decode("utf-8")}
        return json.dumps(written).encode("utf-8")

    @classmethod
    def decode(cls, payload: bytes) -> SavedState:
        """Raises ``ValueError`` for bytes that no recorder writes."""
        try:
            read = json.loads(payload)
        except RecursionError:
            read = None
        if not isinstance(read, dict) or set(read) != set(cls.__dataclass_fields__):
            raise ValueError("a saved state is not a mapping of its parts")
        digests, facts = read["digests"], read["facts"]
        if not isinstance(digests, dict) or set(digests) != set(DIGESTS):
            raise ValueError("a saved state lacks digests, or has others")
        if not all(isinstance(one, str) and len(one) <= _LONGEST for one in (*digests.values(), read["secret"])):
            raise ValueError(f"a digest of a saved state is not a string of at most {_LONGEST} characters")
        if not all(type(read[name]) is int and 0 <= read[name] <= UNSEEN for name in ("step", "accounted")):
            raise ValueError("a saved state has no count of its steps")
        if type(read["fresh"]) is not bool or not isinstance(read["options"], str):
            raise ValueError("a saved state has no options")
        if not (facts is None or isinstance(facts, dict)):
            raise ValueError("the facts of a saved state are not a mapping")
        return cls(**{**read, "options": decode_options(read["options"].encode("utf-8"))})
