"""An engine process with a weak spot. Runs as `python poisoned_engine.py FD`.

A step that has to do with a prompt that begins with token 251 raises an exception. As long as the file exists that
PAGEPORT_TEST_DIES names, the process ends as soon as it is started: the file says with which status or signal (-9).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

BREAKING = 251


def main() -> int:
    dies = Path(os.environ.get("PAGEPORT_TEST_DIES", "/nowhere"))
    if dies.exists():
        status = int(dies.read_text())
        if status >= 0:
            return status
        os.kill(os.getpid(), -status)
    from pageport.core import engine_process
    from pageport.core.engine import Engine
    from pageport.core.request import RequestOutput

    class PoisonedEngine(Engine):
        def step(self) -> list[RequestOutput]:
            if any(progress.request.prompt_token_ids[0] == BREAKING for progress in self._requests.values()):
                raise ArithmeticError("no step with this")
            outputs: list[RequestOutput] = super().step()
            return outputs

    module: Any = engine_process
    module.Engine = PoisonedEngine
    return engine_process.main(int(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
