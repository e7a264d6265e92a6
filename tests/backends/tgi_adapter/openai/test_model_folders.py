"""The recorded answers over model folders with other chat templates, or without some file."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path

import pytest
from model_folders import make_model_folder
from router_harness import Replayed, recorded_settings, running_router
from scripted_engine import ScriptedEngine
from tokenizers import Tokenizer
from transcript import differences, load_cases, load_supersets, replay, unexpected

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.core import ConfigError

FILE = "model-folders"
# Where the configuration is missing, TGI guesses a tokenizer class, which puts a token in front of the prompt. What
# tokenizer.json says counts here.
GUESSED = "no tokenizer_config.json · generate"


@pytest.fixture(autouse=True)
def year_of_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pageport.backends.tgi_adapter.router.chat_template.local_now", lambda: datetime(2026, 12, 1)
    )


async def replay_folders(
    tokenizer: Tokenizer, model: Path, target: Path, *, strict: bool
) -> dict[str, Replayed]:
    """By the name of the case."""
    replayed: dict[str, Replayed] = {}
    for kind, cases in itertools.groupby(load_cases(FILE), lambda case: case.folder):
        folder = make_model_folder(kind, model, target / kind)
        settings = recorded_settings(strict=strict)
        async with running_router(settings, tokenizer, folder) as (client, engine):
            for case in cases:
                replayed[case.name] = Replayed(case, await replay(case, client, engine))
    return replayed


async def test_strict_is_equal(tokenizer: Tokenizer, demo_model: Path, tmp_path: Path) -> None:
    replayed = await replay_folders(tokenizer, demo_model, tmp_path, strict=True)
    guessed = replayed.pop(GUESSED)
    assert differences(guessed.case, guessed.reply) == ["header x-prompt-tokens: '1', recorded '2'"]
    reports = [(each.case, differences(each.case, each.reply)) for each in replayed.values()]
    assert not unexpected(reports), unexpected(reports)


async def test_equal_but_for_the_supersets(tokenizer: Tokenizer, demo_model: Path, tmp_path: Path) -> None:
    replayed = await replay_folders(tokenizer, demo_model, tmp_path, strict=False)
    del replayed[GUESSED]
    supersets = load_supersets(FILE)
    reports = [
        (each.case, differences(each.case, each.reply))
        for name, each in replayed.items()
        if name not in supersets
    ]
    assert not unexpected(reports), unexpected(reports)
    answered = {name: replayed[name].reply.status for name in supersets}
    assert answered == {name: superset.status for name, superset in supersets.items()}
    print(
        f"{FILE}: {len(replayed) + 1} replayed, {len(reports)} equal, {len(supersets)} superset, 1 different"
    )


@pytest.mark.parametrize("strict", [True, False])
def test_a_template_that_cannot_be_parsed_prevents_the_start(
    tokenizer: Tokenizer, demo_model: Path, tmp_path: Path, strict: bool
) -> None:
    folder = make_model_folder("template syntax error", demo_model, tmp_path / "model")
    with pytest.raises(ConfigError, match="chat_template: line 1: "):
        create_app(recorded_settings(strict=strict), ScriptedEngine(tokenizer), tokenizer, folder)


async def test_a_configuration_given_by_a_flag_is_used(
    tokenizer: Tokenizer, demo_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "tokenizer_config.json"
    other.write_text('{"chat_template": "Say: {{ messages[0].content }}"}')
    settings = recorded_settings(tokenizer_config_path=other)
    async with running_router(settings, tokenizer, demo_model) as (client, _):
        answer = await client.post("/chat_tokenize", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert answer.json()["templated_text"] == "Say: Hi"
