"""Computing with a GGUF's own blocks: the demo model's, and what is taken out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize

from pageport.core import ConfigError, Engine, EngineRequest, SamplingParams, parse_engine_config
from pageport.core.demo_model import demo_gguf_path
from pageport.core.model.gguf_blocks import read_blocks
from pageport.core.model.gguf_source import GgufSource
from pageport.core.model.stored_embedding import StoredEmbedding

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROSE = (
    "The bicycle was invented in the nineteenth century, and it soon changed the way in which people lived, worked and "
    "travelled. A good bread needs flour, water, salt and time; the oven must be hot before the loaf goes in."
)


@pytest.fixture(scope="module")
def gguf() -> Path:
    return demo_gguf_path()


def engine(model: Path, **options: Any) -> Engine:
    return Engine(
        parse_engine_config({"model": model, "kv_cache_memory_bytes": 2**26, "device": "cpu", **options})
    )


def answer(engine: Engine, prompt: str, sampling: SamplingParams) -> tuple[str, list[float]]:
    """The text, and the log-probabilities of the prompt's tokens where asked for."""
    ids = tuple(engine._tokenizer.encode(prompt).ids)
    engine.add_request(EngineRequest("it", ids, sampling, arrival_time=0.0))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    scores = [
        next(iter(position.values())).logprob
        for position in outputs[0].prompt_logprobs or []
        if position is not None
    ]
    return "".join(output.text for output in outputs), scores


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0]
)
def test_blocks_stand_for_the_numbers_of_the_reference(kind: GGMLQuantizationType) -> None:
    values = np.random.default_rng(3).standard_normal((20, 96)).astype(np.float32)
    data = quantize(values, kind)
    weight = read_blocks(data, kind)
    assert weight is not None
    assert torch.equal(weight.dequantise(), torch.from_numpy(dequantize(data, kind)))


def test_other_types_are_left_to_the_reference() -> None:
    assert read_blocks(np.zeros((2, 210), np.uint8), GGMLQuantizationType.Q6_K) is None


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_rows_stand_where_transformers_has_them(gguf: Path, name: str) -> None:
    source = GgufSource(gguf)
    tensor = f"model.layers.3.self_attn.{name}.weight"
    weight = source.read_quantised(tensor)
    assert weight is not None
    assert torch.equal(weight.dequantise(), source.read(tensor))


def test_an_embedding_looks_up_the_file(gguf: Path) -> None:
    source = GgufSource(gguf)
    ids = torch.tensor([0, 49_151, 17, 17])
    embedding = source.embedding("model.embed_tokens.weight", torch.bfloat16)
    assert isinstance(embedding, StoredEmbedding)
    table = source.read("model.embed_tokens.weight")
    assert torch.equal(embedding(ids), table[ids].bfloat16())


def test_the_demo_model_answers_from_its_blocks(gguf: Path) -> None:
    quantised = engine(gguf, dtype="bfloat16", quantization="gguf")
    text, _ = answer(quantised, CHAT, SamplingParams(temperature=0.0, max_tokens=20))
    assert text == "The capital of France is Paris."
    scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    _, scores = answer(quantised, PROSE, scored)
    _, exact = answer(engine(gguf, dtype="float32"), PROSE, scored)
    differences = np.abs(np.array(scores) - np.array(exact))
    assert len(exact) > 30
    assert differences.mean() < 0.05
    assert differences.max() < 0.3


@pytest.mark.parametrize(("model", "dtype"), [("demo", "bfloat16"), ("gguf", "float32")])
def test_other_files_and_types_are_refused(gguf: Path, demo_model: Path, model: str, dtype: str) -> None:
    with pytest.raises(ConfigError, match="quantization: gguf is for a"):
        engine(demo_model if model == "demo" else gguf, dtype=dtype, quantization="gguf")
