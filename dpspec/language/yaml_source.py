"""Read YAML into a tree with spans, and write it. Hostile files yield diagnostics in bounded time and memory."""

import dataclasses
import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import yaml

from dpspec.contract import Diagnostic, Json, Path, Span
from dpspec.errors import SpecError
from dpspec.regular_files import NotRegularError, read_regular
from dpspec.text import clipped, quoted

#: Value of a node: a scalar, a mapping of nodes or a list of nodes.
Content: TypeAlias = "dict[str, Node] | list[Node] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Node:
    """Containers are never changed in place."""

    value: Content
    span: Span | None = None
    key: Span | None = None


class Origin(dict[Path, Span]):
    """Spans of values by path, and of keys (``keys_at``)."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_at: dict[Path, Span] = {}


def child(node: Node, key: str) -> Node | None:
    return node.value.get(key) if isinstance(node.value, dict) else None


def plain(node: Node) -> Json:
    if isinstance(node.value, dict):
        return {k: plain(v) for k, v in node.value.items()}
    return list(map(plain, node.value)) if isinstance(node.value, list) else node.value


def value_at(block: Json, path: Path) -> Json:
    """None if the path does not exist."""
    for step in path:
        if isinstance(block, list | tuple) and isinstance(step, int):
            block = block[step] if step < len(block) else None
        else:
            block = block.get(step) if isinstance(block, Mapping) else None
    return block


def from_plain(value: Json) -> Node:
    if isinstance(value, Mapping):
        return Node({str(k): from_plain(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return Node([from_plain(v) for v in value])
    return Node(value)


def origin(root: Node) -> Origin:
    spans = Origin()
    nodes: list[tuple[Path, Node]] = [((), root)]
    for path, node in nodes:
        if node.span is not None:
            spans[path] = node.span
        if node.key is not None:
            spans.keys_at[path] = node.key
        if isinstance(node.value, dict | list):
            inner = node.value.items() if isinstance(node.value, dict) else enumerate(node.value)
            nodes.extend(((*path, key), value) for key, value in inner)
    return spans


def claim_ids(root: Node) -> dict[str, int]:
    """Claim N, counted from 1, has the default id ``claim-N``."""
    claims = root.value.get("claims") if isinstance(root.value, dict) else None
    ids: dict[str, int] = {}
    if claims is None or not isinstance(claims.value, list):
        return ids
    for i, claim in enumerate(claims.value):
        id_node = claim.value.get("id") if isinstance(claim.value, dict) else None
        name = id_node.value if id_node is not None and isinstance(id_node.value, str) else f"claim-{i + 1}"
        ids.setdefault(name, i)
    return ids


def locate(diagnostic: Diagnostic, spans: Mapping[Path, Span]) -> Diagnostic:
    """By its path, or the nearest parent key that has a span."""
    if diagnostic.span is not None:
        return diagnostic
    path, at_key = diagnostic.path, diagnostic.at_key
    while True:
        key = spans.keys_at.get(path) if isinstance(spans, Origin) else None
        span = key if at_key and key is not None else spans.get(path)
        if span is not None:
            return dataclasses.replace(diagnostic, span=span)
        if not path:
            return diagnostic
        path, at_key = path[:-1], True  # report a missing value at the key of its block


def source_file(spans: Mapping[Path, Span]) -> str:
    span = spans.get(())
    return span.file if span is not None else ""


#: Extensions of spec files.
SUFFIXES = (".yaml", ".yml")

MAX_BYTES = 128 * 1024

#: Control characters, and line separators that YAML and text editors count differently.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

LINE_END = re.compile("\r\n|\r|\n")


def span_after(before: str, file: str) -> Span:
    """Of the character that follows the text ``before``."""
    lines = LINE_END.split(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.?(nan|inf|infinity)", re.IGNORECASE)
_MAX_INTEGER = 2**63 - 1


def read_scalar(text: str) -> Json:
    """As in the core schema, but ``.nan`` is a string. ``ValueError`` if a number does not fit in 64 bits."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _int(text, 10)
    if _BASED.fullmatch(text):
        return _int(text[2:], 8 if text[1] == "o" else 16)
    if not _FLOAT.fullmatch(text):
        return text
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("is too large for a 64-bit float")
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError("is too small for a 64-bit float: it would become 0")
    return value + 0.0  # turns -0.0 into 0.0, so that equal specs have equal digests


def _int(digits: str, base: int) -> int:
    # Check the length first: int() takes quadratic time and raises its own error from 4,300 digits on.
    value = int(digits, base) if len(digits.lstrip("+-0")) <= 20 else _MAX_INTEGER + 1
    if abs(value) > _MAX_INTEGER:
        raise ValueError("is too large: the largest integer is 9223372036854775807")
    return value


