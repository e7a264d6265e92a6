"""Turns a step's plan into tensors, runs the model, and returns logits for the rows that need them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pageport.core.decode_graphs import DecodeGraphs, GraphCapturer, GraphSize
from pageport.core.kv_cache import layer_views
from pageport.core.kv_manager import KVManager
from pageport.core.model.llama import LlamaForCausalLM
from pageport.core.scheduler import ScheduledSequence, StepPlan
from pageport.core.step_inputs import StepInputs, collect_inputs
from pageport.kernels import Kernels


class LogitRows(NamedTuple):
    """Logits of one scheduled sequence: rows of the step's logits, and where its chunk starts.

    `last` is the row that the next token is drawn from (-1: the step does not reach it); `all_rows` spans the whole
    chunk where prompt log-probabilities are wanted, and just the last row otherwise.
    """

    item: ScheduledSequence
    all_rows: range
    last: int


class StepResult(NamedTuple):
    """float32 logits [rows, vocab], and whose they are."""

    logits: torch.Tensor
    rows: list[LogitRows]


class ModelRunner:
    """Owns the model and the KV tensors; knows no request, no sampling and no text."""

    def __init__(
        self, model: LlamaForCausalLM, kernels: Kernels, kv_pool: torch.Tensor, kv: KVManager
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._kv_pool = kv_pool
        self._layers = layer_views(kv_pool)
        self._kv = kv
        self._device = kv_pool.device
        self._graphs: DecodeGraphs | None = None

    def capture_decode_steps(self, sizes: list[GraphSize], capturer: GraphCapturer) -> None:
        """Replay decode steps of these sizes from now on. The pool has one block more than the manager knows."""
        scratch_block = self._kv.pool.num_blocks
        assert self._kv_pool.shape[0] > scratch_block, "the pool has no scratch block"
        self._graphs = DecodeGraphs(
            lambda input_ids, batch: self._model.forward(input_ids, self._layers, batch),
            sizes,
            block_size=self._kv.block_size,
            scratch_block=scratch_block,
            device=self._device,
            capturer=capturer,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens. Block copies are made first."""
        if plan.copies:
            pairs = torch.tensor(plan.copies, dtype=torch.int64, device=self._device)
            self._kernels.copy_blocks(self._kv_pool, pairs[:, 0], pairs[:, 1])
        # Kernels treat single-token rows on a path of their own and want them first.
        items = sorted(plan.scheduled, key=lambda item: item.num_tokens > 1)
        hidden = self._forward(collect_inputs(items, self._kv))
        rows, wanted = _logit_rows(items)
        if not wanted:  # all of the step was the inside of long prompts
            return StepResult(hidden.new_empty((0, self._model.config.vocab_size), dtype=torch.float32), rows)
        if wanted == list(range(len(wanted))):
            hidden = hidden[: len(wanted)]
        else:
            hidden = hidden[torch.tensor(wanted, device=self._device)]
        return StepResult(self._model.compute_logits(hidden), rows)

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        """Hidden states of all new tokens; rows that only pad may follow."""
        if self._graphs is not None:
            hidden = self._graphs.run(inputs)
            if hidden is not None:
                return hidden
        input_ids, batch = inputs.to(self._device)
        return self._model.forward(input_ids, self._layers, batch)


def _logit_rows(items: list[ScheduledSequence]) -> tuple[list[LogitRows], list[int]]:
    """Only rows somebody asked for go through the vocabulary projection, the dearest layer of all."""
    rows: list[LogitRows] = []
    wanted: list[int] = []
    start = 0
    for item in items:
        end = start + item.num_tokens
        chunk_wanted = _wants_prompt_logprobs(item)
        first = start if chunk_wanted else end - 1
        if chunk_wanted or item.samples:
            begin = len(wanted)
            wanted += range(first, end)
            last = len(wanted) - 1 if item.samples else -1
            rows.append(LogitRows(item, range(begin, len(wanted)), last))
        start = end
    return rows, wanted


def _wants_prompt_logprobs(item: ScheduledSequence) -> bool:
    sequence = item.sequence
    prompt = len(sequence.request.prompt_token_ids)
    return (
        sequence.request.sampling.prompt_logprobs is not None
        and sequence.index == 0
        and sequence.num_computed < prompt
        and sequence.num_output_tokens == 0
    )
