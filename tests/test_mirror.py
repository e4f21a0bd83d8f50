"""Nine of ten test files are named after the module or package that they test."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Folders whose files test no module: pages, whole runs, devices, texts and plugins by other authors.
ELSEWHERE = {"docs", "e2e", "gpu", "text", "third_party"}


def packages_of(folder: Path) -> list[Path]:
    """Return the packages that the tests in this folder test."""
    root, parts = TESTS.parent, folder.relative_to(TESTS).parts
    if not parts:
        return [root / "dpspec", TESTS]
    if parts[0] == "plugins":
        return [root / "plugins" / f"dpspec_{parts[1]}"] if parts[1:] else [root / "plugins"]
    return [root / "dpspec" / parts[0], folder]


def names(folder: Path) -> set[str]:
    """Return the names that a test file in this folder may begin with."""
    modules = [path for package in packages_of(folder) for path in package.rglob("*.py") if path.stem[:5] != "test_"]
    packages = {path.parent.name.removeprefix("dpspec_") for path in modules}
    return {path.stem for path in modules} | packages | {folder.name}


@pytest.mark.recorder  # several files have the names of its modules
def test_nine_of_ten_files_are_named_after_what_they_test() -> None:
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path.relative_to(TESTS).parts[0] not in ELSEWHERE]
    allowed = {folder: names(folder) for folder in {path.parent for path in files}}
    other = [
        str(path.relative_to(TESTS))
        for path in files
        if not any((path.stem + "_").startswith(f"test_{name}_") for name in allowed[path.parent])
    ]
    assert len(other) <= len(files) / 10, other
