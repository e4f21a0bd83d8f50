from __future__ import annotations

import time

import pytest

from dpspec.spec.words import clipped, did_you_mean, number, shown, visible

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
def test_did_you_mean(word: str, meant: str | None) -> None:
    assert did_you_mean(word, KEYS) == meant


def test_of_equally_near_words_the_first() -> None:
    assert did_you_mean("nosie", ["noise_on", "noise_multiplier"]) == "noise_on"
    assert did_you_mean("nosie", ["noise_multiplier", "noise_on"]) == "noise_multiplier"


def test_long_words_are_not_compared() -> None:
    start = time.process_time()
    assert did_you_mean("a" * 100_000, KEYS) is None
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
    [(None, "nothing"), (True, "true"), (2, "2"), ("x", 'text "x"'), ([1], "a list"), ({}, "a map"), ((1,), "a list")],
)
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert visible("a\x1b[31mb\u202ec\nd") == "a\\x1b[31mb\\u202ec\\nd"
    assert visible("naïve 漢字") == "naïve 漢字"
    assert len(clipped("x" * 1000)) == 40
