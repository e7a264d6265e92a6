"""The gRPC server on its Unix socket, and its life from the launcher's start to the launcher's SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import grpc
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.pb import (
    generate_v2_pb2,
    generate_v2_pb2_grpc,
    generate_v3_pb2,
    generate_v3_pb2_grpc,
)
from pageport.backends.tgi_adapter.shard.core import ShardCore
from pageport.backends.tgi_adapter.shard.servicer import Servicer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClientProtocol

_OPTIONS = [("grpc.max_receive_message_length", 2**31 - 1)]


class ShardServer:
    """Both versions of the service on one socket, over one engine. The engine is started and closed by the caller."""

    def __init__(
        self,
        engine: EngineClientProtocol,
        tokenizer: Tokenizer,
        settings: ShardSettings,
        *,
        block_size: int = 16,
    ) -> None:
        self.core = ShardCore(engine, tokenizer, settings)
        self._settings = settings
        self._block_size = block_size
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Bind, last of all: the launcher takes the socket's file for the sign that the shard is ready.

        Raises:
            RuntimeError: the socket cannot be bound.
        """
        self._server = server = grpc.aio.server(options=_OPTIONS)
        v3 = Servicer(self.core, generate_v3_pb2, self._block_size)
        v2 = Servicer(self.core, generate_v2_pb2, self._block_size)
        generate_v3_pb2_grpc.add_TextGenerationServiceServicer_to_server(v3, server)  # type: ignore[no-untyped-call]
        generate_v2_pb2_grpc.add_TextGenerationServiceServicer_to_server(v2, server)  # type: ignore[no-untyped-call]
        path = Path(self._settings.socket_path)
        path.unlink(missing_ok=True)
        # gRPC listens as soon as the port is added, and accepts when it is started: the file appears in between. So
        # it is made under another name, and gets its own when there is somebody behind it.
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        server.add_insecure_port(f"unix://{hidden}")
        await server.start()
        hidden.rename(path)

    async def stop(self) -> None:
        """End open calls, and remove the socket."""
        if self._server is not None:
            await self._server.stop(grace=None)
        self.core.batches.clear()
        Path(self._settings.socket_path).unlink(missing_ok=True)
        # Let the requests that were dropped say good-bye to the engine.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
