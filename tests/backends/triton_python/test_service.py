"""The service on its own: the fake engine behind it, a stand-in for Triton's response sender before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import triton_python_backend_utils as stand_in
from fake_engine import FakeEngineClient

from pageport.backends.triton_python.call import Call
from pageport.backends.triton_python.contract import Ask
from pageport.backends.triton_python.metrics import EntryMetrics
from pageport.backends.triton_python.service import EngineService
from pageport.backends.triton_python.vllm_contract import VllmContract
from pageport.core import ConfigError, EngineConfig

CODES = stand_in.TritonError


@pytest.fixture
def service() -> Iterator[EngineService]:
    service = EngineService(
        lambda: FakeEngineClient(EngineConfig(model=Path("."))), EntryMetrics({"model": "m"})
    )
    service.start()
    yield service
    service.close()


def ask(prompt: str, max_tokens: int = 3) -> Ask:
    parameters = f'{{"max_tokens": {max_tokens}}}'
    return VllmContract().read(stand_in.Request({"text_input": prompt, "stream": True}, parameters))


def send(service: EngineService, prompt: str, *, max_tokens: int = 3, timeout: float | None = None):  # type: ignore[no-untyped-def]
    sender = stand_in.Sender()
    service.accept(Call(sender, ask(prompt, max_tokens), timeout))
    return sender


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.01)


def code(sender) -> int:  # type: ignore[no-untyped-def]
    until(lambda: sender.final)
    return sender.responses[-1].error.code()


def test_a_request_ends_with_one_final_response(service: EngineService) -> None:
    sender = send(service, "hello")
    until(lambda: sender.final)
    texts = [response.output_tensors[0].as_numpy()[0] for response in sender.responses]
    assert b"".join(texts) == b" a0 a1 a2"


def test_codes_of_errors(service: EngineService) -> None:
    assert code(send(service, "!bug")) == CODES.INTERNAL
    assert code(send(service, "!fail")) == CODES.INTERNAL
    assert code(send(service, "!die")) == CODES.UNAVAILABLE
    assert code(send(service, "hello", max_tokens=10**6)) == CODES.INVALID_ARG
    assert code(send(service, "!silent", timeout=0.05)) == CODES.UNAVAILABLE


def test_a_cancelled_request_is_noticed_without_a_token(service: EngineService) -> None:
    sender = send(service, "!silent")
    sender.cancelled = True
    assert code(sender) == CODES.CANCELLED
    assert len(sender.responses) == 1


def test_a_sender_that_breaks_ends_its_request_only(service: EngineService) -> None:
    broken = send(service, "!tick 5", max_tokens=1000)
    until(lambda: broken.responses)
    broken.final = True  # the next send raises
    healthy = send(service, "hello")
    until(lambda: healthy.final)
    assert healthy.responses[-1].error is None


def test_a_final_response_that_cannot_be_sent_is_replaced_by_an_error(service: EngineService) -> None:
    class FailsOnce(stand_in.Sender):
        def send(self, response: stand_in.InferenceResponse, flags: int = 0) -> None:
            if flags and response.error is None:
                raise stand_in.TritonModelException("out of shared memory")
            super().send(response, flags)

    sender = FailsOnce()
    service.accept(Call(sender, ask("hello"), None))
    assert code(sender) == CODES.INTERNAL
    assert "out of shared memory" in sender.responses[-1].error.message()


def test_close_ends_running_requests() -> None:
    service = EngineService(
        lambda: FakeEngineClient(EngineConfig(model=Path("."))), EntryMetrics({"model": "c"})
    )
    service.start()
    senders = [send(service, "!silent") for _ in range(5)]
    service.close()
    assert [code(sender) for sender in senders] == [CODES.UNAVAILABLE] * 5
    assert all(len(sender.responses) == 1 for sender in senders)


def test_an_engine_that_cannot_start_is_reported_and_the_thread_ends() -> None:
    class Broken(FakeEngineClient):
        async def start(self) -> None:
            raise ConfigError("dtype: cannot be honoured")

    service = EngineService(lambda: Broken(EngineConfig(model=Path("."))), EntryMetrics({"model": "b"}))
    with pytest.raises(ConfigError, match="dtype"):
        service.start()
    assert not service._thread.is_alive()


def test_stream_interval_merges_tokens_but_not_the_first(service: EngineService) -> None:
    sender = stand_in.Sender()
    request = stand_in.Request({"text_input": "!tick 2", "stream": True}, '{"max_tokens": 8}')
    service.accept(Call(sender, VllmContract(stream_interval=3).read(request), None))
    until(lambda: sender.final)
    texts = [response.output_tensors[0].as_numpy()[0].decode() for response in sender.responses]
    assert texts[0] == " a0"
    assert all(len(text.split()) >= 3 for text in texts[1:-1])
    assert "".join(texts) == "".join(f" a{k}" for k in range(8))
