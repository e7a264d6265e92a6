"""What TGI says of an answer in its headers."""

from __future__ import annotations

from collections.abc import Sequence

from pageport.backends.tgi_adapter.router.inference import WholeAnswer

_NOT_SUMMED = ("x-compute-type", "x-compute-characters", "x-compute-time")


def stream_headers(compute_type: str, num_characters: int) -> dict[str, str]:
    """Of a stream; `num_characters` is the length of the prompt's text."""
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(num_characters),
        "x-accel-buffering": "no",
    }


def answer_headers(compute_type: str, num_characters: int, answer: WholeAnswer) -> dict[str, str]:
    """Of a whole answer: seconds in `x-compute-time`, milliseconds in the other times."""
    times = answer.times
    total = times.finished - times.start
    return {
        "x-compute-type": compute_type,
        "x-compute-time": f"{total:.9f}",
        "x-compute-characters": str(num_characters),
        "x-total-time": _milliseconds(total),
        "x-validation-time": _milliseconds(times.validated - times.start),
        "x-queue-time": _milliseconds(times.queued_until - times.validated),
        "x-inference-time": _milliseconds(times.inference),
        "x-time-per-token": _milliseconds(times.per_token),
        "x-prompt-tokens": str(answer.request.input_length),
        "x-generated-tokens": str(times.generated_tokens),
    }


def summed_headers(compute_type: str, num_characters: int, answers: Sequence[WholeAnswer]) -> dict[str, str]:
    """Of the answers to several prompts together; TGI leaves out the seconds."""
    each = [answer_headers(compute_type, num_characters, answer) for answer in answers]
    names = [name for name in each[0] if name not in _NOT_SUMMED]
    sums = {name: str(sum(int(headers[name]) for headers in each)) for name in names}
    return {"x-compute-type": compute_type, "x-compute-characters": str(num_characters), **sums}


def _milliseconds(seconds: float) -> str:
    return str(max(0, int(seconds * 1e3)))
