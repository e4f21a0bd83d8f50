"""The files of the records of a store, which tests count, compare and edit."""

from pathlib import Path

from dpspec.engine.storage.bundle_file import MAX_BYTES, read_bundle
from dpspec.stores import BUNDLE, RECORD


def record_files(store: Path) -> dict[tuple[str, str], bytes]:
    """The content of each file of each record, by key and name."""
    found: dict[tuple[str, str], bytes] = {}
    for file in sorted((store / "trials").glob("*/*")):
        if file.suffix == BUNDLE:
            bundle = read_bundle(file)
            parts = [(key, name) for key, files in bundle.records.items() for name in files]
            found |= {(key, name): bundle.read(key, name, MAX_BYTES) for key, name in parts}
        elif (file / RECORD).is_file():
            found |= {(file.name, part.name): part.read_bytes() for part in file.iterdir()}
    return found


def unbundle(store: Path) -> None:
    """Replace each bundle of a store by its records."""
    for file in sorted((store / "trials").glob(f"*/*{BUNDLE}")):
        bundle = read_bundle(file)
        for key, files in bundle.records.items():
            folder = store / "trials" / key[:2] / key
            folder.mkdir(parents=True, exist_ok=True)
            bundle.extract(key, files, folder)
        file.unlink()
