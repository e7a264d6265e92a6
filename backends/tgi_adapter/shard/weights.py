"""`download-weights`: make sure that a model is on this machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pageport.core import ModelError, resolve_model

logger = logging.getLogger("pageport.tgi")

_OFFLINE = ("1", "true", "yes", "on")


def local_model(model_id: str, revision: str | None, *, download: bool) -> Path:
    """The folder or file of a model: as given where it is on this machine, else from the hub's cache.

    Args:
        model_id: a folder, a .gguf file, `demo`, or a name on the hub.
        download: whether the hub may be asked; never with HF_HUB_OFFLINE.

    Raises:
        ModelError: it is not there and cannot be had.
    """
    if model_id == "demo" or Path(model_id).exists():
        return resolve_model(model_id)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in _OFFLINE
    try:
        folder = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=os.environ.get("WEIGHTS_CACHE_OVERRIDE") or os.environ.get("HUGGINGFACE_HUB_CACHE"),
            local_files_only=offline or not download,
            allow_patterns=["*.json", "*.safetensors", "*.gguf", "*.jinja", "tokenizer.model"],
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model id: {model_id!r} is no folder here and cannot be had from the hub: {error}"
        ) from None
    return Path(folder)


def check_weights(model: Path, extension: str) -> None:
    """Raises ModelError where a folder has no weights that may be loaded; pickled ones never are."""
    if model.is_file() or any(model.glob(f"*{extension}")) or any(model.glob("*.gguf")):
        logger.info("the weights are at %s", model)
        return
    raise ModelError(f"{model} has no {extension} files; weights in pickled files are not loaded")
