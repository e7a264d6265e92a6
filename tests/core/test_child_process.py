"""The settings that an engine's process is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pageport.core import parse_engine_config
from pageport.core.child_process import thread_environment


@pytest.mark.parametrize(
    ("policy", "openmp", "turns"),
    [
        (None, "PASSIVE", "5000"),
        ("brief", "PASSIVE", "5000"),
        ("passive", "PASSIVE", "0"),
        ("active", "ACTIVE", None),
    ],
)
def test_wait_policies(policy: str | None, openmp: str, turns: str | None) -> None:
    values = {"model": Path("model")} | ({} if policy is None else {"omp_wait_policy": policy})
    environment = thread_environment(parse_engine_config(values))
    assert environment["OMP_WAIT_POLICY"] == openmp
    assert environment.get("GOMP_SPINCOUNT") == turns


def test_the_number_of_threads_is_the_engine_argument() -> None:
    config = parse_engine_config({"model": Path("model"), "num_threads": 3})
    assert thread_environment(config)["OMP_NUM_THREADS"] == "3"
