"""Names of model entries: folders in the repository and parts of URLs."""

from __future__ import annotations

import re

from pageport.core import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_entry_name(name: str) -> None:
    """Raises ConfigError for what could not be a folder and a part of a URL."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"name: must be letters, digits, '.', '_' or '-' (given: {name!r:.100})")
