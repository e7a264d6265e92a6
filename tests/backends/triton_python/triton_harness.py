"""Clients for tests against a real server, and the repository with the fake engine."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc_aio
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import Layout, write_entry
from pageport.backends.triton_python.server import TritonServer

FAKE = {"engine_client": "fake_engine:FakeEngineClient"}
WAIT_SECONDS = 20.0


@dataclass
class Answer:
    """All responses to one request; each output by name, elements as a list."""

    responses: list[dict[str, list[Any]]] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    error: str | None = None

    @property
    def texts(self) -> list[str]:
        """The first sequence's piece of text in each response."""
        return [response["text_output"][0] for response in self.responses]

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Harness:
    """Talks to one server over all of its ports."""

    def __init__(self, server: TritonServer) -> None:
        self.server = server
        self.sent: Counter[str] = Counter()

    async def stream(self, entry: str, inputs: dict[str, Any], **options: Any) -> Answer:
        """One request on a gRPC stream of its own; read to the end."""
        self.sent[entry] += 1
        async with grpc_aio.InferenceServerClient(self.server.grpc_url) as client:
            return await read_stream(client, entry, inputs, **options)

    def generate(self, entry: str, body: dict[str, Any]) -> dict[str, Any]:
        """HTTP `generate`; an error is in the key `error`."""
        return self._post(f"/v2/models/{entry}/generate", body)

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        with urllib.request.urlopen(self.server.metrics_url, timeout=WAIT_SECONDS) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def metric(self, name: str, entry: str) -> float:
        return self.metrics()[f'{name}{{model="{entry}",version="1"}}']

    async def settled(self, entry: str, expected: float | None = None) -> None:
        """Wait until `expected` requests have ended, nothing runs or waits, and no block is in use.

        By default all those in `sent`: without a number, figures from before the last request would do, too.
        """
        expected = self.sent[entry] if expected is None else expected

        def is_settled() -> bool:
            figures = self.metrics()
            labels = f'{{model="{entry}",version="1"}}'
            names = ("pageport_requests_running", "pageport_requests_waiting", "pageport_kv_blocks_used")
            finished = figures["pageport_requests_finished_total" + labels]
            return finished == expected and not any(figures[name + labels] for name in names)

        await until(is_settled, f"{expected} requests to {entry} ended, no block in use")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{self.server.http_url}{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return {**json.load(error), "status": error.code}


async def read_stream(
    client: grpc_aio.InferenceServerClient,
    entry: str,
    inputs: dict[str, Any],
    *,
    stop_after: int | None = None,
    answer: Answer | None = None,
    **options: Any,
) -> Answer:
    """Send one request and read its responses, into `answer`; after `stop_after` of them, leave without a word."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": entry, "inputs": [to_input(n, v) for n, v in inputs.items()], **options}

    answer = answer or Answer()
    responses = client.stream_infer(requests())
    async for result, error in responses:
        if error is not None:
            answer.error = error.message()
            continue
        message = result.get_response()
        answer.finals.append(message.parameters["triton_final_response"].bool_param)
        answer.responses.append({o.name: to_list(result.as_numpy(o.name)) for o in message.outputs})
        if stop_after is not None and len(answer.responses) >= stop_after:
            responses.cancel()
            break
    return answer


def to_input(name: str, value: Any) -> grpc_aio.InferInput:
    values = value if isinstance(value, list) else [value]
    is_flag = isinstance(values[0], bool)
    array = np.array(values, dtype=bool if is_flag else np.object_)
    tensor = grpc_aio.InferInput(name, list(array.shape), "BOOL" if is_flag else "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def to_list(array: np.ndarray) -> list[Any]:
    return [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that a server brings about. Fails after a generous deadline."""
    for _ in range(int(WAIT_SECONDS / 0.05)):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} did not come true within {WAIT_SECONDS} s")


def write_tokenizer(folder: Path) -> Path:
    """A model folder of which only the tokenizer exists: each word is a token."""
    words = {f"w{number}": number for number in range(20)} | {"<unk>": 20}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_fake_repository(root: Path) -> Path:
    """Entries `vllm` and `hf` with model.py inside; `failures`, on the shared backend, for tests that count every
    request to it; and `bare`: what a user of Triton's vLLM backend has, a name and a model.json."""
    repository, model = root / "models", str(write_tokenizer(root / "tokenizer"))
    write_entry(repository, "vllm", model, ContractName.VLLM, parameters=FAKE)
    write_entry(repository, "failures", model, ContractName.VLLM, layout=Layout.BACKEND, parameters=FAKE)
    write_entry(repository, "hf", model, ContractName.HF, parameters={**FAKE, "max_output_length": "8"})
    write_entry(repository, "bare", model, ContractName.VLLM, layout=Layout.BACKEND)
    config = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
    (repository / "bare" / "config.pbtxt").write_text(config)
    settings = {
        **FAKE,
        "model": model,
        "disable_log_requests": True,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "tensor_parallel_size": 1,
        "dtype": "half",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "a_name_nobody_knows": 1,
    }
    (repository / "bare" / "1" / "model.json").write_text(json.dumps(settings))
    for entry in repository.iterdir():
        shutil.copy(Path(__file__).with_name("fake_engine.py"), entry / "1" / "fake_engine.py")
    return repository
