"""Loading the tokenizer of a model folder, without transformers where its own file is enough."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pageport.core.errors import ModelError


def load_tokenizer(path: Path) -> Tokenizer:
    """The fast tokenizer of a folder.

    Truncation and padding that a folder may have switched on are switched off: the engine decides on lengths.

    Raises:
        ModelError: the folder has no tokenizer that the `tokenizers` library can run.
    """
    file = path / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else _converted(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _converted(path: Path) -> Tokenizer:
    """Through transformers, for folders with only the files of a slow tokenizer, and for .gguf files."""
    from transformers import AutoTokenizer

    try:
        if path.suffix == ".gguf":
            loaded = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        else:
            loaded = AutoTokenizer.from_pretrained(path)
        backend = loaded.backend_tokenizer
    except (OSError, ValueError, AttributeError, ImportError) as error:
        raise ModelError(f"tokenizer: none could be loaded from {path}: {error}") from error
    assert isinstance(backend, Tokenizer)
    return backend
