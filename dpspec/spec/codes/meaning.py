"""Codes of checking what a spec means: mechanism, data, model and attack together."""

from __future__ import annotations

from dpspec.spec.codes.code import Code

CODES = (
    Code(
        name="bad-value",
        summary="a value that means nothing beside the others",
        meaning="Each value is fine by itself; together they are not: a true-positive rate below the false-positive "
        "rate, a batch larger than the data set.",
        example="sampling: {scheme: fixed, batch_size: 5000}     # of 1437 records",
        mend="change one of the values as the message says.",
        stage="check",
    ),
    Code(
        name="unsupported",
        summary="a combination that is not supported",
        meaning="The mechanism has no theory, or the backend no code, for this combination. It is refused rather than "
        "approximated.",
        example="mechanism: {kind: group, sampling: {scheme: fixed, batch_size: 64}}\n"
        "threat_model: {adjacency: replace-one}",
        mend="choose a combination that the message names.",
        stage="check",
    ),
    Code(
        name="missing-capability",
        summary="a backend that lacks what the attack needs",
        meaning="A backend says what it can show and plant: iterates, logs of sampling and noise, gradient canaries. "
        "The attack needs one that it does not have.",
        example="training: {backend: mine}\naudit: {canary: {space: gradient, count: 1000}}",
        mend="choose an attack that needs less (canary.space: input), or another backend.",
        stage="environment",
    ),
    Code(
        name="same-name",
        summary="two audits of one run have the same name",
        meaning="Verdicts, reports and comparisons tell audits apart by their names.",
        example="$ dpspec run a/forms.yaml b/forms.yaml     # both say name: forms",
        mend="rename one of them, or run them one by one.",
        stage="environment",
    ),
    Code(
        name="data-unreadable",
        summary="a data file cannot be used",
        meaning="The file is absent, has the wrong format or shape, or holds values that are not finite.",
        example="data: {kind: npz, path: trian.npz}",
        mend="check the path, which is relative to the spec, and the file.",
        stage="check",
    ),
    Code(
        name="data-not-at-hand",
        summary="an attack on data that is only declared",
        meaning="Data of kind declared states public facts, from which bounds follow. To train and attack, the rows "
        "are needed.",
        example="data: {kind: declared, records: 60000}\naudit: {method: one-run}",
        mend="remove audit for bounds only, or name the data.",
        stage="check",
    ),
    Code(
        name="model-mismatch",
        summary="a model that does not fit the data",
        meaning="The architecture needs another shape of record or number of classes than the data has.",
        example="data: {kind: breast-cancer}\nmodel: {kind: lenet5}     # needs images",
        mend="choose another model or other data.",
        stage="check",
    ),
    Code(
        name="no-model",
        summary="an attack without a model",
        meaning="An audit trains, and the spec says not what.",
        example="audit: {method: one-run}     # and no model",
        mend="add model, or remove audit for bounds only.",
        stage="check",
    ),
    Code(
        name="group-too-large",
        summary="a group larger than the data set",
        meaning="A threat model or a claim speaks of more records changing together than there are.",
        example="threat_model: {group_size: 5000}     # of 1437 records",
        mend="name smaller groups.",
        stage="check",
    ),
    Code(
        name="no-noise",
        summary="a mechanism without noise",
        meaning="Without noise no epsilon holds. The spec is valid, as a control that must be refuted, "
        "so this is a warning.",
        example="mechanism: {kind: group, noise_multiplier: 0}",
        mend="give a noise multiplier above 0, unless the spec is such a control.",
        stage="remark",
    ),
)
