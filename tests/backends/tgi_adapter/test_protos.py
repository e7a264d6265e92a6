"""The stubs in the tree are what the compiler makes of the .proto files; and those are TGI's, by name and number."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from pageport.backends.tgi_adapter.pb import generate_v2_pb2, generate_v3_pb2

ROOT = Path(__file__).parents[3]

RPCS = "Health Info ServiceDiscovery ClearCache FilterBatch Warmup Prefill Decode"
ENUMS = {
    "GrammarType": {"GRAMMAR_TYPE_NONE": 0, "GRAMMAR_TYPE_JSON": 1, "GRAMMAR_TYPE_REGEX": 2},
    "FinishReason": {
        "FINISH_REASON_LENGTH": 0,
        "FINISH_REASON_EOS_TOKEN": 1,
        "FINISH_REASON_STOP_SEQUENCE": 2,
    },
}

# Name, number and type of each field: `?` has presence, `*` is repeated.
V3 = """
HealthRequest
HealthResponse
InfoRequest
InfoResponse requires_padding=1:bool dtype=2:string device_type=3:string window_size=4:uint32? speculate=5:uint32
  support_chunking=6:bool use_prefix_caching=7:bool attention_impl=8:string block_size=9:uint32
ServiceDiscoveryRequest
ServiceDiscoveryResponse urls=1:string*
ClearCacheRequest id=1:uint64?
ClearCacheResponse
Image data=1:bytes mimetype=2:string
InputChunk text=1:string? image=2:Image?
Input chunks=1:InputChunk*
NextTokenChooserParameters temperature=1:float top_k=2:uint32 top_p=3:float typical_p=4:float do_sample=5:bool
  seed=6:uint64 repetition_penalty=7:float watermark=8:bool frequency_penalty=9:float grammar=10:string
  grammar_type=11:GrammarType
StoppingCriteriaParameters max_new_tokens=1:uint32 stop_sequences=2:string* ignore_eos_token=3:bool
Request id=1:uint64 inputs=2:string truncate=3:uint32 parameters=4:NextTokenChooserParameters?
  stopping_parameters=5:StoppingCriteriaParameters? prefill_logprobs=6:bool top_n_tokens=7:uint32 input_chunks=8:Input?
  blocks=9:uint32* slots=10:uint32* adapter_id=11:string? cache_len=12:uint32 add_special_tokens=13:bool
  chunk_len=14:uint32?
Batch id=1:uint64 requests=2:Request* size=3:uint32 max_tokens=4:uint32 max_blocks=5:uint32
CachedBatch id=1:uint64 request_ids=2:uint64* size=3:uint32 max_tokens=4:uint32 current_tokens=5:uint32
GeneratedText text=1:string generated_tokens=2:uint32 finish_reason=3:FinishReason seed=4:uint64?
Tokens ids=1:uint32* logprobs=2:float* texts=3:string* is_special=4:bool*
Generation request_id=1:uint64 prefill_tokens=2:Tokens? tokens=3:Tokens? generated_text=4:GeneratedText?
  top_tokens=5:Tokens*
FilterBatchRequest batch_id=1:uint64 request_ids=2:uint64*
FilterBatchResponse batch=1:CachedBatch?
PrefillRequest batch=1:Batch? cached_batch=2:CachedBatch?
PrefillResponse generations=1:Generation* batch=2:CachedBatch? forward_ns=3:uint64 decode_ns=4:uint64 total_ns=5:uint64
  concat_ns=6:uint64?
DecodeRequest batches=1:CachedBatch*
DecodeResponse generations=1:Generation* batch=2:CachedBatch? forward_ns=3:uint64 decode_ns=4:uint64 total_ns=5:uint64
  concat_ns=6:uint64?
WarmupRequest batch=1:Batch? max_input_tokens=2:uint32? max_prefill_tokens=3:uint32 max_total_tokens=4:uint32?
WarmupResponse max_supported_total_tokens=1:uint32? max_input_tokens=2:uint32 max_total_tokens=3:uint32
"""

# What the second version has otherwise; a message without its name's fields is not there.
V2_LACKS = {
    "InfoResponse": "support_chunking use_prefix_caching attention_impl block_size",
    "Request": "input_chunks blocks slots adapter_id cache_len add_special_tokens chunk_len",
    "Batch": "max_blocks",
    "CachedBatch": "current_tokens",
    "PrefillRequest": "cached_batch",
    "PrefillResponse": "concat_ns",
    "WarmupRequest": "max_input_tokens max_total_tokens",
    "WarmupResponse": "max_input_tokens max_total_tokens",
}
V2_HAS = {"WarmupRequest": {"max_input_length": "2:uint32", "max_total_tokens": "4:uint32"}}
ONLY_V3 = ("Image", "InputChunk", "Input")


def contract_v3() -> dict[str, dict[str, str]]:
    messages: dict[str, dict[str, str]] = {}
    for line in V3.strip().replace("\n  ", " ").splitlines():
        name, *fields = line.split()
        messages[name] = dict(field.split("=") for field in fields)
    return messages


def contract_v2() -> dict[str, dict[str, str]]:
    messages = {name: fields for name, fields in contract_v3().items() if name not in ONLY_V3}
    for name, lacking in V2_LACKS.items():
        for field in lacking.split():
            del messages[name][field]
        messages[name] |= V2_HAS.get(name, {})
    return messages


_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def describe(field: Any) -> str:
    if field.message_type is not None:
        kind = field.message_type.name
    elif field.enum_type is not None:
        kind = field.enum_type.name
    else:
        kind = _TYPES[field.type]
    mark = "*" if field.is_repeated else "?" if field.has_presence else ""
    return f"{field.number}:{kind}{mark}"


@pytest.mark.parametrize(
    ("module", "package", "contract"),
    [
        (generate_v3_pb2, "generate.v3", contract_v3()),
        (generate_v2_pb2, "generate.v2", contract_v2()),
    ],
)
def test_names_and_numbers_are_tgis(module: Any, package: str, contract: dict[str, dict[str, str]]) -> None:
    file = module.DESCRIPTOR
    assert file.package == package
    found = {
        name: {field.name: describe(field) for field in message.fields}
        for name, message in file.message_types_by_name.items()
    }
    assert found == contract
    (service,) = file.services_by_name.values()
    assert service.full_name == f"{package}.TextGenerationService"
    assert {method.name: (method.input_type.name, method.output_type.name) for method in service.methods} == {
        rpc: (f"{rpc}Request", f"{rpc}Response") for rpc in RPCS.split()
    }
    assert {
        name: {value.name: value.number for value in enum.values}
        for name, enum in file.enum_types_by_name.items()
    } == ENUMS


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protos", ROOT / "scripts" / "generate_protos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_committed_is_what_is_generated(tmp_path: Path) -> None:
    script().generate(tmp_path)
    committed = ROOT / "backends" / "tgi_adapter" / "pb"
    generated = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert len(generated) == 6
    for name, text in generated.items():
        assert (committed / name).read_text("utf-8") == text, f"{name}: run scripts/generate_protos.py"
