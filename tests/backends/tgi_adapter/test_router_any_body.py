"""Whatever a client sends, it gets an answer of a known kind, and nothing of it stays in the engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from asgi_call import AsgiCall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from router_harness import recorded_settings
from scripted_engine import ScriptedEngine
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-3, 6)
    | st.floats()
    | st.text(max_size=4)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
GRAMMARS = st.fixed_dictionaries(
    {"type": st.sampled_from(["json", "regex", "json_schema", "json_object", "other"]), "value": JSON}
)
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        name: SCALARS | GRAMMARS if name == "grammar" else SCALARS for name in GenerateParameters.model_fields
    },
)
BODIES = JSON | st.fixed_dictionaries(
    {"inputs": st.text(max_size=8) | JSON},
    optional={"parameters": PARAMETERS | JSON, "stream": st.booleans()},
)
PATHS = st.sampled_from(["/", "/generate", "/generate_stream", "/tokenize"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES, path=PATHS)
def test_any_body(tokenizer: Tokenizer, demo_model: Path, body: Any, path: str) -> None:
    asyncio.run(send(tokenizer, demo_model, body, path))


async def send(tokenizer: Tokenizer, folder: Path, body: Any, path: str) -> None:
    engine = ScriptedEngine(tokenizer)
    call = AsgiCall(create_app(recorded_settings(), engine, tokenizer, folder), "POST", path, body)
    await call.wait()
    assert call.status in (200, 400, 422)
    if call.status == 200 and call.body.startswith(b"data: "):
        assert (
            call.events[-1].get("generated_text") is not None or call.events[-1]["error_type"] == "validation"
        )
    elif call.status == 200:
        json.loads(call.body)
    else:
        assert call.body
    assert engine.num_running == 0
