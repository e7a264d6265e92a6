"""The `before` entries of the model repository. Pageport's own are written by `pageport triton init`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined


@dataclass(frozen=True, slots=True)
class BeforeEntry:
    """One entry served by `before_model.py`.

    Attributes:
        max_batch_size: 0: one request at a time; else Triton gathers requests into batches of up to this.
    """

    name: str
    max_batch_size: int
    dtype: str


def write_before_entry(repository: Path, entry: BeforeEntry, model: Path) -> None:
    """Write `config.pbtxt` and `1/model.py`, as the tutorial has them.

    Raises:
        FileExistsError: the repository has an entry of that name.
    """
    package = files("pageport.migration.poc")
    version = repository / entry.name / "1"
    version.mkdir(parents=True)
    with (
        package.joinpath("before_model.py").open("rb") as source,
        (version / "model.py").open("wb") as target,
    ):
        shutil.copyfileobj(source, target)
    template = package.joinpath("before_config.pbtxt.j2").read_text("utf-8")
    config = (
        Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            name=entry.name,
            max_batch_size=entry.max_batch_size,
            dtype=entry.dtype,
            model=json.dumps(str(model.resolve())),
        )
    )
    (repository / entry.name / "config.pbtxt").write_text(config, "utf-8")
