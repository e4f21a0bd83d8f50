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

## Lines and clauses

Names of sections and items instead of numbers where editions differ: the parts of the pyramid of NIST SP 800-226
(2025), the items of the reporting list in section 5.3 of "How to DP-fy ML" (Ponomareva et al. 2023), the keys of the
registry's schema, the headings of section 3.2 of EDPB Opinion 28/2024 on AI models, and the requirements of
"Membership-Inference Mitigation" in OWASP AISVS 1.0, C11.3. A line is evidence for a clause, not its fulfillment: the
Opinion asks for an assessment of the model by its controller, AISVS 11.3.1 (calibrated outputs) is outside of dpspec,
and 11.3.3 asks for attacks on held-out data that hardly exceed guessing, while a claim allows what its epsilon allows.

Compared with the texts: AISVS 1.0 (11.3.1 to 11.3.3, locked) and the registry's schema, which tests apply to each
record. Compared with summaries by others: the parts of SP 800-226, and the headings of the Opinion. The list of "How to
DP-fy ML" was not compared again. Read the originals before you rely on a row.
"""


def page() -> str:
    """A row for each line of the statement."""
    rows = [
        [f"`{key}`", *(cell(clauses.get(framework, "")) for framework in FRAMEWORKS)]
        for key, clauses in CLAUSES.items()
    ]
    return tidy("\n".join([HEAD, *table(["line", *FRAMEWORKS], rows)]))
