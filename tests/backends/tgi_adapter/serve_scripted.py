"""A router process over a scripted engine. Arguments: model folder, port, seconds a step, seconds to start, grace."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from router_harness import recorded_settings
from scripted_engine import Script, ScriptedEngine

from pageport.backends.tgi_adapter.router.server import serve
from pageport.core import EngineDeadError, load_tokenizer


class ProcessEngine(ScriptedEngine):
    """Says on standard output what is done to it. A prompt `die` ends it for good."""

    start_s = 0.0

    async def start(self) -> None:
        print("starting", flush=True)
        await asyncio.sleep(self.start_s)
        asyncio.get_running_loop().create_task(self._die_when_asked())

    async def close(self) -> None:
        print(f"closed, {self.num_running} running", flush=True)
        await super().close()

    async def _die_when_asked(self) -> None:
        die = tuple(self._tokenizer.encode("die").ids)
        while not any(request.prompt_ids == die for request in self.submitted):
            await asyncio.sleep(0.01)
        self.die(EngineDeadError("the engine cannot be started again"))


def main() -> int:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    step_s, start_s, grace_s = map(float, sys.argv[3:6])
    engine = ProcessEngine(load_tokenizer(folder), step_s=step_s)
    engine.start_s = start_s
    engine.play(Script(" one two three", eos=False))
    settings = recorded_settings(port=port, graceful_termination_timeout=grace_s)
    return serve(settings, engine, folder)


if __name__ == "__main__":
    sys.exit(main())
