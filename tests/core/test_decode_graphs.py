"""The logic of captured decode steps, on the CPU: a stand-in repeats the work where a GPU would replay a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import BLOCK_BYTES, make_engine, run
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.core import SamplingParams
from pageport.core import engine as engine_module
from pageport.core.config import EngineConfig
from pageport.core.decode_graphs import DecodeGraphs, GraphSize, graph_sizes
from pageport.core.step_inputs import StepInputs
from pageport.kernels import RaggedBatch
from pageport.kernels.reference import ReferenceKernels

CPU = torch.device("cpu")
BLOCK = 4
SCRATCH = 900


class RepeatingCapturer:
    """Replaying is doing the work again."""

    replays = 0

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        work()

        def replay() -> torch.Tensor:
            type(self).replays += 1
            return work()

        return replay


def decode_inputs(seq_lens: list[int], first_id: int = 7) -> StepInputs:
    """Sequence s holds the blocks 100 s, 100 s + 1 and so on."""
    lens = np.array(seq_lens, dtype=np.int64)
    width = -(-max(seq_lens) // BLOCK)
    tables = (100 * np.arange(len(lens))[:, None] + np.arange(width)).astype(np.int32)
    positions = lens - 1
    blocks = tables[np.arange(len(lens)), positions // BLOCK].astype(np.int64)
    return StepInputs(
        input_ids=np.arange(first_id, first_id + len(lens)),
        positions=positions,
        slot_mapping=blocks * BLOCK + positions % BLOCK,
        query_lens=np.ones(len(lens), dtype=np.int64),
        seq_lens=lens,
        block_tables=tables,
    )


class Recorder:
    """A forward that keeps what it saw."""

    def __init__(self) -> None:
        self.ids = torch.empty(0)
        self.batch: RaggedBatch | None = None

    def __call__(self, input_ids: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        self.ids, self.batch = input_ids.clone(), batch
        return input_ids[:, None].float() * 10 + batch.positions[:, None]


def make_graphs(forward: Recorder, sizes: list[GraphSize]) -> DecodeGraphs:
    return DecodeGraphs(
        forward,
        sizes,
        block_size=BLOCK,
        scratch_block=SCRATCH,
        device=CPU,
        capturer=RepeatingCapturer(),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=4))
def test_a_graph_reads_the_step_and_padding_that_harms_nobody(steps: list[list[int]]) -> None:
    """Steps of several sizes one after the other: what one leaves in the memory is not read by the next."""
    forward = Recorder()
    graphs = make_graphs(forward, [GraphSize(rows, context) for rows in (9, 4, 1) for context in (40, 10)])
    for number, lens in enumerate(steps):
        inputs = decode_inputs(lens, first_id=50 * number)
        hidden = graphs.run(inputs)
        used, batch = len(lens), forward.batch
        assert hidden is not None and batch is not None
        assert hidden[:used, 0].tolist() == (inputs.input_ids * 10 + inputs.positions).tolist()
        rows = len(batch.seq_lens_host)
        assert rows == min(size for size in (1, 4, 9) if size >= used)
        assert set(batch.seq_lens_host) == {10 if max(lens) <= 10 else 40}
        assert batch.num_decodes == rows and batch.query_start_loc.tolist() == list(range(rows + 1))
        padding = rows - used
        assert batch.seq_lens.tolist() == [*lens, *[1] * padding]
        assert batch.slot_mapping.tolist() == [*inputs.slot_mapping.tolist(), *[SCRATCH * BLOCK] * padding]
        assert forward.ids[used:].tolist() == batch.positions[used:].tolist() == [0] * padding
        assert batch.block_tables[used:, 0].tolist() == [SCRATCH] * padding
        width = inputs.block_tables.shape[1]
        assert batch.block_tables[:used, :width].tolist() == inputs.block_tables.tolist()


def test_what_no_graph_fits_is_left_to_the_runner() -> None:
    graphs = make_graphs(Recorder(), [GraphSize(4, 40)])
    assert graphs.run(decode_inputs([1] * 4)) is not None
    assert graphs.run(decode_inputs([1] * 5)) is None
    assert graphs.run(decode_inputs([41])) is None
    one_prompt = replace(decode_inputs([3]), input_ids=np.arange(3))
    assert graphs.run(one_prompt) is None


def test_sizes_end_at_the_limits_and_the_largest_comes_first() -> None:
    sizes = graph_sizes(80, 4096)
    assert sizes[0] == (80, 4096)
    assert sorted({size.rows for size in sizes}) == [1, 2, 4, 8, 16, 32, 64, 80]
    assert sorted({size.context for size in sizes}) == [512, 2048, 4096]
    assert sizes == sorted(sizes, reverse=True)
    assert graph_sizes(1, 100) == [(1, 100)]


class LengthsFromTensors(ReferenceKernels):
    """The host's lengths are those of the capture, so that this reads the tensors, as a GPU's kernels do."""

    def paged_attention(
        self, query: torch.Tensor, kv_cache: torch.Tensor, batch: RaggedBatch, **options: Any
    ) -> torch.Tensor:
        batch = replace(batch, seq_lens_host=tuple(batch.seq_lens.tolist()))
        return super().paged_attention(query, kv_cache, batch, **options)


def test_an_engine_that_replays_gives_the_same_answers(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, forks, copies and preemption between replayed steps."""
    requests = [
        ((1, 2, 3), SamplingParams(max_tokens=30, ignore_eos=True)),
        (tuple(range(40)), SamplingParams(n=2, max_tokens=20, temperature=1.0, seed=4, ignore_eos=True)),
        ((9,), SamplingParams(max_tokens=50, ignore_eos=True, prompt_logprobs=1)),
    ]
    arguments = {"kernel_backend": "reference", "kv_cache_memory_bytes": 30 * BLOCK_BYTES, "max_num_seqs": 6}
    expected = run(make_engine(tiny_model, **arguments), *requests)
    monkeypatch.setattr(engine_module, "uses_decode_graphs", lambda config, device: True)
    monkeypatch.setattr(engine_module, "CudaCapturer", RepeatingCapturer)
    monkeypatch.setattr(engine_module, "make_kernels", lambda name, device: LengthsFromTensors())
    engine = make_engine(tiny_model, **arguments)
    monkeypatch.setattr(RepeatingCapturer, "replays", 0)
    answers = run(engine, *requests)
    assert RepeatingCapturer.replays > 30
    assert engine.stats().num_preemptions > 0
    for own, other in zip(answers, expected, strict=True):
        assert [output.token_ids for output in own] == [output.token_ids for output in other]


def test_graphs_are_for_gpus_and_can_be_declined() -> None:
    gpu = torch.device("cuda")
    assert engine_module.uses_decode_graphs(EngineConfig(model=Path("x")), gpu)
    assert not engine_module.uses_decode_graphs(EngineConfig(model=Path("x"), enforce_eager=True), gpu)
    assert not engine_module.uses_decode_graphs(EngineConfig(model=Path("x")), CPU)
