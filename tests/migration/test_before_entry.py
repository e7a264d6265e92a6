"""The model repository entries of the side that is measured against."""

from __future__ import annotations

from pathlib import Path

import pytest

from pageport.migration.poc import repository
from pageport.migration.poc.repository import BeforeEntry, write_before_entry


def test_an_entry_is_complete(tmp_path: Path) -> None:
    write_before_entry(tmp_path, BeforeEntry("before", 0, "float32"), Path('/models/a "b" & c'))
    config = (tmp_path / "before" / "config.pbtxt").read_text("utf-8")
    assert 'name: "before"' in config
    assert "max_batch_size: 0" in config
    assert "dynamic_batching" not in config
    assert r'key: "huggingface_model" value: { string_value: "/models/a \"b\" & c" }' in config
    assert 'key: "dtype" value: { string_value: "float32" }' in config
    source = Path(repository.__file__).with_name("before_model.py")
    assert (tmp_path / "before" / "1" / "model.py").read_bytes() == source.read_bytes()


def test_batches_are_gathered_by_the_server(tmp_path: Path) -> None:
    write_before_entry(tmp_path, BeforeEntry("batched", 8, "bfloat16"), Path("/model"))
    config = (tmp_path / "batched" / "config.pbtxt").read_text("utf-8")
    assert "max_batch_size: 8" in config
    assert "preferred_batch_size: [ 8 ]" in config


def test_an_entry_is_never_overwritten(tmp_path: Path) -> None:
    write_before_entry(tmp_path, BeforeEntry("before", 0, "float32"), Path("/model"))
    with pytest.raises(FileExistsError):
        write_before_entry(tmp_path, BeforeEntry("before", 0, "float32"), Path("/model"))
