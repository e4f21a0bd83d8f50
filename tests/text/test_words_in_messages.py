"""How messages show values and names, and what a wrong word was taken for."""

from __future__ import annotations

import time

import pytest

from dpspec.text import clipped, close_matches, closest, did_you_mean, joined, number, shown, visible

KEYS = ["kind", "clip_norm", "noise_multiplier", "noise_on", "sampling", "steps", "phases"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nosie", "noise_multiplier"),
        ("noise_multipler", "noise_multiplier"),
        ("noise-multiplier", "noise_multiplier"),
        ("Noise_Multiplier", "noise_multiplier"),
        ("multiplier", "noise_multiplier"),
        ("clipnorm", "clip_norm"),
        ("clip", "clip_norm"),
        ("step", "steps"),
        ("smapling", "sampling"),
        ("noise_onn", "noise_on"),
        ("colour", None),
        ("x", None),
        ("", None),
    ],
)
def test_what_was_meant(word: str, meant: str | None) -> None:
    assert closest(word, KEYS) == meant


def test_only_close_words_are_suggested() -> None:
    assert closest("foo", ["isotropic-floor", "form"]) is None
    assert closest("--fast", ["--set", "--store"]) is None
    assert closest("dp", ["gdp", "approx-dp"]) == "approx-dp"


def test_of_equally_near_words_the_first() -> None:
    assert closest("nosie", ["noise_on", "noise_multiplier"]) == "noise_on"
    assert closest("nosie", ["noise_multiplier", "noise_on"]) == "noise_multiplier"


def test_long_words_are_not_compared() -> None:
    start = time.process_time()
    assert closest("a" * 100_000, KEYS) is None
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "1e-6"), (1e-12, "1e-12"), (1e22, "1e22"), (0.5, "0.5"), (3, "3"), (1e100, "1e100"), (10, "10")],
)
def test_numbers_as_one_writes_them(value: float, text: str) -> None:
    assert number(value) == text
    assert float(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (2, "2"), ("x", '"x"'), ([1], "a list"), ({}, "a map"), ((1,), "a list")],
)
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert visible("a\x1b[31mb\u202ec\nd") == "a\\x1b[31mb\\u202ec\\nd"
    assert visible("naïve 漢字") == "naïve 漢字"
    assert len(clipped("x" * 1000)) == 40


def test_a_suggestion_ends_a_message() -> None:
    assert did_you_mean("steps") == "; did you mean 'steps'?"
    assert did_you_mean(None) == ""


def test_the_likeliest_come_first() -> None:
    assert close_matches("steps", ["step", "noise", "steps"], 2) == ["steps", "step"]


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_in_a_sentence(words: list[str], text: str) -> None:
    assert joined(words) == text
