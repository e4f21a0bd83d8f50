"""What the site takes from outside docs/: the README as its first page, CONTRIBUTING, and the specs."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README, CONTRIBUTING and the specs, but for those that are invalid on purpose."""
    files.append(File.generated(config, "index.md", content=_moved((ROOT / "README.md").read_text("utf-8"), "")))
    for name in sorted(_added()):
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, name, content=_moved(text, name) if name.endswith(".md") else text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links of docs/ that leave it find what was added."""
    return _moved(markdown, f"docs/{page.file.src_uri}") if page.file.abs_src_path else markdown


def _added() -> set[str]:
    specs = (path for path in (ROOT / "specs").rglob("*") if "invalid" not in path.parts)
    return {"CONTRIBUTING.md", *(p.relative_to(ROOT).as_posix() for p in specs if p.suffix in (".md", ".yaml"))}


def _moved(text: str, name: str) -> str:
    """Links of file ``name`` of the repository, where docs/ is the root of the site and all else stands below it.

    A link to what the site does not have, such as source code, becomes its own words.
    """
    here, added = posixpath.dirname(name), _added()
    at = here.removeprefix("docs").lstrip("/") or "."

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        if not target.startswith("docs/") and target not in added:
            return link[1]
        return f"[{link[1]}]({posixpath.relpath(target.removeprefix('docs/'), at)}{link[3] or ''})"

    return _LINK.sub(moved, text)
