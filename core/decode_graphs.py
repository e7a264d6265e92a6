"""Decode steps as CUDA graphs: captured once for each size, then replayed with one copy and one launch.

A step of single tokens launches some hundred short kernels, and on a fast GPU launching them takes longer than running
them. A graph launches them all at once, but its addresses and grids are fixed: so a step is padded to the next size
that was captured. The rows that pad write to a scratch block and are read by nobody.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from itertools import product
from typing import NamedTuple, Protocol

import torch

from pageport.core.step_inputs import StepInputs
from pageport.kernels import RaggedBatch

Forward = Callable[[torch.Tensor, RaggedBatch], torch.Tensor]
Replay = Callable[[], torch.Tensor]

_DENSE_ROWS = 32
_SMALLEST_CONTEXT = 512


class GraphCapturer(Protocol):
    """Makes work repeatable at little cost: the same operations on the same memory."""

    def capture(self, work: Replay) -> Replay:
        """What repeats `work`; its result is overwritten each time."""
        ...


class CudaCapturer:
    """CUDA graphs that share one memory pool, as only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Replay) -> Replay:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()  # compiles kernels and makes library handles, neither of which a capture may do
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


class GraphSize(NamedTuple):
    """rows: sequences; context: tokens of the longest."""

    rows: int
    context: int


def graph_sizes(max_num_seqs: int, max_model_len: int) -> list[GraphSize]:
    """The sizes worth capturing, the largest first, so that the smaller find its memory in the pool.

    Rows: powers of two up to 32, then multiples of 32; padding costs little below, where reading weights is all that
    counts. Contexts: 512 times powers of four; too long a one costs some programs that end at once.
    """
    return [
        GraphSize(rows, context)
        for rows, context in product(
            reversed(_row_sizes(max_num_seqs)), reversed(_context_sizes(max_model_len))
        )
    ]


class DecodeGraphs:
    """Replays decode steps of any size up to the largest that was captured."""

    def __init__(
        self,
        forward: Forward,
        sizes: list[GraphSize],
        *,
        block_size: int,
        scratch_block: int,
        device: torch.device,
        capturer: GraphCapturer,
    ) -> None:
        """Capture all sizes.

        Args:
            forward: token ids and a batch to hidden states [T, hidden]; must not wait for the device, nor use the
                batch's host lengths for more than the sizes of grids and of memory.
            scratch_block: a block of the pool that is no sequence's.
        """
        self._block_size = block_size
        self._scratch_block = scratch_block
        self._rows = sorted({size.rows for size in sizes})
        self._contexts = sorted({size.context for size in sizes})
        self._staging = _Staging(self._rows[-1], self._width(self._contexts[-1]), device)
        self._replays = {size: self._capture(size, forward, capturer) for size in sizes}

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Hidden states [rows >= S, hidden] of a decode step, valid until the next; None: no captured size fits."""
        size = self._size_for(inputs)
        if size is None:
            return None
        self._stage(size, inputs)
        return self._replays[size]()

    # -- private -----------------------------------------------------------------------------------------

    def _size_for(self, inputs: StepInputs) -> GraphSize | None:
        if not inputs.is_decode:
            return None
        rows = bisect.bisect_left(self._rows, len(inputs.seq_lens))
        context = bisect.bisect_left(self._contexts, int(inputs.seq_lens.max()))
        if rows == len(self._rows) or context == len(self._contexts):
            return None
        return GraphSize(self._rows[rows], self._contexts[context])

    def _capture(self, size: GraphSize, forward: Forward, capturer: GraphCapturer) -> Replay:
        rows, context = size
        fields = self._staging.device_fields(rows, self._width(context))
        device = fields.seq_lens.device
        batch = RaggedBatch(
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=device),
            seq_lens=fields.seq_lens,
            block_tables=fields.block_tables,
            positions=fields.positions,
            slot_mapping=fields.slot_mapping,
            num_decodes=rows,
            query_lens_host=(1,) * rows,
            seq_lens_host=(context,) * rows,
        )
        self._stage(size, None)
        return capturer.capture(lambda: forward(fields.input_ids, batch))

    def _stage(self, size: GraphSize, inputs: StepInputs | None) -> None:
        """Bring a step's inputs to where the graph reads them, padded; None: nothing but padding."""
        rows, width = size.rows, self._width(size.context)
        fields = self._staging.host_fields(rows, width)
        used = 0
        if inputs is not None:
            used = len(inputs.seq_lens)
            fields.input_ids[:used] = torch.from_numpy(inputs.input_ids)
            fields.positions[:used] = torch.from_numpy(inputs.positions)
            fields.slot_mapping[:used] = torch.from_numpy(inputs.slot_mapping)
            fields.seq_lens[:used] = torch.from_numpy(inputs.seq_lens)
            fields.block_tables[:used, : inputs.block_tables.shape[1]] = torch.from_numpy(inputs.block_tables)
        fields.input_ids[used:] = 0
        fields.positions[used:] = 0
        fields.slot_mapping[used:] = self._scratch_block * self._block_size
        fields.seq_lens[used:] = 1
        fields.block_tables[used:, :1] = self._scratch_block
        self._staging.send(rows, width)

    def _width(self, context: int) -> int:
        return -(-context // self._block_size)


class _Fields(NamedTuple):
    """Views of one piece of memory: int64 [rows] three times, int32 [rows], int32 [rows, width]."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor


class _Staging:
    """The inputs of all sizes, in one piece of pinned memory and one of the device's: a step makes one copy."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        words = _words(rows, width)
        on_gpu = device.type == "cuda"
        self._host = torch.empty(words, dtype=torch.int64, pin_memory=on_gpu)
        self._device = torch.empty(words, dtype=torch.int64, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def host_fields(self, rows: int, width: int) -> _Fields:
        """To be written; waits until the copy before has left, which it has unless a step sampled nothing."""
        if self._copied is not None:
            self._copied.synchronize()
        return _fields(self._host, rows, width)

    def device_fields(self, rows: int, width: int) -> _Fields:
        return _fields(self._device, rows, width)

    def send(self, rows: int, width: int) -> None:
        words = _words(rows, width)
        self._device[:words].copy_(self._host[:words], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _words(rows: int, width: int) -> int:
    return 3 * rows + (rows * (1 + width) + 1) // 2


def _fields(memory: torch.Tensor, rows: int, width: int) -> _Fields:
    wide = memory[: 3 * rows].view(3, rows)
    narrow = memory[3 * rows :].view(torch.int32)
    return _Fields(
        wide[0], wide[1], wide[2], narrow[:rows], narrow[rows : rows * (1 + width)].view(rows, width)
    )


def _row_sizes(limit: int) -> list[int]:
    sizes = [1 << power for power in range(_DENSE_ROWS.bit_length())] + list(
        range(2 * _DENSE_ROWS, limit, _DENSE_ROWS)
    )
    return [size for size in sizes if size < limit] + [limit]


def _context_sizes(limit: int) -> list[int]:
    sizes = []
    context = _SMALLEST_CONTEXT
    while context < limit:
        sizes.append(context)
        context *= 4
    return [*sizes, limit]
