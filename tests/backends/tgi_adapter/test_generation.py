"""Outputs of an engine as TGI's events."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pageport.backends.tgi_adapter.generation import (
    GenerationFailedError,
    GenerationReader,
    PrefillToken,
    StopReason,
    Token,
    TokenSpeller,
)
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.core import FinishReason, Logprob, PositionLogprobs, RequestOutput

END = 256


@pytest.fixture(scope="module")
def speller() -> TokenSpeller:
    """One token a byte, and `<end>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TokenSpeller(tokenizer)


def ids_of(speller: TokenSpeller, text: str) -> list[int]:
    ids: list[int] = speller.tokenizer.encode(text).ids
    return ids


def reader(
    speller: TokenSpeller, prompt: str = "Hi", max_new_tokens: int = 100, **given: Any
) -> GenerationReader:
    return GenerationReader(
        speller, ids_of(speller, prompt), GenerationParameters(max_new_tokens, seed=7, **given)
    )


def output(
    token_ids: list[int], texts: list[str], finish: FinishReason | None = None, **more: Any
) -> RequestOutput:
    logprobs: list[PositionLogprobs] = [{token: Logprob(-0.5, 1, "?")} for token in token_ids]
    return RequestOutput(
        "r", token_ids=token_ids, token_texts=texts, logprobs=logprobs, finish_reason=finish, **more
    )


def test_one_event_a_token_and_the_whole_text_at_the_end(speller: TokenSpeller) -> None:
    a, b = ids_of(speller, "ab")
    events = reader(speller).read(output([a, b, END], ["a", "b", "<end>"], FinishReason.STOP))
    assert [event.token for event in events] == [
        Token(a, "a", -0.5, special=False),
        Token(b, "b", -0.5, special=False),
        Token(END, "<end>", -0.5, special=True),
    ]
    assert [event.generated for event in events[:-1]] == [None, None]
    generated = events[-1].generated
    assert generated is not None
    assert (generated.text, generated.generated_tokens, generated.seed) == ("ab", 3, None)


@pytest.mark.parametrize(
    ("given", "count", "finish", "stop_reason", "expected"),
    [
        ({}, 3, FinishReason.STOP, None, StopReason.EOS_TOKEN),
        ({"max_new_tokens": 3}, 3, FinishReason.STOP, None, StopReason.LENGTH),
        ({"max_new_tokens": 3}, 3, FinishReason.STOP, "x", StopReason.LENGTH),
        ({"stop_sequences": ("x",)}, 3, FinishReason.STOP, "x", StopReason.STOP_SEQUENCE),
        ({"stop_sequences": ("",)}, 1, FinishReason.LENGTH, None, StopReason.STOP_SEQUENCE),
        ({"stop_sequences": ("",)}, 1, FinishReason.STOP, None, StopReason.EOS_TOKEN),
        ({}, 3, FinishReason.LENGTH, None, StopReason.LENGTH),
    ],
)
def test_length_comes_before_the_end_token_and_that_before_stop_sequences(
    speller: TokenSpeller,
    given: dict[str, Any],
    count: int,
    finish: FinishReason,
    stop_reason: str | None,
    expected: StopReason,
) -> None:
    events = reader(speller, **given).read(
        output([5] * count, ["x"] * count, finish, stop_reason=stop_reason)
    )
    assert events[-1].generated is not None
    assert events[-1].generated.finish_reason is expected


def test_a_seed_only_where_it_was_used(speller: TokenSpeller) -> None:
    for given, seed in (({}, None), ({"do_sample": True}, 7)):
        (event,) = reader(speller, **given).read(output([5], ["x"], FinishReason.LENGTH))
        assert event.generated is not None
        assert event.generated.seed == seed


def test_the_prompt_comes_with_the_first_event_only(speller: TokenSpeller) -> None:
    (i,) = ids_of(speller, "i")
    read = reader(speller, "Hi", prefill_logprobs=True)
    first, second = read.read(output([5, 5], ["x", "x"], prompt_logprobs=[None, {i: Logprob(-2.0, 9, "i")}]))
    assert first.prefill == (PrefillToken(ids_of(speller, "H")[0], "H", None), PrefillToken(i, "i", -2.0))
    assert second.prefill == ()


def position(*entries: tuple[int, float, int]) -> RequestOutput:
    """One token, the first of the entries, and alternatives: id, log-probability, rank."""
    values = {token: Logprob(logprob, rank, f"t{token}") for token, logprob, rank in entries}
    return RequestOutput("r", token_ids=[entries[0][0]], token_texts=["x"], logprobs=[values])


def test_top_tokens_are_the_likeliest_with_all_that_tie_at_the_last_place(speller: TokenSpeller) -> None:
    likely = position((9, -0.1, 1), (3, -1.0, 2), (4, -1.0, 3), (6, -2.0, 4))
    (event,) = reader(speller, top_n_tokens=2).read(likely)
    assert [(token.id, token.text, token.logprob) for token in event.top_tokens] == [
        (9, "t9", -0.1),
        (3, "t3", -1.0),
        (4, "t4", -1.0),
    ]


def test_an_unlikely_token_is_not_among_its_alternatives(speller: TokenSpeller) -> None:
    unlikely = position((9, -7.0, 40), (3, -1.0, 1), (4, -1.5, 2))
    (event,) = reader(speller, top_n_tokens=2).read(unlikely)
    assert [token.id for token in event.top_tokens] == [3, 4]
    (event,) = reader(speller).read(position((9, -7.0, 0)))
    assert event.top_tokens == ()


def test_fewer_possible_tokens_than_asked_for(speller: TokenSpeller) -> None:
    (event,) = reader(speller, top_n_tokens=5).read(position((9, 0.0, 1)))
    assert [token.id for token in event.top_tokens] == [9]


def test_the_text_has_whole_characters_only(speller: TokenSpeller) -> None:
    cut = ids_of(speller, "aé😀")[:-1]
    (*_, last) = reader(speller).read(output(cut, ["a", "", "é", "", "", ""], FinishReason.LENGTH))
    assert last.generated is not None
    assert last.generated.text == "aé"


def test_a_prompt_cut_inside_a_character_does_not_cut_the_text(speller: TokenSpeller) -> None:
    prompt = ids_of(speller, "x😀")[:-1]
    read = GenerationReader(speller, prompt, GenerationParameters(9, seed=0))
    (*_, last) = read.read(output(ids_of(speller, "okay"), list("okay"), FinishReason.LENGTH))
    assert last.generated is not None
    assert last.generated.text == "okay"


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
def test_a_request_that_failed_says_why(speller: TokenSpeller, reason: FinishReason) -> None:
    with pytest.raises(GenerationFailedError, match="out of luck"):
        reader(speller).read(output([], [], reason, error="out of luck"))
