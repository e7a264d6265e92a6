"""Importing this module makes `pageport` importable from this checkout, on machines where it is not installed.

The folders of the checkout are then the sub-packages of a namespace; an installed package is left as it is.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path

if find_spec("pageport") is None:
    _spec = ModuleSpec("pageport", None, is_package=True)
    _spec.submodule_search_locations = [str(Path(__file__).parents[1])]
    sys.modules["pageport"] = module_from_spec(_spec)
