"""A call after the import of a library, which the finder does not import itself."""

import importlib
import importlib.resources
import sys

import pytest

from dpspec_recording.scripts.imported import Imported


@pytest.fixture
def library(tmp_path, monkeypatch):
    (tmp_path / "a_library_of_a_test").mkdir()
    (tmp_path / "a_library_of_a_test" / "__init__.py").write_text("VALUE = 7")
    (tmp_path / "a_library_of_a_test" / "data.txt").write_text("content")
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_library_of_a_test"
    sys.modules.pop("a_library_of_a_test", None)


def test_a_library_is_called_for_once_after_its_code(library):
    calls = []
    imported = Imported({library: lambda module: calls.append(module.VALUE)})
    imported.start()
    try:
        assert library not in sys.modules
        module = importlib.import_module(library)
        assert calls == [7]
        assert importlib.resources.files(library).joinpath("data.txt").read_text() == "content"
        assert "exec_module" not in vars(module.__spec__.loader)
        importlib.reload(module)
        assert calls == [7]
    finally:
        imported.stop()
    assert imported not in sys.meta_path


def test_a_loaded_library_is_called_for_at_the_start(library):
    importlib.import_module(library)
    calls = []
    imported = Imported({library: calls.append, "an_absent_library_of_a_test": calls.append})
    imported.start()
    assert [module.__name__ for module in calls] == [library]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("an_absent_library_of_a_test")
    imported.stop()
