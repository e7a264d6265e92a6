"""Where a model is on this machine, and `download-weights`, which brings it there."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pageport.core import ConfigError, ModelError, resolve_model

logger = logging.getLogger("pageport.tgi")

# What of a hub repository is used. Pickled weights are not: loading them runs code.
_WANTED = ["*.json", "*.safetensors", "*.gguf", "*.jinja", "tokenizer.model"]


def local_model(model_id: str, revision: str | None, *, download: bool) -> Path:
    """The folder or file of a model: as given where it is on this machine, else in the hub's cache.

    The hub's own variables count: HF_HUB_OFFLINE, HUGGINGFACE_HUB_CACHE, HF_TOKEN.

    Args:
        model_id: a folder, a .gguf file, `demo`, or a name on the hub.
        revision: of a name on the hub; a folder has none.
        download: whether the hub may be asked.

    Raises:
        ConfigError: WEIGHTS_CACHE_OVERRIDE is set.
        ModelError: it is not there and cannot be had.
    """
    if os.environ.get("WEIGHTS_CACHE_OVERRIDE"):
        raise ConfigError(
            "--weights-cache-override: not supported; give the folder that holds the weights as --model-id"
        )
    if model_id == "demo" or Path(model_id).exists():
        return resolve_model(model_id)
    # Imported only now: most models are folders, and the hub's library takes its time.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = snapshot_download(
            model_id, revision=revision, local_files_only=not download, allow_patterns=_WANTED
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ModelError(
            f"--model-id: {model_id!r} is no folder or file here, and cannot be had from the hub: {error}"
        ) from None
    return Path(folder)


def check_weights(model: Path, extension: str) -> None:
    """
    Raises:
        ModelError: a folder without weights that can be loaded.
    """
    if model.is_dir() and not any(model.glob(f"*{extension}")):
        raise ModelError(f"{model} has no {extension} files; weights in pickled files are not loaded")
    logger.info("the weights are at %s", model)
