"""Where the scheduler lets a prompt begin, and how it computes again what was lost; by example."""

from __future__ import annotations

import pytest
from pretend_engine import PretendEngine

from pageport.core.request import EngineRequest
from pageport.core.sampling_params import SamplingParams
from pageport.core.sequence import Sequence


def make_engine(
    *, num_blocks: int = 64, block_size: int = 4, budget: int = 64, alignment: int = 4
) -> PretendEngine:
    return PretendEngine(
        num_blocks=num_blocks, block_size=block_size, max_num_seqs=8, budget=budget, alignment=alignment,
        prefix_caching=True, exact_recompute=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("alignment", "block_size", "length", "computed"),
    [
        (1, 4, 15, 3),
        (1, 4, 13, 1),
        (1, 4, 12, 4),  # something has to be computed
        (4, 4, 15, 3),
        (4, 4, 13, 5),  # not one alone
        (4, 4, 5, 5),
        (8, 4, 15, 7),
        (4, 3, 20, 8),  # pieces of 12 end where blocks and tiles do
        (4, 3, 13, 13),
        (8, 16, 20, 4),
    ],
)
def test_a_known_prompt_begins_behind_whole_pieces(
    alignment: int, block_size: int, length: int, computed: int
) -> None:
    engine = make_engine(alignment=alignment, block_size=block_size)
    engine.add(range(length), output=1)
    assert engine.shares() == [length]
    engine.add(range(length), output=1)
    assert engine.shares() == [computed]
    assert (engine.scheduler.prefix_queries, engine.scheduler.prefix_hits) == (2 * length, length - computed)


def test_what_lies_behind_the_last_whole_piece_is_not_mixed_into_another_prompt() -> None:
    engine = make_engine(alignment=8)
    engine.add(range(14), output=1)  # its tokens 8 to 13 are a piece of six
    engine.step()
    engine.add(range(18), output=1)
    assert engine.shares() == [10]
    engine.add(range(18), output=1)
    assert engine.shares() == [10 - 8], "two pieces, the second from the second prompt"


def test_generated_tokens_are_not_found() -> None:
    engine = make_engine()
    first = engine.add(range(8), output=9)
    engine.run()
    engine.add(first.token_ids, output=1)
    assert engine.shares() == [17 - 8]


def test_a_prompt_is_found_as_far_as_it_is_computed_while_it_is_being_computed() -> None:
    engine = make_engine(budget=16)
    engine.add(range(31), output=1)
    assert engine.shares() == [16]
    engine.add([*range(24), 99, 98, 97], output=1)
    assert engine.shares() == [15], "the second has no budget yet"
    assert engine.shares() == [3]
    assert engine.scheduler.prefix_hits == 24


def test_an_aborted_prompt_leaves_what_it_has_computed() -> None:
    engine = make_engine(budget=16)
    aborted = engine.add(range(31), output=1)
    engine.step()
    engine.abort(aborted)
    engine.add(range(31), output=1)
    assert engine.shares() == [15]


def test_log_probabilities_of_the_prompt_need_all_of_it_but_leave_it_to_others() -> None:
    engine = make_engine()
    for _ in range(2):
        engine.add(range(16), output=1, prompt_logprobs=1)
        assert engine.shares() == [16]
    assert (engine.scheduler.prefix_queries, engine.scheduler.prefix_hits) == (0, 0)
    engine.add(range(16), output=1)
    assert engine.shares() == [4]


def test_blocks_that_others_hold_cost_nothing() -> None:
    engine = make_engine(num_blocks=8)
    engine.add(range(22), output=6)  # six blocks, a seventh later
    engine.step()
    engine.add([*range(20), 99, 98, 97], output=1)
    assert engine.shares() == [1, 3]


def test_blocks_that_nobody_holds_cost_a_free_one() -> None:
    engine = make_engine(num_blocks=8)
    engine.add(range(20), output=1)
    engine.step()
    assert engine.kv.pool.num_free == 8, "what can be found is free"
    engine.add([99] * 12, output=8)
    engine.step()
    assert engine.kv.pool.num_free == 5
    waiting = engine.add(range(24), output=1)  # five blocks found among the free ones, and one more
    assert engine.shares() == [1]
    assert waiting.table is None and waiting.num_computed == 0
    engine.run()
    assert len(engine.finished) == 3


def test_tokens_behind_the_prompt_come_one_a_step_and_draw_nothing_until_the_last() -> None:
    engine = make_engine()
    resumed = Sequence.first_of(EngineRequest("a", tuple(range(10)), SamplingParams(max_tokens=6), 0.0))
    resumed.token_ids += [100, 101, 102]
    engine.live.append(resumed)
    engine.scheduler.add(resumed)
    seen = []
    while engine.scheduler.has_work:
        ((_, num_tokens),) = engine.step().scheduled
        seen.append((num_tokens, resumed.num_output_tokens))
    assert seen == [(10, 3), (1, 3), (1, 3), (1, 4), (1, 5), (1, 6)]


def test_or_all_in_one_step_where_bits_do_not_matter() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=8, budget=64, alignment=4)
    resumed = Sequence.first_of(EngineRequest("a", tuple(range(10)), SamplingParams(max_tokens=6), 0.0))
    resumed.token_ids += [100, 101, 102]
    engine.live.append(resumed)
    engine.scheduler.add(resumed)
    assert engine.shares() == [13]
    assert resumed.num_output_tokens == 4


def test_a_preempted_sequence_finds_its_prompt_again_and_is_no_new_query() -> None:
    engine = make_engine(num_blocks=8)
    engine.add(range(12), output=6)
    victim = engine.add(range(100, 115), output=6)
    engine.step()
    while victim.table is not None:
        engine.step()
    lost = victim.num_output_tokens
    assert lost > 1
    while victim.table is None:
        plan = engine.step()
    assert [(s, num_tokens) for s, num_tokens in plan.scheduled if s is victim] == [(victim, 3)]
    assert victim.num_output_tokens == lost, "the tokens behind the prompt come next"
    engine.run()
    assert [s.num_output_tokens for s in engine.finished] == [6, 6]
    assert (engine.scheduler.prefix_queries, engine.scheduler.prefix_hits) == (27, 0)
