"""What travels between a client of the engine and the engine."""

from __future__ import annotations

import dataclasses
import pickle

from pageport.core import RequestOutput, RequestTimes


def test_an_output_survives_its_pickling_with_every_field() -> None:
    fields = dataclasses.fields(RequestOutput)
    output = RequestOutput(*(f"value {number}" for number in range(len(fields))))  # type: ignore[arg-type]
    output.times = RequestTimes(1.0, 2.0, 3.0, 4.0)
    assert pickle.loads(pickle.dumps(output)) == output
