"""What each token added to the text, as the engine reports it."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_runs import EOS, answer, make_engine

from pageport.core import Engine, FinishReason, Grammar, GrammarKind, StopMatch

PROMPT = tuple(b"anything")


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return make_engine(tiny_model)


def writing(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def test_one_entry_a_token_and_an_end_token_is_one_too(engine: Engine) -> None:
    shown = answer(
        engine, PROMPT, grammar=writing("aé!"), token_texts=True, skip_special_tokens=False, max_tokens=9
    )
    assert shown.token_texts == ["a", "", "é", "!", "<end>"]
    assert (shown.text, shown.token_ids[-1], shown.finish_reason) == ("aé!", EOS, FinishReason.STOP)
    hidden = answer(engine, PROMPT, grammar=writing("aé!"), token_texts=True, max_tokens=9)
    assert hidden.token_texts == ["a", "", "é", "!", ""]


def test_nobody_who_did_not_ask_gets_them(engine: Engine) -> None:
    assert answer(engine, PROMPT, max_tokens=3).token_texts is None


def test_text_that_is_held_back_and_a_character_that_is_cut(engine: Engine) -> None:
    held = answer(engine, PROMPT, grammar=writing("xabx"), token_texts=True, max_tokens=3, stop="abc")
    assert (held.token_texts, held.text) == (["x", "a", "b"], "xab")
    cut = answer(engine, PROMPT, grammar=writing("aé"), token_texts=True, max_tokens=2)
    assert (cut.token_texts, cut.text) == (["a", ""], "a")


def test_a_stop_string_at_a_tokens_end_stays_and_ends_the_answer(engine: Engine) -> None:
    stopped = answer(
        engine,
        PROMPT,
        grammar=writing("xaby"),
        token_texts=True,
        max_tokens=9,
        stop=["b", "ab"],
        stop_match=StopMatch.AT_TOKEN_END,
    )
    assert (stopped.token_texts, stopped.text, stopped.stop_reason) == (["x", "a", "b"], "xab", "b")


def test_an_end_token_that_is_ignored_can_be_a_stop_string(engine: Engine) -> None:
    """Stop strings are looked for in the text as it is shown, special tokens with it where they are shown."""
    params = {
        "logit_bias": {EOS: 1e3},
        "ignore_eos": True,
        "max_tokens": 3,
        "stop": "<end>",
        "temperature": 0.0,
    }
    shown = answer(engine, PROMPT, skip_special_tokens=False, stop_match=StopMatch.AT_TOKEN_END, **params)
    assert (shown.token_ids, shown.text, shown.stop_reason) == ([EOS], "<end>", "<end>")
    hidden = answer(engine, PROMPT, stop_match=StopMatch.AT_TOKEN_END, **params)
    assert (hidden.token_ids, hidden.text, hidden.stop_reason) == ([EOS] * 3, "", None)
