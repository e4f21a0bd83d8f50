from collections.abc import Callable
from typing import Any

import pytest

from dpspec.contract import Claim
from dpspec.contract.catalog import PROJECT_HINT
from dpspec.language.load import MAX_DIAGNOSTICS, Loaded
from dpspec.language.problems import problems

Load = Callable[..., Loaded]
Problems = Callable[..., list[tuple[str, str, str | None]]]


def test_numbers_take_the_type_of_their_schema(load: Load, valid: str) -> None:
    (spec,) = load(valid.replace("steps: 100", "steps: 100.0").replace("seed: 7", "seed: 7.0")).specs
    assert type(spec.mechanism["steps"]) is int
    assert type(spec.mechanism["noise_multiplier"]) is float
    assert type(spec.document["audit"]["seed"]) is int
    assert type(spec.claims[0]["epsilon"]) is float
    assert type(spec.document["dpspec"]) is int


def test_optional_blocks(load: Load, valid: str) -> None:
    text = valid[: valid.index("audit:")]
    text = text.replace("model: {kind: net}\ntraining: {backend: native, learning_rate: 1}\n", "")
    text = text.replace("threat_model:\n  access: all-iterates\n  group_size: [1, 4]\n", "")
    (one,), (listed,) = load(valid.replace("[1, 4]", "4")).specs, load(valid.replace("[1, 4]", "[4]")).specs
    assert one.digest == listed.digest
    (spec,) = load(text.replace(", group_size: 4", "")).specs
    assert spec.model is None
    assert spec.audit is None
    assert spec.training.kind == "native"
    assert spec.training["learning_rate"] == 0.1
    assert spec.threat_model.group_size == (1,)
    assert spec.threat_model.direction == "both"


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("steps: 100", "steps: 1_000", "wrong-type", 'steps must be an integer, got "1_000"'),
        ("steps: 100", "steps: 1.5", "wrong-type", "steps must be an integer, got 1.5"),
        ("epsilon: 3", "epsilon: .nan", "bad-number", "epsilon must be a finite number, got .nan"),
        ("delta: 1e-5", "delta: 1.5", "out-of-range", "delta must be below 1, got 1.5"),
        ("epsilon: 3", "epsilon: -1e-7", "out-of-range", "epsilon must be at least 0, got -1e-7"),
        ("rate: 0.01", "rate: 2", "out-of-range", "rate must be at most 1, got 2"),
        ("method: one-run", "method: 1", "bad-choice", "1 is not a choice for method"),
        ("[1, 4]", "[4, 4]", "bad-length", "group_size lists 4 twice"),
        ("kind: noisy", "kind: wrecked", "broken-plugin", "dpspec-wreck 0.3 failed to load: ImportError: no hull"),
        ("kind: net", "kind: [net]", "wrong-type", "kind must be a string, got a list"),
        ("backend: native", "backend: nativ", "unknown-kind", "offers backend 'nativ'; did you mean"),
        ("steps: 100", "steps: 100\n  <<: {steps: 3}", "unknown-key", "unknown key '<<' in mechanism"),
        ("method: one-run", "method: one-run\n  stop: settled", "unknown-key", "unknown key 'stop' in audit"),
    ],
)
def test_messages(problems: Problems, old: str, new: str, code: str, message: str) -> None:
    ((found, text, _),) = problems(old, new)
    assert found == code
    assert message in text


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("steps: 100", "steps:", "give it a value, or remove the key"),
        ("model: {kind: net}", "model: bn", "write model: {kind: bn}"),
        ("learning_rate: 1", "optimizer: adamW", "write optimizer: {kind: adamW}"),
    ],
)
def test_hints(problems: Problems, old: str, new: str, hint: str | None) -> None:
    assert [text for _, _, text in problems(old, new)] == [hint]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("rate: 0.01", "rate: 5", "rate must be at most 1, got 5", "5% is 0.05. rate: "),
        ("delta: 1e-5", "delta: 1.5", "delta must be below 1, got 1.5", "delta: "),
        ("epsilon: 3", "epsilon: -1", "epsilon must be at least 0, got -1", "epsilon: "),
        ("learning_rate: 1", "learning_rate: '1,5'", "must be a number", "no decimal comma and no separators"),
        ("learning_rate: 1", "learning_rate: '1,5'", "must be a number", "write 1.5"),
        ("noise_multiplier: 1", "sigma: 1", "'sigma' in mechanism; did you mean 'noise_multiplier'?", "valid keys: "),
        ("steps: 100", "epochs: 20", "'epochs' in mechanism; did you mean 'steps'?", "steps = epochs / rate"),
        ("rate: 0.01", "batch_size: 60", "'batch_size' is not allowed", "; rate = batch size / records"),
        ("steps: 100", "steps: 100\n  - x", "not YAML", "this line is not a key of the map above"),
    ],
)
def test_what_people_write_leads_to_what_they_mean(
    problems: Problems, old: str, new: str, message: str, hint: str
) -> None:
    assert any(message in text and hint in (given or "") for _, text, given in problems(old, new)), problems(old, new)


