"""A tokenizer of words in the place of one that would be downloaded."""

import zlib


class BertTokenizerFast:
    """Each word is a number below ``vocab_size`` by its CRC."""

    vocab_size = 1000
    pad_token_id = 0

    def __len__(self) -> int:
        return self.vocab_size

    @classmethod
    def from_pretrained(cls, name: str, **_: object) -> "BertTokenizerFast":
        """The tokenizer; the name is ignored."""
        return cls()

    def __call__(self, texts: list[str], truncation: bool, max_length: int) -> dict[str, list[list[int]]]:
        numbers = [[1 + zlib.crc32(word.encode()) % (self.vocab_size - 1) for word in text.split()] for text in texts]
        return {"input_ids": [row[:max_length] if truncation else row for row in numbers]}
