"""Makes this folder's helpers importable."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC would tell of each connection that ends


def _register(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_register("manual_engine")
_register("shard_client")
_register("launched_shard")

from shard_client import Shard, running_shard  # noqa: E402


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    """A shard with chunking, alone in its world."""
    async with running_shard(tmp_path) as shard:
        yield shard


@pytest.fixture
async def plain_shard(tmp_path: Path) -> AsyncIterator[Shard]:
    """A shard without chunking."""
    async with running_shard(tmp_path, support_chunking=False) as shard:
        yield shard