def test_an_unknown_mechanism_leaves_the_rest_checked(problems: Problems) -> None:
    own = (
        "seed: 7",
        "seed: -7\n  depth: 3",
        "count: 100",
        "count: 100, norm: 2",
        "kind: gdp, mu: 1.5",
        "kind: fairness",
    )
    found = problems("kind: noisy", "kind: other", *own, "epsilon: 3", "epsilon: x, note: y")
    assert [code for code, _, _ in found] == ["unknown-kind", "wrong-type", "out-of-range"]


def test_all_errors_at_once_in_the_order_of_the_file(load: Load, valid: str) -> None:
    text = (
        valid.replace("clip_norm: 1.0", "clip_norm: 0").replace("kind: toy", "kind: toi").replace("mu: 1.5", "nu: 1.5")
    )
    text = text.replace("seed: 7", "seed: 1e999").replace("hidden", "x")
    loaded = load(text)
    assert [(d.code, d.span.line) for d in loaded.diagnostics if d.span] == [
        ("out-of-range", 8),
        ("unknown-kind", 12),
        ("missing-key", 22),
        ("unknown-key", 22),
        ("bad-number", 27),
    ]


def test_what_reading_told_the_schema_does_not_repeat(load: Load, valid: str) -> None:
    loaded = load(valid.replace("epsilon: 3", "epsilon: !!float 3").replace("seed: 7", "seed: !seed {a: 1}"))
    assert [d.code for d in loaded.diagnostics] == ["tag", "tag"]


@pytest.mark.ci
def test_no_more_errors_than_anybody_reads(load: Load, valid: str) -> None:
    loaded = load(valid + "".join(f"key{i}: {i}\n" for i in range(1000)))
    assert len(loaded.diagnostics) == MAX_DIAGNOSTICS
    table = load("".join(f"key{i}: {i}\n" for i in range(1000)))
    assert len(table.diagnostics) == MAX_DIAGNOSTICS + 1
    assert table.diagnostics[-1].code == "more-errors"
    # The alias that contains itself ends the reading after 3000 tags.
    unread = load(f"dpspec: 1\nlist: [{', '.join(['!tag 1'] * 3000)}]\nloop: &loop [*loop]\n")
    assert [len(unread.diagnostics), unread.diagnostics[-1].code] == [MAX_DIAGNOSTICS + 1, "more-errors"]


@pytest.mark.parametrize("kind", ["wrecked", "absent"])
def test_missing_plugins_are_told_apart_from_wrong_specs(load: Load, valid: str, kind: str) -> None:
    text = valid.replace("kind: noisy", f"kind: {kind}")
    assert load(text).missing_plugins
    assert not load(text.replace("kind: toy", "kind: 3")).missing_plugins


class TestRequires:
    def test_met(self, load: Load, valid: str) -> None:
        assert load(valid + 'requires: ["pytest>=1", hypothesis]\n').ok

    @pytest.mark.parametrize(
        ("requirement", "code"),
        [
            ("pytest>=9999", "unmet-requirement"),
            ("dpspec-no-such-thing", "unmet-requirement"),
            ("pytest => 1", "bad-requirement"),
            ("pytest @ https://example.org/pytest.whl", "bad-requirement"),
        ],
    )
    def test_refused(self, load: Load, valid: str, requirement: str, code: str) -> None:
        loaded = load(valid + f'requires: ["{requirement}"]\n')
        assert [d.code for d in loaded.diagnostics] == [code]
        assert loaded.missing_plugins == (code == "unmet-requirement")

    def test_a_kind_that_a_required_package_may_offer(self, load: Load, valid: str) -> None:
        text = valid.replace("kind: noisy", "kind: laplacian") + 'requires: ["dpspec-no-such-thing>=2"]\n'
        (unknown,) = [d for d in load(text).diagnostics if d.code == "unknown-kind"]
        assert unknown.help.endswith(
            "a missing required package may provide it: python -m pip install 'dpspec-no-such-thing>=2'"
        )
        (alone,) = load(text[: text.index("requires")]).diagnostics
        assert "requires" not in alone.help

    @pytest.mark.parametrize(
        ("old", "new", "from_project"),
        [
            ("kind: noisy", "kind: nosiy", False),  # no file of a project defines a mechanism
            ("kind: net", "kind: nett", True),
            ("backend: native", "backend: native, loss: focal", True),
        ],
    )
    def test_a_kind_that_a_file_of_the_project_may_define(self, load, valid, old, new, from_project):
        (unknown,) = load(valid.replace(old, new)).diagnostics
        assert (PROJECT_HINT in unknown.help) == from_project


