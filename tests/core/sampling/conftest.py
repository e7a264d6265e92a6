from __future__ import annotations

import sys
from pathlib import Path

# The reference beside these tests is a plain module: test folders are not packages.
sys.path.insert(0, str(Path(__file__).parent))
