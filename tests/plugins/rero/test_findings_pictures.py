"""Pictures of targets and guesses: kept small, and shown to nobody who did not ask for what is internal."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.rero_attacks import spec_of

from dpspec.contract import FrozenMap, Spec, Trial
from dpspec.engine.redact import redact
from dpspec.engine.results.result import Result
from dpspec.engine.running.runner import run
from dpspec.engine.storage.trial_store import Store
from dpspec.engine.verify import verify
from dpspec.registry.loader import load_catalog
from dpspec.reporters import data_files as json
from dpspec.reporters import page as html
from dpspec_rero import comparison
from dpspec_rero.findings import PICTURED_TRIALS, encode_pictures, picture_series

DIGITS = "data={kind: digits, split: {test: 0.2}}"
SHORT = ("mechanism.steps=2", "audit.runs=10", "mechanism.noise_multiplier=0.3")


def test_pictures_are_on_one_scale_and_thinned_out() -> None:
    records = np.zeros((3, 3, 130, 66), dtype=np.float32)
    records[0, 0, 0, 0], records[1, 2, 3, 3], records[2] = 5.0, np.nan, -1.0
    kept = encode_pictures(records)
    assert kept is not None
    assert kept["shape"] == [44, 22, 3]
    first, second, last = (np.frombuffer(base64.b64decode(p), np.uint8).reshape(44, 22, 3) for p in kept["pixels"])
    assert first[0, 0].tolist() == [255, 42, 42]
    assert second[1, 1].tolist() == [42, 42, 42]
    assert (last == 0).all()


def test_what_is_no_picture_is_not_kept_and_one_grey_value_is() -> None:
    for shape in ((12,), (2, 8, 8), (1, 1, 64), (1, 4, 8, 8)):
        assert encode_pictures(np.zeros((2, *shape), dtype=np.float32)) is None
    kept = encode_pictures(np.ones((1, 2, 2), dtype=np.float32))
    assert kept == {"shape": [2, 2, 1], "pixels": [base64.b64encode(bytes(4)).decode()]}


def trial(index: int, rank: int, **internal: object) -> Trial:
    return Trial(index=index, evidence=FrozenMap({"rank": rank, "internal": internal}))


def test_a_series_of_the_trials_that_kept_pictures(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    kept = {"shape": [2, 2, 1], "pixels": ["AAAA", "AAAB", "AAAC"]}
    assert picture_series(spec, [trial(0, 1), Trial(index=1, evidence=FrozenMap({"rank": 0}))]) is None
    found = picture_series(spec, [trial(0, 1, pictures=kept), trial(1, 0), trial(2, 7, pictures=kept)])
    assert found is not None
    assert found.columns["trial"] == (0, 2)
    assert found.columns["place of the target"] == (2, 8)
    assert found.columns["guess 2"] == ("AAAC", "AAAC")
    assert found.columns["guess 4"] == (None, None)


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "CURVE", ())
        yield


@pytest.fixture(scope="module", params=[True, False], ids=["public", "not public"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Spec, Result, bool]:
    folder = tmp_path_factory.mktemp("pictures")
    data = DIGITS.replace("}}", f"}}, public: {str(request.param).lower()}}}")
    spec = spec_of(folder, data, *SHORT)
    return spec, run([spec], load_catalog(), store=Store(folder / "store"), device="cpu"), request.param


def test_records_that_are_not_public_are_pictured_for_internal_eyes_only(result: tuple[Spec, Result, bool]) -> None:
    _, found, public = result
    (series,) = [series for series in found.audits[0].series if series.name == "reconstructions"]
    assert series.privacy == ("public" if public else "per-record")
    assert len(series.columns["target"]) == PICTURED_TRIALS
    assert series.plot["shape"] == (8, 8, 1)
    framed = sum(place == 1 for place in series.columns["place of the target"])
    assert framed == sum(a == b for a, b in zip(series.columns["target"], series.columns["guess 1"], strict=True)) > 0
    for internal in (True, False):
        shown = public or internal
        page = html.render(found, internal=internal)
        assert page.count("data:image/png;base64,") == (8 * 5 if shown else 0)
        text = json.render_json(found, internal=internal)
        assert ('"pixels"' in text) == shown
    assert [m for m in verify(found if public else redact(found), load_catalog()) if m.differs] == []
