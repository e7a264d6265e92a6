from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama with 258 tokens and a context of 96."""
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from tiny_model import save_tiny_model
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("tiny-model")
    save_tiny_model(folder)
    return folder
