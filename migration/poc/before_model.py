"""What many teams run today: Triton's Hugging Face tutorial model, `transformers` and a contiguous KV cache.

A Triton Python-backend model; `repository.py` copies this file into the model repository as it stands,
so it imports nothing of ours. Two things are added to the tutorial: the answer's length comes with the
request, and the cache that `generate` fills is measured at each step and published at `/metrics`.

Parameters of config.pbtxt: `huggingface_model` (a folder), `dtype` (a torch name).
Without dynamic batching `execute` gets one request at a time; with it, a left-padded static batch.

torch and transformers are imported where the model is initialised: Triton first runs the file once more, to ask
whether it completes its own config, and would pay for the imports twice.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils


class Question(NamedTuple):
    """One request: its prompt and how many tokens it wants, exactly."""

    text: str
    max_tokens: int


class CacheGauges:
    """Three gauges at Triton's `/metrics`: bytes allocated, bytes in use, requests in the batch."""

    def __init__(self, model_name: str) -> None:
        self._reserved = self._gauge(
            "before_kv_bytes_reserved", "Bytes of the transformers cache", model_name
        )
        self._used = self._gauge("before_kv_bytes_used", "Bytes of it that running requests need", model_name)
        self._running = self._gauge("before_num_running", "Requests in the batch", model_name)

    @staticmethod
    def _gauge(name: str, description: str, model_name: str) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=pb_utils.MetricFamily.GAUGE)
        # The metric keeps no reference to its family, so the pair is kept together.
        return family, family.Metric(labels={"model": model_name})

    def set(self, reserved: float, used: float, running: int) -> None:
        for (_, metric), value in (
            (self._reserved, reserved), (self._used, used), (self._running, running),
        ):  # fmt: skip
            metric.set(float(value))


class CacheProbe:
    """A stopping criterion that looks at the real cache after each step and never stops anything.

    It takes 0.3 ms of a step of 55 ms (demo model, two cores).

    A slot counts as used while it holds a token of a request that still generates: padding, and the rows
    of requests that are done while their batch goes on, are allocated but of no use to anybody.
    """

    def __init__(
        self, cache: Any, prompt_lengths: list[int], max_tokens: list[int], gauges: CacheGauges
    ) -> None:
        self._cache = cache
        self._prompt_lengths = prompt_lengths
        self._max_tokens = max_tokens
        self._gauges = gauges
        self._step = 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        layers = self._cache.layers
        reserved = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        batch, _, padded_length, _ = layers[0].keys.shape  # [batch, kv_heads, slots, head_dim]
        in_use = sum(
            prompt + self._step
            for prompt, limit in zip(self._prompt_lengths, self._max_tokens, strict=True)
            if self._step < limit
        )
        self._step += 1
        self._gauges.set(reserved, in_use * reserved / (batch * padded_length), len(self._prompt_lengths))
        return input_ids.new_zeros(input_ids.shape[0], dtype=bool)


class TritonPythonModel:
    """The entry that Triton loads."""

    def initialize(self, args: dict[str, str]) -> None:
        import torch
        import transformers

        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = parameters["huggingface_model"]
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, parameters["dtype"])
        ).eval()
        self._new_cache = partial(transformers.DynamicCache, config=self._model.config)
        # Answers have an exact length here, so that both sides do the same work: nothing ends early.
        self._model.generation_config.eos_token_id = None
        self._gauges = CacheGauges(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        questions = [self._read(request) for request in requests]
        answers = self._generate(questions)
        return [
            self._respond(
                tokens, batched=pb_utils.get_input_tensor_by_name(r, "text_input").as_numpy().ndim > 1
            )
            for r, tokens in zip(requests, answers, strict=True)
        ]

    @staticmethod
    def _read(request: Any) -> Question:
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]
        limit = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy().reshape(-1)[0]
        return Question(text.decode(), int(limit))

    def _respond(self, tokens: list[int], *, batched: bool) -> Any:
        text = np.array([self._tokenizer.decode(tokens, skip_special_tokens=True).encode()], dtype=np.object_)
        ids = np.array(tokens, dtype=np.int32)
        outputs = [("text_output", text), ("output_ids", ids)]
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor(name, value[None, :] if batched else value) for name, value in outputs
            ]
        )

    def _generate(self, questions: list[Question]) -> list[list[int]]:
        """Answer a batch greedily; the shorter answers wait for the longest."""
        inputs = self._tokenizer([q.text for q in questions], padding=True, return_tensors="pt")
        limits = [q.max_tokens for q in questions]
        cache = self._new_cache()
        probe = CacheProbe(cache, inputs["attention_mask"].sum(dim=1).tolist(), limits, self._gauges)
        output = self._model.generate(
            **inputs,
            past_key_values=cache,
            do_sample=False,
            max_new_tokens=max(limits),
            stopping_criteria=[probe],
        )
        self._gauges.set(0.0, 0.0, 0)
        start = inputs["input_ids"].shape[1]
        return [row[start : start + limit].tolist() for row, limit in zip(output, limits, strict=True)]
