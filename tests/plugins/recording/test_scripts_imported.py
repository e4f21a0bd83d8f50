"""A call after the import of a library, which the finder does not import itself."""

import contextlib
import importlib
import importlib.resources
import sys
import threading

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


@pytest.fixture
def import_of_another_thread(tmp_path, monkeypatch):
    """A library whose import by another thread lasts until ``go_on``; it fails if ``go_on.fails``."""
    (tmp_path / "a_slow_library_of_a_test.py").write_text(
        "import threading\n"
        "here = threading.current_thread()\n"
        "begun, go_on = (here.begun, here.go_on) if hasattr(here, 'begun') else (None, None)\n"
        "if begun:\n    begun.set()\n    go_on.wait(10)\n    assert not here.fails\n"
        "VALUE = 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def load():
        with contextlib.suppress(AssertionError):
            importlib.import_module("a_slow_library_of_a_test")

    thread = threading.Thread(target=load)
    thread.begun, thread.go_on, thread.fails = threading.Event(), threading.Event(), False
    thread.start()
    assert thread.begun.wait(10)
    yield thread
    thread.go_on.set()
    thread.join()
    sys.modules.pop("a_slow_library_of_a_test", None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_library_that_another_thread_imports_is_called_for_after_its_code(import_of_another_thread, fails):
    thread, calls = import_of_another_thread, []
    thread.fails = fails
    imported = Imported({"a_slow_library_of_a_test": lambda module: calls.append(module.VALUE)})
    timer = threading.Timer(0.05, thread.go_on.set)
    timer.start()
    try:
        imported.start()  # an import that fails is repeated in this thread
        assert thread.go_on.is_set()
        assert calls == [7]
        assert importlib.import_module("a_slow_library_of_a_test").VALUE == 7
        assert calls == [7]
    finally:
        timer.join()
        imported.stop()
