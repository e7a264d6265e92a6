"""The class that Triton's Python backend drives. Everything here runs on the stub's main thread."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pageport.backends.triton_python.call import Call, refuse
from pageport.backends.triton_python.contract import Contract, ContractName
from pageport.backends.triton_python.hf_contract import HfContract
from pageport.backends.triton_python.metrics import EntryMetrics
from pageport.backends.triton_python.service import EngineService
from pageport.backends.triton_python.settings import Settings, read_contract, read_settings
from pageport.backends.triton_python.triton_log import TritonLogHandler
from pageport.backends.triton_python.vllm_contract import VllmContract
from pageport.core import ConfigError, EngineClientProtocol, PageportError, load_tokenizer

logger = logging.getLogger("pageport.triton")

_CONTRACTS: dict[ContractName, type[VllmContract] | type[HfContract]] = {
    ContractName.VLLM: VllmContract,
    ContractName.HF: HfContract,
}


class TritonPythonModel:
    """Driven by Triton; `auto_complete_config` is called in a process of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Fill in the contract's tensors and transaction policy, so that a bare config.pbtxt will do."""
        contract = _CONTRACTS[_in_triton_words(read_contract, config.as_dict())]
        for tensor in contract.inputs:
            config.add_input(tensor.as_input())
        for tensor in contract.outputs:
            config.add_output(tensor.as_output())
        config.set_model_transaction_policy({"decoupled": contract.decoupled})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and start the engine. Raises TritonModelException: the model is not loaded."""
        package_logger = logging.getLogger("pageport")
        package_logger.setLevel(logging.INFO)
        package_logger.addHandler(TritonLogHandler())
        package_logger.propagate = False
        config = json.loads(args["model_config"])
        settings = _in_triton_words(read_settings, config)
        _warn_of_unused(settings)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        try:
            _check_decoupled(config, settings.contract)
            self._contract = _make_contract(settings)
            self._service = EngineService(lambda: _make_client(settings), EntryMetrics(labels))
            self._service.start()
        except PageportError as error:
            raise pb_utils.TritonModelException(str(error)) from error

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand each request to the service and return at once: the answers go out on their own."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                timeout = request.timeout() / 1e6 or None
                self._service.accept(Call(sender, self._contract.read(request), timeout))
            except Exception as error:
                if not isinstance(error, PageportError):
                    logger.exception("a request could not be read")
                refuse(sender, error)

    def finalize(self) -> None:
        """End running requests with an error and stop the engine, within a bounded time."""
        self._service.close()


def _in_triton_words(read: Any, config: dict[str, Any]) -> Any:
    try:
        return read(config, Path(pb_utils.get_model_dir()))
    except PageportError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def _warn_of_unused(settings: Settings) -> None:
    if settings.ignored:
        logger.warning("settings without effect here: %s", ", ".join(settings.ignored))
    if settings.unknown:
        logger.warning("unknown settings, not used: %s", ", ".join(settings.unknown))


def _check_decoupled(config: dict[str, Any], contract: ContractName) -> None:
    """A config that was not completed may contradict its contract. Raises ConfigError."""
    wanted = _CONTRACTS[contract].decoupled
    if pb_utils.using_decoupled_model_transaction_policy(config) != wanted:
        raise ConfigError(
            f"model_transaction_policy: contract {contract} needs decoupled: {str(wanted).lower()}"
        )


def _make_contract(settings: Settings) -> Contract:
    if settings.contract is ContractName.VLLM:
        return VllmContract(settings.stream_interval)
    tokenizer = load_tokenizer(settings.engine.tokenizer or settings.engine.model)
    return HfContract(tokenizer, settings.max_output_length)


def _make_client(settings: Settings) -> EngineClientProtocol:
    module, _, attribute = settings.engine_client.partition(":")
    # Triton does this for a model.py in the version's folder, but not for a Python-based backend.
    if (version_folder := str(pb_utils.get_model_dir())) not in sys.path:
        sys.path.append(version_folder)
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"engine_client: cannot load {settings.engine_client!r}: {error}") from error
    client: EngineClientProtocol = factory(settings.engine)
    return client