MAX_EVENTS = 20_000
MAX_NODES = 20_000
MAX_DEPTH = 64
_NO_TAG = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file; ``unparsed`` has paths of invalid values, so that the validator does not report them again."""

    file: str
    root: Node | None
    text: str | None
    diagnostics: tuple[Diagnostic, ...] = ()
    unparsed: frozenset[Path] = frozenset()


def read_file(path: FilePath) -> Source:
    name = str(path)

    def problem(code: str, message: str, span: Span | None = None, help: str | None = None) -> Source:
        diagnostic = Diagnostic(code=code, message=message, span=span or Span(name, 1, 1, 1, 1), help=help)
        return Source(file=name, root=None, text=None, diagnostics=(diagnostic,))

    try:
        raw = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return problem("unreadable", "no such file")
    except NotRegularError as error:  # system files such as /proc/self/environ may contain secrets
        code = "too-large" if error.errno == errno.EFBIG else "unreadable"
        return problem(code, f"{error.strerror}; a spec must be a file on disk of at most {MAX_BYTES} bytes")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return problem("unreadable", f"cannot be read: {reason}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", errors="replace")
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8 text"
        return problem("encoding", message, span_after(before, name), "save the file as UTF-8")
    return read_yaml(text, name)


def read_yaml(text: str, file: str, *, line: int = 1) -> Source:
    """``line`` is the number of the text's first line."""
    if forbidden := FORBIDDEN.search(text):
        message = f"character U+{ord(forbidden[0]):04X} is not allowed in a spec"
        span = span_after(text[: forbidden.start()], file)
        diagnostic = Diagnostic(code="bad-character", message=message, span=span, help="remove the character")
        return Source(file=file, root=None, text=text, diagnostics=(diagnostic,))
    reader = _Reader(file, line - 1)
    root: Node | None = None
    try:
        root = reader.read(text)
    except SpecError as error:
        reader.diagnostics += error.diagnostics
    return Source(
        file=file, root=root, text=text, diagnostics=tuple(reader.diagnostics), unparsed=frozenset(reader.unparsed)
    )


