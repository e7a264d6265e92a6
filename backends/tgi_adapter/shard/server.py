"""The gRPC server on its Unix socket."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
from grpc_reflection.v1alpha import reflection
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.pb import (
    generate_v2_pb2,
    generate_v2_pb2_grpc,
    generate_v3_pb2,
    generate_v3_pb2_grpc,
)
from pageport.backends.tgi_adapter.shard.core import ShardCore
from pageport.backends.tgi_adapter.shard.health import HealthWatch
from pageport.backends.tgi_adapter.shard.servicer import Parts, Servicer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClientProtocol

_OPTIONS = [("grpc.max_receive_message_length", 2**31 - 1)]  # images and long prompts travel inline
_SERVICES = [
    module.DESCRIPTOR.services_by_name["TextGenerationService"].full_name
    for module in (generate_v2_pb2, generate_v3_pb2)
]


class ShardServer:
    """Both versions of the service on one socket, over one engine. The caller starts the engine before, and closes it
    after.

    Attributes:
        core: what the calls do.
        health: what `Health` says.
    """

    def __init__(
        self,
        engine: EngineClientProtocol,
        tokenizer: Tokenizer,
        settings: ShardSettings,
        health: HealthWatch | None = None,
    ) -> None:
        self.core = ShardCore(engine, tokenizer, settings)
        self.health = health or HealthWatch(engine)
        self._parts = Parts(self.core, engine, tokenizer, settings, self.health)
        self._path = Path(settings.socket_path)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Accept calls, and only then let the socket's file appear: the launcher takes it for the sign of readiness.

        Raises:
            RuntimeError, OSError: the socket cannot be bound.
        """
        self._server = server = grpc.aio.server(options=_OPTIONS)
        generate_v2_pb2_grpc.add_TextGenerationServiceServicer_to_server(  # type: ignore[no-untyped-call]
            Servicer(self._parts, generate_v2_pb2), server
        )
        generate_v3_pb2_grpc.add_TextGenerationServiceServicer_to_server(  # type: ignore[no-untyped-call]
            Servicer(self._parts, generate_v3_pb2), server
        )
        reflection.enable_server_reflection([*_SERVICES, reflection.SERVICE_NAME], server)
        # gRPC makes the file before it accepts.
        hidden = self._path.with_name(f".{os.getpid()}.{self._path.name}")
        server.add_insecure_port(f"unix:{hidden}")
        await server.start()
        hidden.replace(self._path)

    async def stop(self) -> None:
        """End open calls at once, drop all requests, and remove the socket."""
        self._path.unlink(missing_ok=True)
        if self._server is not None:
            await self._server.stop(grace=None)
        await self.core.close()
