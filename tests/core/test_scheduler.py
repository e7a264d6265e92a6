"""The scheduler's plans, with a pretended model that remembers what it computed and how."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_engine import MAX_LEN, PretendEngine


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """Prompt, length of the answer, n; many prompts have a beginning in common."""
    length, common = draw(st.integers(1, 20)), draw(st.integers(0, 20))
    prompt = ((7,) * common + (8,) * length)[:length]
    return prompt, draw(st.integers(1, 12)), draw(st.integers(1, 3))


@given(
    arrivals=st.lists(st.lists(requests(), max_size=3), max_size=12),
    aborts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=5),
    block_size=st.sampled_from([1, 3, 4, 8]),
    spare=st.integers(0, 6),
    max_num_seqs=st.integers(3, 6),
    budget=st.integers(1, 24),
    alignment=st.sampled_from([1, 4, 8]),
    prefix_caching=st.booleans(),
    exact_recompute=st.booleans(),
)
@settings(max_examples=600, deadline=None)
def test_every_request_ends_and_no_block_is_left(
    arrivals: list[list[tuple[tuple[int, ...], int, int]]],
    aborts: list[tuple[int, int]],
    block_size: int,
    spare: int,
    max_num_seqs: int,
    budget: int,
    alignment: int,
    prefix_caching: bool,
    exact_recompute: bool,
) -> None:
    # The pool holds one sequence of the greatest length and little more: constant pressure.
    num_blocks = -(-MAX_LEN // block_size) + spare
    engine = PretendEngine(
        num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, budget=budget,
        alignment=alignment, prefix_caching=prefix_caching, exact_recompute=exact_recompute,
    )  # fmt: skip
    expected, aborted, steps = 0, 0, 0
    for batch in arrivals:
        for prompt, output, n in batch:
            engine.add(prompt, output, n)
            expected += n
        engine.step()
        steps += 1
        for when, index in aborts:
            if when == steps and engine.live:
                victim = engine.live[index % len(engine.live)]
                aborted += victim.seats
                engine.abort(victim)
                engine.kv.check_integrity()
    limit = 2000
    while engine.scheduler.has_work:
        oldest = min(engine.live, key=lambda s: s.arrival)
        plan = engine.step()
        assert plan.scheduled, "work is left and the step is empty"
        if budget > max_num_seqs:
            assert any(item.sequence.arrival == oldest.arrival for item in plan.scheduled), "oldest stopped"
        steps += 1
        assert steps < limit, "requests do not end"
    assert len(engine.finished) + aborted == expected
    assert engine.kv.pool.num_used == 0


def test_prompts_fill_the_budget_that_decodes_leave() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=8, budget=8)
    for _ in range(3):
        engine.add(prompt=2, output=9)
    engine.step()
    engine.add(prompt=20, output=2)
    shares = [[num_tokens for _, num_tokens in engine.step().scheduled] for _ in range(5)]
    assert shares == [[1, 1, 1, 5]] * 4 + [[1, 1, 1, 1]]


def test_requests_join_and_leave_at_any_step() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=8, budget=16)
    engine.add(prompt=3, output=2)
    assert len(engine.step().scheduled) == 1
    engine.add(prompt=4, output=3)
    assert [num for _, num in engine.step().scheduled] == [1, 4]
    assert len(engine.finished) == 1
    assert [num for _, num in engine.step().scheduled] == [1]


def test_the_newest_gives_up_its_blocks_and_comes_back_before_later_ones() -> None:
    engine = PretendEngine(num_blocks=8, block_size=4, max_num_seqs=4, budget=64)
    old = engine.add(prompt=12, output=12)
    new = engine.add(prompt=12, output=12)
    engine.step()
    later = engine.add(prompt=12, output=4)
    for _ in range(5):
        engine.step()
    assert old.table is not None and new.table is None and new.num_computed == 0
    assert list(engine.scheduler.waiting) == [new, later]
    assert engine.scheduler.num_preemptions == 1
    while engine.scheduler.has_work:
        engine.step()
    assert [s.num_output_tokens for s in engine.finished] == [12, 12, 4]
    assert engine.finished == [old, new, later]


def test_a_prompt_waits_until_it_fits_beside_prompts_being_computed() -> None:
    engine = PretendEngine(num_blocks=10, block_size=4, max_num_seqs=4, budget=8)
    engine.add(prompt=24, output=1)
    engine.add(prompt=20, output=1)
    assert [num for _, num in engine.step().scheduled] == [8]
    assert [num for _, num in engine.step().scheduled] == [8]
    assert [num for _, num in engine.step().scheduled] == [8]
    assert engine.scheduler.num_preemptions == 0


def test_forks_have_their_seats_reserved() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=4, budget=64)
    engine.add(prompt=2, output=2)
    engine.add(prompt=2, output=2)
    engine.add(prompt=2, output=2, n=3)
    assert len(engine.step().scheduled) == 2, "three seats are not free yet"
    engine.step()
    assert len(engine.step().scheduled) == 1
    assert len(engine.step().scheduled) == 3


def test_no_room_is_reserved_for_tokens_that_may_never_come() -> None:
    engine = PretendEngine(num_blocks=8, block_size=4, max_num_seqs=8, budget=64)
    for _ in range(8):
        engine.add(prompt=3, output=29)
    assert len(engine.step().scheduled) == 8


def test_prompts_are_cut_at_multiples_of_the_alignment_and_never_leave_one_token() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=2, budget=14, alignment=4)
    engine.add(prompt=30, output=1)
    shares = [[num for _, num in engine.step().scheduled] for _ in range(3)]
    assert shares == [[12], [12], [6]]
    engine.add(prompt=17, output=1)
    assert [num for _, num in engine.step().scheduled] == [12]
    assert [num for _, num in engine.step().scheduled] == [5]
    engine.add(prompt=25, output=1)
    assert [[num for _, num in engine.step().scheduled] for _ in range(2)] == [[12], [13]]
    engine.add(prompt=13, output=1)
    engine.add(prompt=5, output=1)
    assert [num for _, num in engine.step().scheduled] == [13]


def test_a_budget_too_small_for_aligned_pieces_cuts_anywhere() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=2, budget=6, alignment=4)
    engine.add(prompt=10, output=1)
    assert [[num for _, num in engine.step().scheduled] for _ in range(2)] == [[6], [4]]


def test_an_older_prompt_leaves_newer_decodes_their_tokens() -> None:
    engine = PretendEngine(num_blocks=64, block_size=4, max_num_seqs=8, budget=8)
    prompt = engine.add(prompt=30, output=2)
    engine.step()
    for _ in range(3):  # as if they had come while the long prompt was away
        engine.add(prompt=1, output=9)
    engine.scheduler.running.remove(prompt)
    engine.step()
    engine.scheduler.running.insert(0, prompt)
    assert [num for _, num in engine.step().scheduled] == [5, 1, 1, 1]


def test_newer_sequences_never_take_blocks_from_older_ones() -> None:
    engine = PretendEngine(num_blocks=12, block_size=3, max_num_seqs=5, budget=15, alignment=4)
    for batch in ([(1, 6, 1)], [(1, 5, 1), (11, 7, 1), (9, 4, 2)], [(19, 1, 1), (1, 4, 3)]):
        for prompt, output, n in batch:
            engine.add(prompt, output, n)
        engine.step()
    while engine.scheduler.has_work:
        oldest = min(sequence.arrival for sequence in engine.live)
        assert oldest in {item.sequence.arrival for item in engine.step().scheduled}
    assert len(engine.finished) == 9
