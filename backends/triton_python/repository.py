"""Writing a model repository: for the embedded server, for NVIDIA's container, and for people to read."""

from __future__ import annotations

import enum
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.model_names import check_entry_name
from pageport.backends.triton_python.server_files import BACKEND_NAME, MODEL_FILE
from pageport.backends.triton_python.settings import MODEL_JSON
from pageport.core import ConfigError, parse_engine_config, resolve_model

_ABOUT = {
    ContractName.VLLM: "contract vllm: the tensors of Triton's vLLM backend; streams, so it is decoupled",
    ContractName.HF: "contract hf: text_input to text_output, as the transformers tutorial model; one answer",
}


class Layout(enum.StrEnum):
    """Where model.py lies: in the repository, or in a backend's folder that all entries share."""

    PYTHON = "python"
    BACKEND = "backend"


def write_entry(
    repository: Path,
    name: str,
    model: str,
    contract: ContractName,
    *,
    layout: Layout = Layout.PYTHON,
    engine: Mapping[str, Any] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Path:
    """Add one model entry to a repository, which is made where it does not exist; gives the entry's folder.

    Args:
        name: the name under which clients ask for the model.
        model: a model folder, a .gguf file, or `demo`; written as it will be found, absolute.
        engine: engine arguments beyond the model.
        parameters: further settings of the entry, for its config.pbtxt.

    Raises:
        ConfigError: an engine argument is wrong, or the entry exists already.
        ModelError: there is no model at that path.
    """
    check_entry_name(name)
    path = "demo" if model == "demo" else str(resolve_model(model).resolve())
    config = parse_engine_config({**(engine or {}), "model": path})
    entry = repository / name
    if entry.exists():
        raise ConfigError(f"name: there is an entry at {entry} already")
    version = entry / "1"
    version.mkdir(parents=True)
    settings = {"contract": str(contract), **(parameters or {})}
    if layout is Layout.PYTHON:
        shutil.copyfile(MODEL_FILE, version / "model.py")
    values = {"model": path, **{key: getattr(config, key) for key in engine or {}}}
    (version / MODEL_JSON).write_text(json.dumps(values, indent=2, default=str) + "\n", "utf-8")
    (entry / "config.pbtxt").write_text(_config(layout, contract, settings), "utf-8")
    return entry


def _config(layout: Layout, contract: ContractName, settings: Mapping[str, str]) -> str:
    if layout is Layout.PYTHON:
        backend = "# Triton's Python backend loads 1/model.py.\n" + 'backend: "python"'
    else:
        backend = (
            f'# The backend directory has a folder {BACKEND_NAME} with model.py.\nbackend: "{BACKEND_NAME}"'
        )
    parameters = "\n".join(
        f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"
        for key, value in settings.items()
    )
    return f"""\
{backend}

# Inputs, outputs and the transaction policy are filled in by the model when it is loaded.
# {_ABOUT[contract]}.
{parameters}

# The model and the engine's arguments stand in 1/model.json. They may also be given here, as more parameters.

# Batches are formed in the engine, step by step: Triton shall neither gather requests nor queue them.
max_batch_size: 0

# One instance: a second one would be a second engine with its own model and KV cache.
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
