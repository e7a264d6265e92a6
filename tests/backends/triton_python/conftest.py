"""Makes this folder's helpers importable, and starts the servers that several tests share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def _register(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(file))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


# The adapter's modules import Triton's own module, which exists only inside a stub.
_register("triton_python_backend_utils", "pb_stand_in.py")
_register("fake_engine", "fake_engine.py")
_register("triton_harness", "triton_harness.py")

from triton_harness import Harness, write_fake_repository  # noqa: E402

from pageport.backends.triton_python.server import TritonServer  # noqa: E402


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A real server whose entries `vllm`, `hf` and `bare` run on the fake engine."""
    repository = write_fake_repository(tmp_path_factory.mktemp("fake-repository"))
    with TritonServer(repository, ready_timeout=60.0, stop_timeout=5.0) as server:
        yield Harness(server)
