"""Words that version 0.3 renamed: results of version 1 are read, and digests stay."""

from dpspec.contract.diagnostics import rename_in_result, with_old_words


def test_digests_are_those_of_the_old_words() -> None:
    document = {"audit": {"canary_free_run": False, "expect": "no-deviation-found"}, "training": {"backend": "native"}}
    old = {"audit": {"twin": False, "expect": "conforms-within"}, "training": {"backend": "native"}}
    assert with_old_words(document) == old
    assert rename_in_result({"document": with_old_words(document)}) == {"document": document}
    recorded = {"training": {"public_constants": True, "assume": ["x", "fresh-noise"]}}
    new = {"training": {"data_independent_hyperparameters": True, "assume": ["x", "independent-noise"]}}
    assert rename_in_result({"document": recorded}) == {"document": new}


def test_words_of_a_result_are_translated_in_their_places_only() -> None:
    check = {"assumption": "contribution", "test": "contribution", "note": "fresh-noise"}
    channel = {"name": "contribution", "status": "tested", "sources": ["fresh-noise", "x"], "assumes": []}
    finding = {"quantity": "twin", "assumptions": [{"name": "public-constants", "status": "declared"}]}
    document = {"name": "contribution", "audit": {"expect": "conforms-within", "twin": False}}
    data = {"conformance": {"status": "conforms-within"}, "checks": [check], "channels": [channel]}
    found = rename_in_result({**data, "findings": [finding], "document": document})
    assert found["conformance"] == {"status": "no-deviation-found"}
    assert found["checks"] == [{**check, "assumption": "sensitivity"}]
    assert found["channels"] == [{**channel, "sources": ["independent-noise", "x"]}]
    assert found["findings"][0]["assumptions"][0]["name"] == "data-independent-hyperparameters"
    assert found["document"] == {
        "name": "contribution",
        "audit": {"expect": "no-deviation-found", "canary_free_run": False},
    }
