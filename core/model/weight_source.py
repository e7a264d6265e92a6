"""Where weights are read from: safetensors files or a GGUF, tensor by tensor, under Hugging Face's names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from pageport.core.errors import ModelError


class WeightSource(Protocol):
    """Reads one tensor at a time, so that no second copy of the model is ever in memory."""

    def names(self) -> Iterable[str]: ...

    def read(self, name: str) -> torch.Tensor: ...


class SafetensorsSource:
    """One or several memory-mapped safetensors files of a folder. Pickled weights are never opened."""

    def __init__(self, folder: Path) -> None:
        """Open every file. Raises ModelError where one is missing or damaged."""
        self._stack = contextlib.ExitStack()
        self._homes: dict[str, Any] = {}
        for path in _safetensors_files(folder):
            try:
                file: Any = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error
            self._homes.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def names(self) -> Iterable[str]:
        return self._homes

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._homes[name].get_tensor(name)
        return tensor


def _safetensors_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelError(f"{index} names files that are not there: {', '.join(missing)}")
        return [folder / shard for shard in shards]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    pickled = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)]
    if pickled:
        raise ModelError(
            f"{folder} holds pickled weights only ({', '.join(sorted(pickled))}); loading them could run any code in "
            "them, so convert them to safetensors"
        )
    raise ModelError(f"{folder} holds no model.safetensors and no model.safetensors.index.json")
