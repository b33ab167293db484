"""Helpers of the tests of trace readers: small files, rows as pairs, a tokenizer file that counts
words.
"""

import gzip

import pytest

# Of `vllm bench serve`: two requests that were answered, and one that was refused
BENCH = {
    "input_lens": [7, 9, 5],
    "output_lens": [3, 1, 0],
    "ttfts": [0.25, 0.5, 0.0],
    "itls": [[0.25, 0.5], [], []],
    "start_times": [10.5, 10.0, 11.0],
    "errors": ["", "", "refused"],
}


def put(folder, name, text):
    """The path of a file with this text, packed if its name says so."""
    content = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(folder / name)


def pairs(rows):
    """Prompt and output lengths."""
    return list(zip(rows.prompt_len.tolist(), rows.output_len.tolist(), strict=True))


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer file that counts words, adds one BOS a text, and (wrongly for us) truncates and
    pads.
    """
    tokenizers = pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "?": 1}, unk_token="?"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    built.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    built.enable_truncation(4)
    built.enable_padding(pad_token="?", pad_id=1)
    built.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")
