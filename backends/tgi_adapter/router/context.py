"""What the handlers of all routes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.inference import Inference
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.core import EngineClientProtocol


@dataclass(frozen=True, slots=True)
class RouterContext:
    """One router.

    Attributes:
        model_folder: where the tokenizer's configuration and the chat template are.
    """

    settings: RouterSettings
    engine: EngineClientProtocol
    tokenizer: Tokenizer
    model_folder: Path
    inference: Inference
