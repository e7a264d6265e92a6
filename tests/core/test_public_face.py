"""What `pageport.core` promises to the rooms around it."""

from __future__ import annotations

import subprocess
import sys

import pageport.core


def test_every_public_name_loads_and_is_documented() -> None:
    for name in pageport.core.__all__:
        thing = getattr(pageport.core, name)
        assert name == "PositionLogprobs" or thing.__doc__, f"{name} has no docstring"


def test_the_list_is_the_table() -> None:
    assert sorted(pageport.core.__all__) == sorted(pageport.core._HOMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(pageport.core, "Engin")


def test_a_client_imports_no_torch() -> None:
    """An adapter's process starts in a moment and stays small."""
    program = (
        "import sys; from pageport.core import EngineClient, SamplingParams, parse_engine_config; "
        "print([name for name in ('torch', 'numba', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"


def test_block_manager_and_scheduler_import_no_torch() -> None:
    program = "import sys; from pageport.core import scheduler, kv_manager, block_pool; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "False"
