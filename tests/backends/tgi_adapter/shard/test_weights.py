"""Where a model is found, and what `download-weights` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from pageport.backends.tgi_adapter.shard.weights import check_weights, local_model
from pageport.core import ConfigError, ModelError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What the hub was asked for."""
    asked: list[dict[str, Any]] = []

    def snapshot_download(model_id: str, **options: Any) -> str:
        asked.append({"model_id": model_id, **options})
        if model_id == "nobody/nothing":
            raise huggingface_hub.errors.LocalEntryNotFoundError("not in the cache")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_folder_is_itself(tmp_path: Path, hub: list[dict[str, Any]]) -> None:
    assert local_model(str(tmp_path), "main", download=True) == tmp_path
    assert hub == []


@pytest.mark.parametrize("download", [True, False])
def test_a_name_is_looked_up_on_the_hub(tmp_path: Path, hub: list[dict[str, Any]], download: bool) -> None:
    assert local_model("org/model", "v2", download=download) == tmp_path
    (asked,) = hub
    assert asked["model_id"] == "org/model"
    assert asked["revision"] == "v2"
    assert asked["local_files_only"] is not download
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any("bin" in pattern or "pickle" in pattern for pattern in asked["allow_patterns"])


def test_what_the_hub_does_not_have_is_named(hub: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError, match=r"--model-id: 'nobody/nothing' .* not in the cache"):
        local_model("nobody/nothing", None, download=True)


def test_an_override_of_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEIGHTS_CACHE_OVERRIDE", "/weights")
    with pytest.raises(ConfigError, match="--weights-cache-override"):
        local_model(str(tmp_path), None, download=True)


def test_weights_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"has no \.safetensors files"):
        check_weights(tmp_path, ".safetensors")
    (tmp_path / "model.safetensors").touch()
    check_weights(tmp_path, ".safetensors")


def test_a_gguf_file_is_weights_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    check_weights(local_model(str(file), None, download=False), ".safetensors")
