"""Decoding with a random model through scheduler, runner and sampler: what an engine does, without text and servers.

Needs torch, numpy and transformers, so that it runs on a machine where nothing else can be installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import checkout  # noqa: F401
import torch

from pageport.core.kv_cache import layer_views
from pageport.core.kv_manager import KVManager
from pageport.core.model.assembler import assemble_model
from pageport.core.model.llama import LlamaForCausalLM
from pageport.core.model.model_config import parse_model_config
from pageport.core.request import EngineRequest
from pageport.core.runner import ModelRunner, StepResult
from pageport.core.sampling import Sampler, SamplingState
from pageport.core.scheduler import Scheduler, StepPlan
from pageport.core.sequence import Sequence as Stream
from pageport.kernels import Kernels

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Greedy:
    """`SamplingParams` for the likeliest token, without pydantic: the fields that are read on the way."""

    n: int = 1
    temperature: float = 0.0
    min_tokens: int = 0
    logit_bias: None = None
    watermark: None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: None = None
    prompt_logprobs: int | None = None
    is_greedy: bool = True


class StateDict:
    """A `WeightSource` over the tensors of a transformers model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = model.state_dict()

    def names(self) -> Iterable[str]:
        return self._tensors

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def random_transformers_model(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' own model, its weights as its configuration initialises them; it never ends an answer."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config.eos_token_id = None
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def same_weights(model: Any, kernels: Kernels, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """Our decoder with the weights of a transformers model, converted."""
    config = parse_model_config(model.config.to_dict())
    return assemble_model(config, StateDict(model), dtype=dtype, device=device, kernels=kernels)


def make_runner(
    model: LlamaForCausalLM,
    kernels: Kernels,
    pool: torch.Tensor,
    kv: KVManager,
    *,
    graphs: bool,
    max_num_seqs: int,
    max_model_len: int,
) -> ModelRunner:
    """The runner of a decode loop; with `graphs`, decode steps are captured as CUDA graphs and replayed.

    The pool has one block more than `kv` manages, for the rows that pad a captured step.
    """
    runner = ModelRunner(model, kernels, pool, kv)
    if graphs:
        from pageport.core.decode_graphs import CudaCapturer, graph_sizes

        runner.capture_decode_steps(graph_sizes(max_num_seqs, max_model_len), CudaCapturer())
    return runner


class DecodeLoop:
    """Some sequences at once over a pool of their own; every answer is greedy and has its exact length."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int = 2048,
        graphs: bool = False,
    ) -> None:
        """Take KV memory for `max_num_seqs` sequences of `max_model_len` tokens."""
        config = model.config
        num_blocks = max_num_seqs * -(-max_model_len // BLOCK_SIZE)
        shape = (num_blocks + 1, config.num_layers, 2, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.pool = torch.empty(shape, dtype=dtype, device=device)
        kv = KVManager(num_blocks, BLOCK_SIZE, max_num_seqs, max_model_len)
        self._kv = kv
        self._runner = make_runner(
            model,
            kernels,
            self.pool,
            kv,
            graphs=graphs,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        )
        self._scheduler = Scheduler(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_batched_tokens, 2 * max_num_seqs),
            chunk_alignment=kernels.chunk_alignment(dtype, config.head_dim),
        )
        self._sampler = Sampler(device)
        self._states: dict[Stream, SamplingState] = {}
        self._limits: dict[Stream, int] = {}

    def add(self, prompt: Sequence[int], max_tokens: int, *, prompt_logits: bool = False) -> Stream:
        """Queue a prompt."""
        stream = self._stream(prompt, max_tokens, Greedy(prompt_logprobs=0 if prompt_logits else None))
        self._scheduler.add(stream)
        return stream

    def add_running(self, prompt: Sequence[int], max_tokens: int) -> Stream:
        """A sequence as if all but its prompt's last token had been computed, to time decode steps without prompts.

        What the pool holds then stands for its keys and values; see `fill_with_noise`.
        """
        stream = self._stream(prompt, max_tokens, Greedy())
        stream.table = self._kv.create()
        stream.num_computed = len(prompt) - 1
        self._kv.append(stream.table, stream.num_computed)
        self._scheduler.running.append(stream)
        return stream

    def fill_with_noise(self) -> None:
        for layer in layer_views(self.pool):
            layer.normal_()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @torch.inference_mode()
    def step(self) -> tuple[StepPlan, StepResult]:
        """Plan, compute, sample; sequences that are complete give their blocks back."""
        plan = self._scheduler.plan()
        result = self._runner.execute(plan)
        self._scheduler.complete(plan)
        sampled = [rows for rows in result.rows if rows.last >= 0]
        if sampled:
            self._sample(
                result.logits, [rows.last for rows in sampled], [rows.item.sequence for rows in sampled]
            )
        return plan, result

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """All prompts at once, to the end."""
        streams = [self.add(prompt, max_tokens) for prompt in prompts]
        while self.has_work:
            self.step()
        return [stream.token_ids[stream.num_prompt_tokens :] for stream in streams]

    # -- private -----------------------------------------------------------------------------------------

    def _stream(self, prompt: Sequence[int], max_tokens: int, sampling: Greedy) -> Stream:
        request = EngineRequest("", tuple(prompt), sampling, arrival_time=0.0)  # type: ignore[arg-type]
        stream = Stream.first_of(request)
        self._states[stream] = SamplingState(sampling, 0, prompt, [], ())  # type: ignore[arg-type]
        self._limits[stream] = max_tokens
        return stream

    def _sample(self, logits: torch.Tensor, rows: list[int], streams: list[Stream]) -> None:
        if rows != list(range(len(logits))):
            logits = logits[torch.tensor(rows, device=logits.device)]
        states = [self._states[stream] for stream in streams]
        tokens = self._sampler.sample(logits, states).token_ids
        for stream, state, token in zip(streams, states, tokens, strict=True):
            stream.token_ids.append(token)
            state.output_token_ids.append(token)
            if len(state.output_token_ids) == self._limits[stream]:
                self._scheduler.remove(stream)
                del self._states[stream], self._limits[stream]
