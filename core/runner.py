"""Turns a step's plan into tensors, runs the model, and returns logits for the rows that need them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from pageport.core.kv_cache import layer_views
from pageport.core.kv_manager import KVManager
from pageport.core.model.llama import LlamaForCausalLM
from pageport.core.scheduler import ScheduledSequence, StepPlan
from pageport.kernels import Kernels, RaggedBatch


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

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens. Block copies are made first."""
        if plan.copies:
            pairs = torch.tensor(plan.copies, dtype=torch.int64, device=self._device)
            self._kernels.copy_blocks(self._kv_pool, pairs[:, 0], pairs[:, 1])
        # Kernels treat single-token rows on a path of their own and want them first.
        items = sorted(plan.scheduled, key=lambda item: item.num_tokens > 1)
        input_ids = torch.from_numpy(_input_ids(items)).to(self._device)
        hidden = self._model.forward(input_ids, self._layers, self._batch(items))
        rows, wanted = _logit_rows(items)
        if not wanted:  # all of the step was the inside of long prompts
            return StepResult(hidden.new_empty((0, self._model.config.vocab_size), dtype=torch.float32), rows)
        if len(wanted) < hidden.shape[0]:
            hidden = hidden[torch.tensor(wanted, device=self._device)]
        return StepResult(self._model.compute_logits(hidden), rows)

    def _batch(self, items: list[ScheduledSequence]) -> RaggedBatch:
        tables = [item.sequence.table for item in items]
        new = np.fromiter((item.num_tokens for item in items), np.int64, len(items))
        computed = np.fromiter((item.sequence.num_computed for item in items), np.int64, len(items))
        starts = np.zeros(len(items) + 1, dtype=np.int64)
        np.cumsum(new, out=starts[1:])
        seq_of_token = np.repeat(np.arange(len(items)), new)
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1] - computed, new)
        table_rows = np.fromiter((table.row for table in tables if table is not None), np.int64, len(items))
        width = max(table.num_blocks for table in tables if table is not None)
        block_tables = self._kv.tables[table_rows, :width]
        block_size = self._kv.block_size
        blocks = block_tables[seq_of_token, positions // block_size].astype(np.int64)
        seq_lens = computed + new
        return RaggedBatch(
            query_start_loc=self._tensor(starts.astype(np.int32)),
            seq_lens=self._tensor(seq_lens.astype(np.int32)),
            block_tables=self._tensor(block_tables),
            positions=self._tensor(positions),
            slot_mapping=self._tensor(blocks * block_size + positions % block_size),
            num_decodes=int((new == 1).sum()),
            query_lens_host=tuple(new.tolist()),
            seq_lens_host=tuple(seq_lens.tolist()),
        )

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _input_ids(items: list[ScheduledSequence]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids: list[int] = []
    for sequence, num_tokens in items:
        ids += sequence.token_ids[sequence.num_computed : sequence.num_computed + num_tokens]
    return np.array(ids, dtype=np.int64)


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
