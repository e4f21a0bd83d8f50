"""Codes of reading a file: bytes, YAML, scalars."""

from __future__ import annotations

from dpspec.spec.codes.code import Code

CODES = (
    Code(
        name="unreadable",
        summary="a file cannot be read",
        meaning="The spec, or a parent that it extends, does not exist, is a folder, or may not be read.",
        example="extends: _bsae.yaml     # no such file",
        mend="check the path; a parent's path is relative to the file that names it.",
    ),
    Code(
        name="too-large",
        summary="a file is larger than any spec",
        meaning="A spec may have 128 KiB and 20,000 YAML events (values, and the beginnings and ends of lists and "
        "maps). The limits keep a hostile file from occupying the machine.",
        example="$ dpspec validate dataset.yaml     # 50 MB",
        mend="keep data in data files (data kinds npz, csv, idx) and name them in the spec.",
    ),
    Code(
        name="too-deep",
        summary="values are nested too deeply",
        meaning="Lists and maps in a spec may be nested 64 deep, aliases included. No spec needs a tenth of it.",
        example="data: [[[[[[[[[[[[[[[[[[[[[[ ... ]]]]]]]]]]]]]]]]]]]]]]",
        mend="flatten the value.",
    ),
    Code(
        name="encoding",
        summary="a file is not UTF-8 text",
        meaning="Specs are text in UTF-8, with or without a byte-order mark. The place shown is the first byte that is "
        "not.",
        example="description: Caf\\xe9     # Latin-1",
        mend="save the file as UTF-8.",
    ),
    Code(
        name="bad-character",
        summary="a control character in a spec",
        meaning="Control characters, lone surrogates and unusual line separators are refused, written out or as an "
        "escape in quotes: they make what is shown differ from what is read.",
        example='name: "digits\\0"',
        mend="remove the character.",
    ),
    Code(
        name="syntax",
        summary="a file is not YAML",
        meaning="The text cannot be read as YAML. Only the first such place is told: after it, nothing is certain.",
        example="sampling: {scheme: poisson, rate: 0.01     # no closing brace",
        mend="look at the place shown and the line above it: indentation, a missing quote, brace or colon.",
    ),
    Code(
        name="tag",
        summary="a YAML tag",
        meaning="Tags (`!name`, `!!str`) ask the reader to build something other than plain data. A spec holds data "
        "only, so every tag is refused, harmless ones included.",
        example="steps: !!int 100",
        mend="remove the tag; put text in quotes where it would be read as something else.",
    ),
    Code(
        name="alias-bomb",
        summary="aliases unfold to too many values",
        meaning="YAML aliases repeat a value; nested, a few lines become billions of values. A spec may unfold to "
        "20,000.",
        example="a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]     # and so on",
        mend="write the values out, or use a matrix.",
    ),
    Code(
        name="alias-recursion",
        summary="a value contains itself",
        meaning="An alias inside the value that its anchor names makes a value without end.",
        example="data: &data {kind: digits, more: *data}",
        mend="remove the alias.",
    ),
    Code(
        name="duplicate-key",
        summary="a key appears twice in one map",
        meaning="YAML readers keep one of two equal keys and drop the other in silence. The first one is kept here "
        "while the rest of the file is checked.",
        example="noise_multiplier: 1.0\nclip_norm: 1.0\nnoise_multiplier: 0.5",
        mend="keep one of them.",
    ),
    Code(
        name="bad-key",
        summary="a key is not text",
        meaning="Keys are text. A number, true, null, a list or a map cannot be one.",
        example="mechanism:\n  1: poisson",
        mend='put the key in quotes ("1") if it is meant as text.',
    ),
    Code(
        name="bad-number",
        summary="a number that is not finite, or does not fit",
        meaning="NaN and infinities mean nothing in a spec. Whole numbers must fit in 64 bits, others must neither "
        "overflow nor vanish as a 64-bit float.",
        example="epsilon: .inf\ndelta: 1e-400",
        mend="write a number that is meant.",
    ),
    Code(
        name="several-documents",
        summary="more than one YAML document in a file",
        meaning="A file holds one spec. A second document, after `---`, would be dropped in silence by many readers.",
        example="dpspec: 1\n---\ndpspec: 1",
        mend="put each spec in a file of its own, or use a matrix.",
    ),
    Code(
        name="empty-file",
        summary="a file without a value",
        meaning="The file is empty, or holds comments only.",
        example="# nothing but this comment",
        mend="write a spec; `dpspec new spec` begins one.",
    ),
)
