"""The life of the process around the server: one engine, until a signal or until there is no engine any more."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from manual_engine import ManualEngine, byte_tokenizer, until

from pageport.backends.tgi_adapter.shard import serve as serve_module
from pageport.backends.tgi_adapter.shard.serve import serve
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.cli import tgi_server
from pageport.core import EngineConfig, EngineDeadError, ModelError, PageportError


class MortalEngine(ManualEngine):
    """Dies when it is told to.

    Attributes:
        refuses: what its start raises.
        is_slow: its start does not return.
    """

    refuses: PageportError | None = None
    is_slow = False

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(byte_tokenizer())
        self.death: asyncio.Future[PageportError] = asyncio.get_running_loop().create_future()
        self.starting = False
        self.closed = False
        engines.append(self)

    async def start(self) -> None:
        self.starting = True
        if self.refuses is not None:
            raise self.refuses
        if self.is_slow:
            await asyncio.Event().wait()

    async def wait_dead(self) -> PageportError:
        return await self.death

    async def close(self) -> None:
        self.closed = True


engines: list[MortalEngine] = []


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tokenizer; the engine of whoever serves it is a `MortalEngine`."""
    engines.clear()
    monkeypatch.setattr(serve_module, "EngineClient", MortalEngine)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


async def test_a_signal_ends_it_well(model: Path) -> None:
    settings = ShardSettings(str(model / "tgi"))
    serving = asyncio.ensure_future(serve(EngineConfig(model), settings))
    await until((model / "tgi-0").exists)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving is None
    assert not (model / "tgi-0").exists()
    assert engines[0].closed


async def test_it_ends_when_there_is_no_engine_any_more(model: Path) -> None:
    serving = asyncio.ensure_future(serve(EngineConfig(model), ShardSettings(str(model / "tgi"))))
    await until((model / "tgi-0").exists)
    reason = EngineDeadError("the engine died 3 times in a row before it could serve")
    engines[0].death.set_result(reason)
    assert await serving is reason
    assert not (model / "tgi-0").exists()
    assert engines[0].closed


async def test_an_engine_that_never_starts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MortalEngine, "refuses", ModelError("no weights"))
    with pytest.raises(ModelError, match="no weights"):
        await serve(EngineConfig(model), ShardSettings(str(model / "tgi")))
    assert engines[0].closed
    assert not (model / "tgi-0").exists()


async def test_a_signal_before_it_serves(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MortalEngine, "is_slow", True)
    serving = asyncio.ensure_future(serve(EngineConfig(model), ShardSettings(str(model / "tgi"))))
    await until(lambda: bool(engines) and engines[0].starting)
    os.kill(os.getpid(), signal.SIGINT)
    assert await serving is None
    assert engines[0].closed


async def test_a_socket_that_cannot_be_bound(model: Path) -> None:
    with pytest.raises((RuntimeError, OSError)):
        await serve(EngineConfig(model), ShardSettings(str(model / "nowhere" / "tgi")))
    assert engines[0].closed


def test_the_reason_of_the_end_is_on_standard_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def dies(*_: object) -> PageportError:
        return EngineDeadError("the engine died 3 times in a row before it could serve")

    monkeypatch.setattr(tgi_server, "serve_shard", dies)
    monkeypatch.setattr(tgi_server, "log_for_launcher", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["text-generation-server", "serve", str(model)])
    with pytest.raises(SystemExit) as exit_:
        tgi_server.main()
    assert exit_.value.code == 1
    assert capsys.readouterr().err == ("pageport: the engine died 3 times in a row before it could serve\n")


def test_every_flag_is_taken_and_unknown_ones_are_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served: list[tuple[EngineConfig, ShardSettings]] = []

    async def remembers(config: EngineConfig, settings: ShardSettings) -> None:
        served.append((config, settings))

    monkeypatch.setattr(tgi_server, "serve_shard", remembers)
    monkeypatch.setattr(tgi_server, "log_for_launcher", lambda *_, **__: None)
    flags = (
        "--uds-path /tmp/prefix --logger-level WARN --json-output --trust-remote-code --sharded --speculate 2 "
        "--dtype bfloat16 --kv-cache-dtype fp8_e5m2 --revision main --otlp-endpoint http://x --otlp-service-name x "
        "--max-input-tokens 200 --flag-of-tomorrow 3"
    )
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("PAGEPORT_BLOCK_SIZE", "32")
    monkeypatch.setattr(sys, "argv", ["text-generation-server", "serve", str(model), *flags.split()])
    with pytest.raises(SystemExit) as exit_:
        tgi_server.main()
    assert exit_.value.code == 0
    assert served == [
        (
            EngineConfig(model, dtype="bfloat16", block_size=32),
            ShardSettings("/tmp/prefix", rank=1, world_size=2, block_size=32),
        )
    ]
    assert "unknown arguments are left aside: --flag-of-tomorrow 3" in caplog.text
