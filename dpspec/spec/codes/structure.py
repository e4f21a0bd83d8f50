"""Codes of validating a spec against the schemas of core and plugins."""

from __future__ import annotations

from dpspec.spec.codes.code import Code

CODES = (
    Code(
        name="unsupported-version",
        summary="a version of the spec language that this dpspec does not read",
        meaning="The key `dpspec` states the version of the language. Another version is another language, so nothing "
        "else in the file is judged.",
        example="dpspec: 2",
        mend="write dpspec: 1, or install the dpspec that the spec was written for.",
    ),
    Code(
        name="unknown-key",
        summary="a key that nothing reads",
        meaning="No key is ignored: a misspelt noise multiplier must not leave a default in force. The valid keys are "
        "those of core and of the plugin that the block's kind chooses.",
        example="mechanism: {kind: group, nosie: 1.0}",
        mend="take one of the valid keys, or remove it.",
    ),
    Code(
        name="missing-key",
        summary="a key that must be given",
        meaning="The block cannot be understood without this key, and it has no default.",
        example="mechanism: {kind: group, clip_norm: 1.0}     # how much noise?",
        mend="add the key; `dpspec explain KEY` says what it means.",
    ),
    Code(
        name="wrong-type",
        summary="a value of the wrong type",
        meaning="A number where text is wanted, text where a number is wanted, a list where a map is wanted. Numbers "
        "in quotes are text.",
        example='noise_multiplier: "1.0"',
        mend="write the value in the type that the message names.",
    ),
    Code(
        name="bad-choice",
        summary="a value that is not one of the choices",
        meaning="The key takes one of a few values.",
        example="adjacency: replace_one",
        mend="take one of the valid values.",
    ),
    Code(
        name="out-of-range",
        summary="a number out of range",
        meaning="The number is of the right type and means nothing at this size, such as a probability above 1.",
        example="delta: 1.5",
        mend="write a number in the range that the message names.",
    ),
    Code(
        name="bad-length",
        summary="a text, list or map of the wrong length",
        meaning="A list is empty or too long, a text is, or a list holds the same item twice.",
        example="claims: []",
        mend="add or remove items as the message says.",
    ),
    Code(
        name="bad-format",
        summary="a text that is not written as it must be",
        meaning="Names and ids appear in paths and reports, so they are made of a few kinds of characters.",
        example="id: one record",
        mend="use the characters that the message names, such as one-record.",
    ),
    Code(
        name="conflicting-key",
        summary="two keys that exclude each other",
        meaning="Another key of the same block decides that this one has no meaning there.",
        example="sampling: {scheme: poisson, rate: 0.01, batch_size: 64}",
        mend="remove it, or change the key that excludes it. A value from a parent is removed by writing null.",
    ),
    Code(
        name="not-allowed",
        summary="a value that a schema does not allow",
        meaning="A condition of a plugin's schema is not met that has no more exact message.",
        example="description: ...",
        mend="read the key's description, which the message repeats.",
        stage="environment",
    ),
    Code(
        name="more-errors",
        summary="there are more errors than are shown",
        meaning="The first 50 errors of a file are shown. More than that usually have one cause.",
        example="# a data file given as a spec",
        mend="mend the errors shown and validate again.",
    ),
    Code(
        name="unknown-kind",
        summary="a kind that no installed plugin offers",
        meaning="mechanism.kind, data.kind, model.kind and training.backend choose among what the installed plugins "
        "offer.",
        example="mechanism: {kind: grop}",
        mend="check the spelling, or install the plugin; `dpspec plugins` lists what there is.",
    ),
    Code(
        name="broken-plugin",
        summary="the plugin that a spec needs failed to load",
        meaning="The kind is known to come from a plugin that is installed but cannot be used. Specs that do not need "
        "it are not affected.",
        example="mechanism: {kind: mine}     # whose plugin raises ImportError",
        mend="see `dpspec plugins` for the reason; reinstall or update the plugin.",
        stage="environment",
    ),
    Code(
        name="duplicate-id",
        summary="two claims with one id",
        meaning="Ids name claims in reports, in --set and in a matrix. Claims without one are called claim-1, claim-2, "
        "and so on, by position.",
        example="claims:\n  - {id: main, kind: pure-dp, epsilon: 1}\n  - {id: main, kind: pure-dp, epsilon: 2}",
        mend="rename one of them.",
    ),
    Code(
        name="claim-not-judged",
        summary="a claim that the mechanism's plugin cannot judge",
        meaning="Each mechanism says which kinds of claims it can bound or attack.",
        example="claims: [{kind: rero, kappa: 0.1, gamma: 0.2}]     # for a mechanism that bounds epsilon only",
        mend="claim something that it judges, or choose another mechanism.",
    ),
    Code(
        name="claim-outside-threat-model",
        summary="a claim that goes beyond the threat model",
        meaning="A claim may narrow the threat model: final model instead of all iterates, smaller groups. What goes "
        "beyond it is neither bounded nor attacked, so nothing could decide the claim.",
        example="threat_model: {group_size: [1, 2]}\nclaims: [{kind: pure-dp, epsilon: 9, group_size: 8}]",
        mend="widen the threat model or narrow the claim.",
    ),
)
