"""Generates the gRPC stubs in backends/tgi_adapter/pb from the .proto files beside them."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

from grpc_tools import protoc

ADAPTER = Path(__file__).parents[1] / "backends" / "tgi_adapter"


def generate(target: Path) -> None:
    """Write the modules of both versions into a folder.

    Raises:
        RuntimeError: the compiler refuses a file.
    """
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    for version in ("v2", "v3"):
        arguments = [
            "protoc", f"--proto_path={ADAPTER / 'proto'}", f"--proto_path={well_known}",
            f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}",
            f"generate_{version}.proto",
        ]  # fmt: skip
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"generate_{version}.proto does not compile")
        # protoc writes absolute imports, which only work where the folder is on the path.
        stub = target / f"generate_{version}_pb2_grpc.py"
        text = stub.read_text("utf-8")
        absolute = f"import generate_{version}_pb2 as"
        stub.write_text(text.replace(absolute, f"from pageport.backends.tgi_adapter.pb {absolute}"), "utf-8")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ADAPTER / "pb")