class TestPhases:
    PHASES = "phases: [{steps: 10}, {steps: 20.0, noise_multiplier: 3, sampling: {scheme: fixed, batch_size: 8}}]"

    def test_each_over_the_block(self, load: Load, valid: str) -> None:
        (spec,) = load(valid.replace("steps: 100", self.PHASES)).specs
        first, second = spec.phases
        common = {"clip_norm": 1.0, "noise_on": "sum"}
        poisson, fixed = {"scheme": "poisson", "rate": 0.01}, {"scheme": "fixed", "batch_size": 8}
        assert first == {**common, "noise_multiplier": 1.0, "sampling": poisson, "steps": 10}
        assert second == {**common, "noise_multiplier": 3.0, "sampling": fixed, "steps": 20}
        assert spec.steps == 30

    def test_what_the_block_lacks_may_stand_in_each_phase(self, load: Load, valid: str) -> None:
        text = valid.replace("  noise_multiplier: 1\n", "")
        good = "phases: [{steps: 1, noise_multiplier: 2}, {steps: 1, noise_multiplier: 3}]"
        assert [p["noise_multiplier"] for p in load(text.replace("steps: 100", good)).specs[0].phases] == [2.0, 3.0]
        bad = load(text.replace("steps: 100", "phases: [{steps: 1, noise_multiplier: 2}, {steps: 1}]"))
        assert [(d.message, d.path) for d in bad.diagnostics] == [
            ("missing key 'noise_multiplier' in mechanism.phases[1]", ("mechanism", "phases", 1))
        ]

    @pytest.mark.parametrize(
        ("phases", "message"),
        [
            ("phases: [{noise_multiplier: 3}]", "missing key 'steps' in mechanism.phases[0]"),
            ("phases: [{steps: 1, stepps: 3}]", "unknown key 'stepps' in mechanism.phases[0]; did you mean 'steps'?"),
            ("phases: [{steps: 1, phases: []}]", "unknown key 'phases' in mechanism.phases[0]"),
            ("steps: 3\n  phases: [{steps: 1}]", "'steps' is not allowed with 'phases': each phase has its own steps"),
            ("phases: [{steps: 1, sampling: {scheme: full, rate: 1}}]", "'rate' is not allowed with scheme full"),
        ],
    )
    def test_refused(self, problems: Problems, phases: str, message: str) -> None:
        assert [text for _, text, _ in problems("steps: 100", phases)] == [message]

    def test_an_error_of_the_block_is_told_once_and_there(self, load: Load, valid: str) -> None:
        loaded = load(valid.replace("steps: 100", self.PHASES).replace("clip_norm: 1.0", "clip_norm: x\n  nosie: 3"))
        assert [(d.message, d.span.line) for d in loaded.diagnostics if d.span] == [
            ('clip_norm must be a number, got "x"', 8),
            ("unknown key 'nosie' in mechanism; did you mean 'noise_multiplier'?", 9),
        ]

    def test_only_for_iterative_mechanisms(self, load: Load, valid: str) -> None:
        head, tail = valid.index("mechanism:"), valid.index("data:")
        text = valid[:head] + "mechanism: {kind: single, scale: 1, phases: [{steps: 1}]}\n" + valid[tail:]
        assert "unknown-key" in {d.code for d in load(text).diagnostics}


@pytest.fixture
def claim(load: Load, valid: str) -> Callable[..., Loaded]:
    def run(text: str, threat_model: str = "{group_size: [1, 4]}") -> Loaded:
        head, middle, tail = valid.index("threat_model:"), valid.index("claims:"), valid.index("audit:")
        assert head < middle < tail
        return load(f"{valid[:head]}threat_model: {threat_model}\nclaims: [{text}]\n{valid[tail:]}")

    return run


def only(loaded: Loaded) -> Claim:
    assert loaded.diagnostics == ()
    (found,) = loaded.specs[0].claims
    return found


@pytest.fixture
def metric(load: Load, valid: str) -> Callable[[str], Loaded]:
    head, middle, tail = valid.index("mechanism:"), valid.index("data:"), valid.index("claims:")

    def run(keys: str) -> Loaded:
        claims = f"claims: [{{kind: metric, {keys}}}]\n"
        return load(valid[:head] + "mechanism: {kind: single, scale: 1}\n" + valid[middle:tail] + claims)

    return run


