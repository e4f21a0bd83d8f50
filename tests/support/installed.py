"""Metadata of distributions that are installed in a folder."""

from pathlib import Path


def expose(folder: Path, distribution: str, plugin: str, module: str, version: str = "1.0") -> None:
    """Write the metadata of a distribution that registers one plugin."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[dpspec]\n{plugin} = {module}\n", encoding="utf-8")
