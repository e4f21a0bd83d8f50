"""Write JSON values as YAML that dpspec reads as the same values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import yaml

from dpspec.contract import Json, Path
from dpspec.language.yaml_source import read_scalar

#: Commands to runners of continuous integration, at any place of a log.
_COMMAND = re.compile(r"##(?=\w*\[)")

_COMMENT_COLUMN = 40


class _Dumper(yaml.SafeDumper):
    """Quotes text that dpspec, which follows YAML 1.2, would read as a number; lists of scalars stay on one line."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    try:
        quoted = read_scalar(text) != text or not text.isprintable() or "##" in text
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


def _list(dumper: _Dumper, items: Sequence[Json]) -> yaml.Node:
    scalars = not any(isinstance(item, Mapping | list | tuple) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=scalars)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(tuple, _list)


def to_yaml(value: Mapping[str, Json], comment: Callable[[Path], str] | None = None) -> str:
    """In block style; ``comment`` returns the comment of the key at a path."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=float("inf")
    )
    text = _COMMAND.sub(r"\\x23#", text)
    if comment is None:
        return text
    lines = text.splitlines()
    for path, number in _keys(yaml.compose(text, Loader=yaml.SafeLoader), ()):
        if remark := comment(path):
            lines[number] = f"{lines[number].ljust(_COMMENT_COLUMN)}  # {remark}"
    return "".join(f"{line}\n" for line in lines)


def _keys(node: yaml.Node | None, path: Path) -> Iterator[tuple[Path, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            yield (*path, key.value), key.start_mark.line
            yield from _keys(item, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _keys(item, (*path, index))