@pytest.mark.parametrize("name", ["accuracy", "accuracy-same-epsilon", "loss", "almost-mu"])
def test_names_of_metrics(metric: Callable[[str], Loaded], name: str) -> None:
    assert only(metric(f"name: {name}, at_most: 1, about: model")).options["about"] == "model"


@pytest.mark.parametrize("name", ["epsilon", "Delta", "mu", "gamma", "tpr", "advantage", "alpha", "epsilon-total", "ε"])
def test_a_metric_is_not_named_like_a_privacy_quantity(metric: Callable[[str], Loaded], name: str) -> None:
    (found,) = metric(f"name: {name}, at_most: 1").diagnostics
    assert (found.code, found.path) == ("bad-value", ("claims", 0, "name"))
    assert found.span is not None
    assert "pure-dp" in str(found.help)


@pytest.mark.parametrize(("bound", "help"), [("at_least: 80", "such as 0.8"), ("at_most: -0.1", "a fraction")])
def test_an_accuracy_is_a_share(metric: Callable[[str], Loaded], bound: str, help: str) -> None:
    assert only(metric("name: accuracy, at_least: 0.9")).options["name"] == "accuracy"
    (found,) = metric(f"name: accuracy, {bound}").diagnostics
    assert (found.code, found.path) == ("bad-value", ("claims", 0, bound.partition(":")[0]))
    assert help in str(found.help)


def test_scope_keys_and_numbers_are_kept_apart(claim: Callable[..., Loaded]) -> None:
    found = only(
        claim("{id: x, kind: gdp, mu: 1, group_size: 4, record: 3, over: collection, expect: refuted, direction: add}")
    )
    assert found.options == {"mu": 1.0}
    assert (found.group_size, found.record, found.over, found.expect) == (4, 3, "collection", ("refuted",))
    assert (found.adjacency, found.access, found.direction) == ("add-remove", "all-iterates", "add")


def test_scope_defaults_to_the_threat_model(claim: Callable[..., Loaded]) -> None:
    found = only(claim("{kind: gdp, mu: 1}", "{adjacency: zero-out, access: final-model, direction: remove}"))
    assert (found.adjacency, found.access, found.direction) == ("zero-out", "final-model", "remove")
    assert found.expect == ("proved",)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("{epsilon: 1}", ["missing-key"]),
        ("3", ["wrong-type"]),
        ("{kind: aprox-dp, epsilon: 1}", ["bad-choice"]),
        ("{kind: metric, name: accuracy, at_least: 1}", ["claim-not-judged"]),
        ("{kind: metric, name: accuracy}", ["missing-key", "claim-not-judged"]),
        ("{kind: renyi-dp, alpha: 1, epsilon: 1}", ["out-of-range"]),
        ("{kind: tradeoff, points: [{fpr: 0.2, tpr: 0.1}]}", ["bad-value"]),
        ("{kind: membership, tpr: 0.1, fpr: 0.2}", ["bad-value"]),
        ("{kind: membership, advantage: 0.1, tpr: 0.1}", ["conflicting-key"]),
        ("{kind: per-instance-dp, epsilon: 1, delta: 0.1, record: 1, fraction: 0.5}", ["conflicting-key"]),
        ("{kind: per-instance-dp, epsilon: 1, delta: 0.1, fraction: 0.5}", ["missing-key"]),
        ("{kind: gdp, mu: 1, id: a b}", ["bad-format"]),
        ('{kind: gdp, mu: 1, id: "ab\\n"}', ["bad-format"]),
        ("{kind: gdp, mu: 1, expect: prooved}", ["bad-choice"]),
        ("{kind: gdp, mu: 1, expect: []}", ["bad-length"]),
        ("{kind: gdp, mu: 1, group_size: 5}", ["claim-outside-threat-model"]),
        ("{kind: gdp, mu: 1, group_size: 3}", []),
    ],
)
def test_refused(claim: Callable[..., Loaded], text: str, codes: list[str]) -> None:
    assert [d.code for d in claim(text).diagnostics] == codes


@pytest.mark.parametrize(
    ("threat_model", "text", "fits"),
    [
        ("{access: final-model}", "access: all-iterates", False),
        ("{access: all-iterates}", "access: final-model", True),
        ("{direction: add}", "direction: remove", False),
        ("{direction: both}", "direction: remove", True),
    ],
)
def test_claims_narrow_the_threat_model(claim: Callable[..., Loaded], threat_model: str, text: str, fits: bool) -> None:
    found = [d.code for d in claim(f"{{kind: gdp, mu: 1, {text}}}", threat_model).diagnostics]
    assert found == ([] if fits else ["claim-outside-threat-model"])


