"""The page of the privacy statement: its lines and the clauses that ask for them."""

from dpspec.reporters.disclosures import CLAUSES
from dpspec.reporters.statement import SCHEMA
from generator.markdown import cell, table, tidy

FRAMEWORKS = (
    "NIST SP 800-226",
    "How to DP-fy ML",
    "Deployments registry",
    "EDPB Opinion 28/2024",
    "OWASP AISVS",
)

#: The coverage of each line if everything is declared: of a spec that attacks its training and claims its accuracy, of
#: a recorded training, and of recorded federated rounds.
COVERAGES = {
    "privacy-loss": ("checked", "checked", "checked"),
    "risk": ("checked", "checked", "checked"),
    "unit": ("declared", "declared", "declared"),
    "adjacency": ("declared", "declared", "declared"),
    "trust-model": ("declared", "observed", "observed"),
    "released-output": ("declared", "declared", "declared"),
    "mechanism": ("checked", "checked", "checked"),
    "pre-processing": ("declared", "declared", "declared"),
    "accounting": ("checked", "checked", "checked"),
    "tuning": ("declared", "declared", "declared"),
    "earlier-releases": ("declared", "declared", "declared"),
    "data": ("declared", "observed", "observed"),
    "data-collection": ("declared", "declared", "declared"),
    "security": ("declared", "declared", "declared"),
    "floating-point": ("declared", "observed", "observed"),
    "side-channels": ("declared", "declared", "declared"),
    "utility": ("checked", "not covered", "not covered"),
    "bias": ("declared", "declared", "declared"),
    "attacks": ("checked", "not covered", "not covered"),
    "verification": ("declared", "declared", "declared"),
    "versions": ("observed", "observed", "observed"),
    "people": ("declared", "declared", "declared"),
}

HEAD = f"""# The privacy statement

`--report statement=FILE` writes Markdown to publish, `--report statement-json=FILE` the same as JSON
(`{SCHEMA}`) for registries and catalogs, and `--report registry=FILE` a record of the OpenDP Differential Privacy
Deployments Registry. They contain no data-dependent value and no control, and a digest of the rows only if the spec
says `public: true`: a published digest of private rows would confirm a guess of the rows.

Each line has a coverage:

- checked: a bound or a test of the audit carries it.
- observed: the recording of the training saw it.
- declared: the spec or its author states it, and no test is about it.
- not met: a test rejects it.
- not covered: it is not stated.

An audit cannot see the trust model, the collection of the data or who ran the training. The spec can declare them, in
`owner`, `contact`, `system`, [`deployment`](spec.md) and `data.collection`. They change no verdict, digest or stored
trial:

```yaml
owner: Clinic A, data science
contact: privacy@clinic.example
deployment:
  trust_model: central
  operator: B. Person
  curator_type: nonprofit
  intended_use: Triage of visits
  tuning: On public data only
  earlier_releases: None from these data
data:
  kind: csv
  path: visits.csv
  collection: {{name: Visits of 2024, source: One clinic under contract}}
```

For a recorded training, `dpspec check RUN --declare FILE` reads them from a YAML file with these keys (of `data` only
`collection`), and `dpspec.check` has the argument `declare`. A recording shows the trust model, the number types of the
training, its versions, the class of the dataset and the number of records. A declared trust model that the recording
contradicts is "not met".

## A sweep

The cells of a [matrix](spec.md#matrix) share one statement: a row for each cell with its verdicts and digest, and the
lines. A line that differs between cells has the weakest coverage. It states up to three texts with their cells, or the
text of a cell with this coverage and the number of the others. The risk is the highest one. An assumption that not all
cells have begins with its cells. `statement-json` has the claims, lines, assumptions and provenance of each cell. If
you release the model of one cell, publish its statement:
`dpspec run sweep.yaml --set mechanism.noise_multiplier=1.5 --report statement=FILE`, with `--set` for each axis, takes
the trials of the sweep from the store. The choice of the cell is part of the release: see `tuning` below.

## Lines and clauses

Names of sections and items instead of numbers where editions differ: the parts of the pyramid of NIST SP 800-226
(2025), the items of the reporting list in section 5.3 of "How to DP-fy ML" (Ponomareva et al. 2023), the keys of the
registry's schema, the headings of section 3.2 of EDPB Opinion 28/2024 on AI models, and the requirements of
"Membership-Inference Mitigation" in OWASP AISVS 1.0, C11.3. A line is evidence for a clause, not its fulfillment: the
Opinion asks for an assessment of the model by its controller, AISVS 11.3.1 (calibrated outputs) is outside of dpspec,
and 11.3.3 asks for attacks on held-out data that hardly exceed guessing, while a claim allows what its epsilon allows.

Compared with the texts: AISVS 1.0 (11.3.1 to 11.3.3, locked) and the registry's schema, which tests apply to each
record. Compared with summaries by others: the parts of SP 800-226, and the headings of the Opinion. The text of section
5.3 of "How to DP-fy ML" was not available for a comparison, so its items are from memory. Read the originals before you
rely on a row.
"""

BESIDE = """
## Three kinds of runs

The coverage of each line if the spec or `--declare` states every fact. Without a declaration "declared" becomes "not
covered", except for the unit, the adjacency, the released output and the verification, and the data of a spec. Utility
needs a claim of the kind `metric`; attacks on a recorded training need [inserted
canaries](../how-to/canaries-in-a-script.md).
"""

AUTHORS = """
## The authors' own statement

`compute_dp_sgd_privacy_statement` of TensorFlow Privacy 0.9.0 writes the statement for which its documentation refers
to section 5.3. Its items, read in the source, and the lines that have them:
"""

ITEMS = (
    ("number of examples", "`data`"),
    ("batch size, noise multiplier, epochs", "`mechanism`: rate, noise multiplier, steps"),
    (
        "maximum number of examples of a user, and epsilon of users",
        "`unit`; a claim for a group size, or [users](../how-to/audit-users.md)",
    ),
    ("release of all checkpoints", "`released-output`"),
    ("unit, adjacency, delta, accountant", "`unit`, `adjacency`, the table of claims, `accounting`"),
    (
        "epsilon if batches are Poisson samples, and without amplification",
        "`mechanism` has the sampling scheme; other batches get [their own bounds](spec.md) or none",
    ),
    (
        "microbatches double the sensitivity",
        "no line: conformance tests measure the sensitivity of the executed run",
    ),
    (
        "not in that statement",
        "`trust-model`, `pre-processing`, `tuning`, `earlier-releases`, `attacks`, `risk` and the further lines",
    ),
)


def page() -> str:
    """A row for each line of the statement."""
    rows = [
        [f"`{key}`", *(cell(clauses.get(framework, "")) for framework in FRAMEWORKS)]
        for key, clauses in CLAUSES.items()
    ]
    kinds = [[f"`{key}`", *coverages] for key, coverages in COVERAGES.items()]
    beside = table(["line", "spec run", "recorded run", "federated rounds"], kinds)
    authors = table(["item of that statement", "line here"], [list(item) for item in ITEMS])
    return tidy("\n".join([HEAD, *table(["line", *FRAMEWORKS], rows), BESIDE, *beside, AUTHORS, *authors]))
