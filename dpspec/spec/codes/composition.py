"""Codes of composing a spec: extends, matrix, --set, requires."""

from __future__ import annotations

from dpspec.spec.codes.code import Code

CODES = (
    Code(
        name="bad-extends",
        summary="extends does not name a file beside this one",
        meaning="A spec extends one parent, named by a path relative to its own file, so that a folder of specs can be "
        "moved as a whole.",
        example="extends: /home/me/base.yaml",
        mend="write one relative path, such as _base.yaml or ../base.yaml.",
    ),
    Code(
        name="extends-cycle",
        summary="specs extend one another in a circle",
        meaning="Following the parents of this spec leads back to it.",
        example="extends: a.yaml     # in a.yaml",
        mend="put what they share into a third file that extends nothing.",
    ),
    Code(
        name="extends-depth",
        summary="too many parents",
        meaning="A spec may have 8 parents above it. Longer chains cannot be read by people.",
        example="extends: nine.yaml     # which extends eight.yaml, which extends ...",
        mend="merge some of the parents.",
    ),
    Code(
        name="bad-path",
        summary="a path names no place in the spec",
        meaning="--set and the axes of a matrix name places by dotted paths: keys by name, list items by position from "
        "0, claims also by id. Below a single value, and in a list beyond its end, there is no place.",
        example="$ dpspec run spec.yaml --set claims.famly.epsilon=3",
        mend="write the path of a value; `dpspec show` prints the whole spec.",
    ),
    Code(
        name="bad-matrix",
        summary="a matrix that gives no cells",
        meaning="A matrix is a map from paths to lists of values, or a list of maps from paths to values. No cell may "
        "appear twice, and names, requirements and parents cannot vary.",
        example="matrix: {mechanism.noise_multiplier: 1.0}",
        mend="write a list: matrix: {mechanism.noise_multiplier: [0.8, 1.0]}.",
    ),
    Code(
        name="too-many-cells",
        summary="a matrix with too many cells",
        meaning="A matrix may have 1,000 cells, and all cells together 200,000 values.",
        example="matrix: {audit.seed: [ ... 2000 seeds ... ]}",
        mend="split the spec, or use audit.runs to repeat an attack.",
    ),
    Code(
        name="unmet-requirement",
        summary="a required distribution is missing or too old",
        meaning="The spec's `requires` names distributions with versions, and this installation does not have them.",
        example='requires: ["dpspec>=99"]',
        mend="install the version, as the message says, or change the requirement.",
    ),
    Code(
        name="bad-requirement",
        summary="a requirement that cannot be read",
        meaning="Requirements are written as pip writes them: a distribution and versions. Addresses are not allowed.",
        example='requires: ["dpspec => 1"]',
        mend='write "dpspec>=0.1".',
    ),
)
