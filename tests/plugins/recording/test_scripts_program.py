"""A program under ``dpspec record`` prints, fails and ends as it does under Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpspec.errors import UsageError
from dpspec_recording.scripts.program import Program

FAILING = """
import atexit, sys
def inner():
    raise ValueError("no")
atexit.register(print, "at exit")
inner()
"""

#: By name: the script, and its exit code.
ENDS = {
    "last line": (
        "import sys; print(sys.argv, __name__, __file__, sys.path[0], __spec__, __package__, __doc__)\n"
        "import __main__; print(__main__.sys is sys, sorted(n for n in vars() if n != '__annotations__'))",
        0,
    ),
    "exit code": ("import sys\nprint('before')\nsys.exit(3)", 3),
    "exit text": ("raise SystemExit('a text')", 1),
    "exception": (FAILING, 1),
    "own hook": ("import sys\nsys.excepthook = lambda k, e, t: print(k, e, t.tb_lineno, t.tb_next)\n1 / 0", 1),
    "cause": ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('b') from error", 1),
    "syntax": ("print('x'", 1),
    "interrupt": ("raise KeyboardInterrupt", -2),
    "130": ("import sys; sys.exit(130)", 130),
    "signal": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass", -2),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)\nwhile True: pass", -15),
    "at once": ("import os; print('x', flush=True); os._exit(5)", 5),
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()\nraise ValueError",
        1,
    ),
}


def end(command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )
    lines = [line for line in found.stderr.splitlines() if not line.startswith("dpspec record: nothing was recorded")]
    return found.returncode, found.stdout, lines


@pytest.mark.family
@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_under_python(name, tmp_path):
    text, code = ENDS[name]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "script.py").write_text(text)
    arguments = ["folder/script.py", "--epochs", "3", "-m", "--check"]
    expected = end(arguments, tmp_path)
    assert expected[0] == code
    assert end(["-m", "dpspec", "record", *arguments], tmp_path) == expected


@pytest.mark.family
@pytest.mark.parametrize("name", ["package", "package.part", "package.absent", "absent"])
def test_a_module_ends_as_under_python(name, tmp_path):
    (tmp_path / "package").mkdir()
    text = "import sys; print(sys.argv, __name__, __file__, sys.path[0], __spec__.name, __package__)\n"
    for file in ("__init__", "__main__", "part"):
        (tmp_path / "package" / f"{file}.py").write_text("" if file == "__init__" else text)
    code, out, lines = end(["-m", name, "--epochs", "3"], tmp_path)
    recorded = end(["-m", "dpspec", "record", "-m", name, "--epochs", "3"], tmp_path)
    assert recorded[:2] == (code, out)
    assert bool(lines) == bool(recorded[2]) == ("absent" in name)


def test_the_program_of_the_command_line_searches_the_script_s_folder_first(tmp_path):
    (tmp_path / "beside.py").write_text("print('found')")
    (tmp_path / "script.py").write_text("import beside, sys; print(sys.path[:2])")
    (tmp_path / "dpspec").write_text("import sys\nfrom dpspec.__main__ import main\nsys.exit(main())\n")
    code, out, _ = end([str(tmp_path / "dpspec"), "record", "script.py"], tmp_path)
    assert (code, out.splitlines()[0]) == (0, "found")
    assert out.count(str(tmp_path)) == 1


def test_what_is_no_script_is_refused_before_it_runs(tmp_path):
    with pytest.raises(UsageError, match=r"is a folder: give a script, or -m and a module"):
        Program(str(tmp_path), [], is_module=False)
    with pytest.raises(UsageError, match=r"cannot read the script .*absent.py: No such file"):
        Program(str(tmp_path / "absent.py"), [], is_module=False)


def test_the_exit_code_is_known_after_the_end(tmp_path):
    program = Program(str(Path(__file__)), [], is_module=False)
    codes = []
    for error in (None, SystemExit(), SystemExit(4), SystemExit("text"), ValueError()):
        program.error = error
        codes.append(program.exit_code)
    assert codes == [0, 0, 4, 1, 1]
