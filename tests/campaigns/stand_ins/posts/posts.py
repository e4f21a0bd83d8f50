"""Invented posts, a small GPT-2 and a tokenizer of words, in the place of downloads."""

import random
from typing import Any

import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

_TEXT = "a cat sat here and there with some old friends who like long walks in rain"


def model() -> Any:
    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": len(set(_TEXT.split())) + 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def posts() -> Dataset:
    drawn = random.Random(4)
    return Dataset.from_dict({"content": [" ".join(drawn.choices(_TEXT.split(), k=12)) for _ in range(320)]})


def tokenizer() -> Any:
    words = Tokenizer(
        WordLevel({word: number for number, word in enumerate(["<end>", *_TEXT.split()])}, unk_token="<end>")
    )
    words.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<end>")
