"""Every recorded HTTP case, replayed against the router: equal to TGI, or on the list of what TGI refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from router_harness import replay_file
from tokenizers import Tokenizer
from transcript import differences, load_supersets, unexpected

FILES = ("http-native", "http-stream-and-compat", "http-flags", "http-openai")


@pytest.mark.parametrize("file", FILES)
async def test_strict_is_equal(file: str, tokenizer: Tokenizer, demo_model: Path) -> None:
    replayed = await replay_file(file, tokenizer, demo_model, strict=True)
    reports = [(each.case, differences(each.case, each.reply)) for each in replayed]
    assert not unexpected(reports), unexpected(reports)


@pytest.mark.parametrize("file", FILES)
async def test_equal_but_for_the_supersets(file: str, tokenizer: Tokenizer, demo_model: Path) -> None:
    replayed = await replay_file(file, tokenizer, demo_model, strict=False)
    supersets = load_supersets(file)
    reports = [
        (each.case, differences(each.case, each.reply))
        for each in replayed
        if each.case.name not in supersets
    ]
    assert not unexpected(reports), unexpected(reports)
    answered = {each.case.name: each.reply.status for each in replayed if each.case.name in supersets}
    assert answered == {name: superset.status for name, superset in supersets.items()}
    print(f"{file}: {len(replayed)} replayed, {len(reports)} equal, {len(supersets)} superset")
