"""Loading the tokenizer of a model folder, without transformers where its own file is enough."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pageport.core.errors import ModelError
from pageport.core.gguf_export import build_tokenizer
from pageport.core.gguf_file import GgufFile


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder, or of a .gguf file.

    Truncation and padding that a folder may have switched on are switched off: the engine decides on lengths.

    Raises:
        ModelError: there is no tokenizer that the `tokenizers` library can run.
    """
    file = path / "tokenizer.json"
    if path.suffix == ".gguf":
        tokenizer = build_tokenizer(GgufFile(path))
    elif file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
    else:
        tokenizer = _converted(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _converted(folder: Path) -> Tokenizer:
    """Through transformers, for folders with only the files of a slow tokenizer."""
    from transformers import AutoTokenizer

    try:
        backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except (OSError, ValueError, AttributeError, ImportError) as error:
        raise ModelError(f"{folder} has no tokenizer.json, and nothing that could become one") from error
    assert isinstance(backend, Tokenizer)
    return backend
