"""An engine process with a weak spot: it dies of certain prompts. Runs as `python poisoned_engine.py FD`.

A step that has to do with a prompt that begins with token 250 kills the process; with 251 it raises an exception. With
a file named by PAGEPORT_TEST_DIES the process kills itself while it warms up, as long as the file exists.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pageport.core import engine_process
from pageport.core.engine import Engine
from pageport.core.request import RequestOutput

DEADLY, BREAKING = 250, 251


class PoisonedEngine(Engine):
    def step(self) -> list[RequestOutput]:
        first = {progress.request.prompt_token_ids[0] for progress in self._requests.values()}
        if DEADLY in first or Path(os.environ.get("PAGEPORT_TEST_DIES", "/nowhere")).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if BREAKING in first:
            raise ArithmeticError("no step with this")
        outputs: list[RequestOutput] = super().step()
        return outputs


def main() -> int:
    module: Any = engine_process
    module.Engine = PoisonedEngine
    return engine_process.main(int(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