def test_a_wrong_threat_model_is_told_alone(claim: Callable[..., Loaded]) -> None:
    loaded = claim("{kind: gdp, mu: 1, access: final-model}", "{access: [x], group_size: many}")
    assert [d.code for d in loaded.diagnostics] == ["bad-choice", "wrong-type"]


NUMBER = {"type": "number"}
EITHER = {"anyOf": [{"type": "number", "minimum": 0}, {"enum": ["auto", "none"]}]}
CASES = {
    "if": {"properties": {"mode": {"enum": ["a", "b"]}}, "required": ["mode"]},
    "then": {"properties": {"x": False}},
    "else": {"properties": {"y": False}},
}


@pytest.mark.parametrize(
    ("schema", "value", "code", "message"),
    [
        ({"multipleOf": 8}, 12, "out-of-range", "key must be a multiple of 8, got 12"),
        ({"minLength": 2}, "x", "bad-length", "key must have at least 2 characters, got 1"),
        ({"maxItems": 1}, [1, 2], "bad-length", "key must have at most 1 item, got 2"),
        ({"minProperties": 1}, {}, "bad-length", "key must have at least 1 entry, got 0"),
        ({"const": "x"}, "y", "bad-choice", "'y' is not a choice for key"),
        ({"not": {"const": 3}}, 3, "not-allowed", "key cannot be 3"),
        ({"contains": {"const": 3}}, [1], "not-allowed", "key cannot be a list"),
        ({"type": ["number", "null"]}, "x", "wrong-type", 'key must be a number or null, got "x"'),
        ({"type": "boolean"}, "yes", "wrong-type", 'key must be true or false, got "yes"'),
        (EITHER, -1, "out-of-range", "key must be at least 0, got -1"),
        (EITHER, "atuo", "bad-choice", "'atuo' is not a choice for key; did you mean 'auto'?"),
        (CASES, {"mode": "a", "x": 1}, "conflicting-key", "'x' is not allowed with mode a, b"),
        (CASES, {"y": 1}, "conflicting-key", "'y' is not allowed without mode a, b"),
        ({"properties": {"x": False}}, {"x": 1}, "conflicting-key", "'x' is not allowed here"),
        ({"additionalProperties": NUMBER}, {"x": "y"}, "wrong-type", 'x must be a number, got "y"'),
        ({"items": {"items": NUMBER}}, [[1], [2, "y"]], "wrong-type", 'key[1][1] must be a number, got "y"'),
        ({"propertyNames": {"maxLength": 1}}, {"xy": 1}, "bad-length", "key must have at most 1 character, got 2"),
    ],
)
def test_texts(schema: dict[str, Any], value: Any, code: str, message: str) -> None:
    whole = {"type": "object", "properties": {"key": schema}}
    (found,) = problems(whole, {"key": value}, ("block",))
    assert (found.code, found.message) == (code, message)
    assert found.path[:2] == ("block", "key")


def test_pattern_properties_are_known_keys() -> None:
    schema = {"patternProperties": {"^x-": {}}, "properties": {"y": {}}, "additionalProperties": False}
    (found,) = problems(schema, {"x-a": 1, "y": 2, "z": 3})
    assert found.message.startswith("unknown key 'z' in the spec")


def test_patterns_end_where_the_text_ends() -> None:
    schema = {"pattern": "^[a-z]+$"}
    assert list(problems(schema, "abc")) == []
    assert [d.code for d in problems(schema, "abc\n")] == ["bad-format"]


@pytest.mark.parametrize(
    ("kind", "value", "help"),
    [
        ("string", True, "write it in quotes"),
        ("number", "1e-5", "write it without quotes"),
        ("number", "1/256", "write 0.00390625"),
        ("number", "10^-5", "write 1e-5"),
        ("number", "10%", "write 0.1"),
        ("integer", "1_000", "write 1000"),
        ("integer", "1k", ""),
    ],
)
def test_help_for_values_of_another_type(kind: str, value: Any, help: str) -> None:
    (found,) = problems({"type": kind}, value)
    assert (found.help or "").endswith(help)


def test_an_axis_of_nested_maps_is_shown_as_one_key() -> None:
    schema = {"additionalProperties": {"type": "array"}}
    (found,) = problems(schema, {"mechanism": {"steps": [1, 2]}}, ("matrix",))
    assert found.help == "write the path of an axis as one key: mechanism.steps: [...]"
