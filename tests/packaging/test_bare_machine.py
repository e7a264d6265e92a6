"""Machines on which nothing can be installed: a copied tree, torch, triton and transformers are enough to decode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_copied_tree_decodes_without_any_of_our_other_dependencies() -> None:
    script = Path(__file__).with_name("bare_decode.py")
    done = subprocess.run(
        [sys.executable, script, ROOT],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n"
