from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Test folders are not packages: what these tests share is imported as plain modules.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama with 258 tokens and a context of 96."""
    from tiny_model import save_tiny_model

    folder = tmp_path_factory.mktemp("tiny-model")
    save_tiny_model(folder)
    return folder
