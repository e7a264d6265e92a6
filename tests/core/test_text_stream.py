"""Streaming text against the tokenizer's own decoding of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pageport.core.sampling_params import StopMatch
from pageport.core.text_stream import TextDelta, TextStream


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and one special token (id 256): every multi-byte character spans tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


TOKENIZER = byte_tokenizer()
PROMPT = TOKENIZER.encode("Hello").ids


def push_all(stream: TextStream, text: str) -> list[TextDelta]:
    """Feed a text's tokens until a stop string ends it."""
    deltas = []
    for token in TOKENIZER.encode(text).ids:
        deltas.append(stream.push(token))
        if deltas[-1].stop_string is not None:
            break
    return deltas


@given(text=st.text(max_size=40))
@settings(deadline=None)
def test_streamed_text_is_the_whole_text_and_never_a_broken_character(text: str) -> None:
    stream = TextStream(TOKENIZER, PROMPT)
    pieces = [delta.text for delta in push_all(stream, text)]
    assert "".join(pieces) + stream.flush() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_an_unfinished_character_never_comes_out() -> None:
    stream = TextStream(TOKENIZER, PROMPT)
    ids = TOKENIZER.encode("a😀").ids
    assert [stream.push(token).text for token in ids[:-1]] == ["a", "", "", ""]
    assert stream.flush() == ""


@given(
    text=st.text(alphabet="abé", max_size=30),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_stops_where_a_stop_string_first_completes(text: str, stops: list[str], include: bool) -> None:
    # The slow truth: grow the text a character at a time until some stop string is in it.
    expected, hit = text, None
    for end in range(len(text) + 1):
        found = [(text[:end].find(stop), stop) for stop in stops if stop in text[:end]]
        if found:
            position, hit = min(found, key=lambda match: match[0])
            expected = text[: position + len(hit)] if include else text[:position]
            break
    stream = TextStream(TOKENIZER, PROMPT, stop=stops, include_stop_string=include)
    deltas = push_all(stream, text)
    assert "".join(delta.text for delta in deltas) + stream.flush() == expected
    assert (deltas[-1].stop_string if deltas else None) == hit


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    stream = TextStream(TOKENIZER, PROMPT, stop=["ABC"])
    assert [delta.text for delta in push_all(stream, "xABxABABC")] == [
        "x",
        "",
        "",
        "ABx",
        "",
        "",
        "AB",
        "",
        "",
    ]


def test_min_tokens_lets_a_stop_string_pass() -> None:
    stream = TextStream(TOKENIZER, PROMPT, stop=["b"])
    a, b = TOKENIZER.encode("ab").ids
    assert stream.push(b, may_stop=False) == TextDelta("b", None, "b")
    assert stream.push(a) == TextDelta("a", None, "a")
    assert stream.push(b) == TextDelta("", "b", "b")


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<end>b")])
def test_special_tokens_show_only_on_request(skip: bool, expected: str) -> None:
    stream = TextStream(TOKENIZER, PROMPT, skip_special_tokens=skip)
    a, b = TOKENIZER.encode("ab").ids
    end = TOKENIZER.token_to_id("<end>")
    assert "".join(stream.push(token).text for token in (a, end, b)) == expected


def test_first_token_after_the_prompt_keeps_its_leading_space() -> None:
    """Decoders of the SentencePiece kind drop the first space of a text; an answer is not a first text."""
    tokenizer = Tokenizer(models.WordLevel({"▁Hello": 0, "▁world": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([1]) == "world"
    assert TextStream(tokenizer, [0]).push(1).text == " world"


def test_a_prompt_that_ends_in_the_middle_of_a_character_stays_out_of_the_answer() -> None:
    cut = TOKENIZER.encode("naïve 😀").ids[:-2]
    stream = TextStream(TOKENIZER, cut)
    assert [stream.push(token).text for token in TOKENIZER.encode("ok é").ids] == ["o", "k", " ", "", "é"]


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["cd"], "abcde", ("abcd", "cd")),
        (["bc", "cd"], "abcde", ("abc", "bc")),
        (["xx"], "abxcx", ("abxcx", None)),
        (["é"], "aéb", ("aé", "é")),
        (["b" * 300 + "c"], "b" * 301 + "cd", ("b" * 301 + "c", "b" * 300 + "c")),
    ],
)
def test_a_stop_string_at_a_tokens_end_stays_in_the_text(
    stops: list[str], text: str, expected: tuple[str, str | None]
) -> None:
    stream = TextStream(TOKENIZER, PROMPT, stop=stops, stop_match=StopMatch.AT_TOKEN_END)
    deltas = push_all(stream, text)
    assert ("".join(delta.text for delta in deltas), deltas[-1].stop_string) == expected


def test_a_stop_string_inside_a_token_does_not_count_at_a_tokens_end() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["intelligence"])
    stream = TextStream(tokenizer, PROMPT, stop=["ntell"], stop_match=StopMatch.AT_TOKEN_END)
    assert stream.push(tokenizer.token_to_id("intelligence")) == TextDelta(
        "intelligence", None, "intelligence"
    )
    elsewhere = TextStream(tokenizer, PROMPT, stop=["ntell"])
    assert elsewhere.push(tokenizer.token_to_id("intelligence")) == TextDelta("i", "ntell", "intelligence")


@pytest.mark.parametrize(("token", "stops"), [(".\n", True), (".\n\n", False), (".", True), (".x", False)])
def test_a_line_break_may_follow_a_stop_string_at_a_tokens_end(token: str, stops: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([token])
    stream = TextStream(tokenizer, PROMPT, stop=["a."], stop_match=StopMatch.AT_TOKEN_END)
    stream.push(tokenizer.encode("a").ids[0])
    delta = stream.push(tokenizer.token_to_id(token))
    assert delta == TextDelta(token, "a." if stops else None, token)


def test_what_came_before_min_tokens_can_begin_a_stop_string() -> None:
    stream = TextStream(TOKENIZER, PROMPT, stop=["bc"], stop_match=StopMatch.AT_TOKEN_END)
    a, b, c = TOKENIZER.encode("abc").ids
    assert [stream.push(token, may_stop=False).stop_string for token in (b, c, a, b)] == [None] * 4
    assert stream.push(c).stop_string == "bc"


def test_a_tokens_own_text_comes_with_it_even_where_text_is_held_back() -> None:
    stream = TextStream(TOKENIZER, PROMPT, stop=["abc"])
    deltas = push_all(stream, "xaé")
    assert [delta.text for delta in deltas] == ["x", "", "", "aé"]
    assert [delta.token_text for delta in deltas] == ["x", "a", "", "é"]