class _Loader(yaml.SafeLoader):
    """Limits on events and depth, without type resolution."""

    def __init__(self, text: str, reader: "_Reader") -> None:
        super().__init__(text)
        self._reader = reader
        self._events = 0
        self._depth = 0

    def get_event(self) -> Any:
        event = super().get_event()  # type: ignore[no-untyped-call]
        self._events += 1
        if self._events > MAX_EVENTS:
            raise self._reader.error_at("too-large", f"the file has more than {MAX_EVENTS} YAML events", event)
        if isinstance(event, yaml.CollectionStartEvent):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self._reader.error_at("too-deep", f"values are nested deeper than {MAX_DEPTH} levels", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._depth -= 1
        if getattr(event, "tag", None) == "!":
            event.tag = "! "  # the composer ignores the tag "!"
        return event

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """No tag; :func:`read_scalar` resolves plain scalars by YAML 1.2."""
        return _NO_TAG


@dataclass
class _Reader:
    file: str
    lines_before: int
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unparsed: set[Path] = field(default_factory=set)
    nodes: int = 0

    def read(self, text: str) -> Node:
        loader = None
        try:
            loader = _Loader(text, self)
            loader.get_event()
            if loader.check_event(yaml.StreamEndEvent):
                raise self._empty()
            root = loader.compose_document()
            if not loader.check_event(yaml.StreamEndEvent):
                second = loader.peek_event()  # type: ignore[no-untyped-call]
                message = "a second document begins here; a file contains one spec"
                raise self.error_at("several-documents", message, second)
            if isinstance(root, yaml.ScalarNode) and root.style is None and read_scalar_or_text(root.value) is None:
                raise self._empty()
        except yaml.YAMLError as error:
            raise SpecError([self._syntax(error)]) from None
        except (ValueError, OverflowError):  # an escape outside Unicode such as "\UFFFFFFFF"
            assert loader is not None
            span = self.mark(loader.get_mark())
            message = "an escape in quotes is not a Unicode character"
            raise SpecError([Diagnostic(code="bad-character", message=message, span=span)]) from None
        finally:
            if loader is not None:
                loader.dispose()
        return self._walk(root, (), frozenset())

    def _syntax(self, error: yaml.YAMLError) -> Diagnostic:
        """Locate an error of the parser: open brackets, open quotes and keys without a colon at their beginning."""
        if not isinstance(error, yaml.MarkedYAMLError):
            return Diagnostic(code="syntax", message="not YAML")
        context, problem = error.context or "", error.problem or ""
        begin, end = error.context_mark, error.problem_mark
        message, mark, help = ", ".join(filter(None, (context, problem))), end or begin, None
        if begin is not None and end is not None:
            before = f"before line {end.line + self.lines_before + 1}"
            if context.startswith("while parsing a flow") and end.line > begin.line:
                message, mark = f"this bracket is not closed {before}", begin
            elif "quoted scalar" in context and "end of stream" in problem:
                message, mark = "this quote is not closed", begin
            elif "simple key" in context:
                message, mark = "no ': ' follows this key on its line", begin
        if "'\\t'" in problem:
            help = "replace tabs by spaces"
        elif problem.startswith("mapping values are not allowed"):
            help = "indent the keys of a map equally, and quote a text that contains ': '"
        elif context == "while parsing a block mapping":
            help = "this line is not a key of the map above: indent it as that map, or an item of a list below its key"
        span = self.mark(mark) if mark is not None else None
        return Diagnostic(code="syntax", message=f"not YAML: {clipped(message, 100)}", span=span, help=help)

    def _empty(self) -> SpecError:
        line = self.lines_before + 1
        span = Span(self.file, line, 1, line, 1)
        return SpecError([Diagnostic(code="empty-file", message="the file is empty", span=span)])

    def _walk(self, node: Any, path: Path, parents: frozenset[int]) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error_at("alias-bomb", f"aliases expand to more than {MAX_NODES} values", node)
        if id(node) in parents:
            raise self.error_at("alias-recursion", "this value contains itself through an alias", node)
        if len(parents) > MAX_DEPTH:
            raise self.error_at("too-deep", f"aliases expand to values nested deeper than {MAX_DEPTH} levels", node)
        span = self.span(node)
        if node.tag != _NO_TAG:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!").strip()
            message = f"the tag {quoted(tag)} is not allowed; a spec contains only data"
            self._add_unparsed(
                path, Diagnostic(code="tag", message=message, path=path, span=span, help="remove the tag")
            )
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node, path, span), span)
        inner = parents | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return Node([self._walk(n, (*path, i), inner) for i, n in enumerate(node.value)], span)
        return Node(self._mapping(node, path, inner), span)

    def _mapping(self, node: Any, path: Path, parents: frozenset[int]) -> dict[str, Node]:
        items: dict[str, Node] = {}
        for key_node, value_node in node.value:
            span = self.span(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _NO_TAG:
                message = "keys must be strings without tags, not lists or maps"
                self.diagnostics.append(Diagnostic(code="bad-key", message=message, span=span))
                continue
            text: str = key_node.value
            key = read_scalar_or_text(text) if key_node.style is None else text
            if not isinstance(key, str):
                message = f"{'an empty key' if text == '' else f'the key {text[:40]}'} is not a string"
                hint = f'write "{text[:40]}", in quotes, to make it a string'
                if value_node.value == "":  # {epsilon: 3,5}
                    hint = "give it a value; a number has a decimal point, not a comma"
                self.diagnostics.append(Diagnostic(code="bad-key", message=message, span=span, help=hint))
                continue
            if FORBIDDEN.search(key):
                message = "a key contains a control character"
                self.diagnostics.append(Diagnostic(code="bad-character", message=message, span=span))
                continue
            if key in items:
                first = items[key].key
                where = f"the first is on line {first.line}; keep one" if first else None
                message = f"key {quoted(key)} appears twice"
                self.diagnostics.append(
                    Diagnostic(code="duplicate-key", message=message, path=path, span=span, help=where)
                )
                continue
            items[key] = dataclasses.replace(self._walk(value_node, (*path, key), parents), key=span)
        return items

    def _scalar(self, node: Any, path: Path, span: Span) -> Json:
        text: str = node.value
        if FORBIDDEN.search(text):
            message = "this string contains a control character"
            self._add_unparsed(path, Diagnostic(code="bad-character", message=message, path=path, span=span))
            return text
        if node.style is not None:
            return text
        try:
            return read_scalar(text)
        except ValueError as error:
            message = f"{text if len(text) <= 40 else text[:37] + '...'} {error}"
            self._add_unparsed(path, Diagnostic(code="bad-number", message=message, path=path, span=span))
            return text

    def _add_unparsed(self, path: Path, diagnostic: Diagnostic) -> None:
        self.unparsed.add(path)
        self.diagnostics.append(diagnostic)

    def error_at(self, code: str, message: str, at: Any) -> SpecError:
        return SpecError([Diagnostic(code=code, message=message, span=self.mark(at.start_mark))])

    def span(self, node: Any) -> Span:
        """From its anchor or value to its end."""
        start, end = node.start_mark, node.end_mark
        before = self.lines_before + 1
        return Span(self.file, before + start.line, start.column + 1, before + end.line, end.column + 1)

    def mark(self, mark: Any) -> Span:
        line, column = self.lines_before + mark.line + 1, mark.column + 1
        return Span(self.file, line, column, line, column + 1)


def read_scalar_or_text(text: str) -> Json:
    """0 for a number outside the supported range."""
    try:
        return read_scalar(text)
    except ValueError:
        return 0


#: Commands to runners of continuous integration, at any place of a log.
_COMMAND = re.compile(r"##(?=\w*\[)")


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


def to_yaml(value: Mapping[str, Json]) -> str:
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=float("inf")
    )
    return _COMMAND.sub(r"\\x23#", text)
