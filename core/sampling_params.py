"""How one request wants its tokens chosen, and when it wants to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from pageport.core.errors import InvalidRequestError
from pageport.core.sampling_modes import GrammarKind, LogprobsMode, PenaltyStyle, StopMatch

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 256
MAX_SEQUENCES = 64


def _one_string_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Grammar:
    """What the whole generated text must match.

    Attributes:
        source: the regular expression, anchored at both ends; or the JSON schema as JSON text.
    """

    kind: GrammarKind
    source: str


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Watermark:
    """A green list: a share `gamma` of the vocabulary, chosen by the token before, gets `delta` added to its logits.

    Method: Kirchenbauer et al., "A watermark for large language models" (ICML 2023).
    """

    gamma: float = Field(default=0.5, gt=0.0, lt=1.0)
    delta: float = Field(default=2.0, ge=-1e4, le=1e4, allow_inf_nan=False)


StringList = Annotated[tuple[str, ...], BeforeValidator(_one_string_as_list)]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class SamplingParams:
    """The names and defaults of vLLM's ``SamplingParams``; validated once, on construction.

    Numbers may be given as strings (``"0.7"``), as load generators for Triton send them.
    Use :func:`parse_sampling_params` for input from a client: it raises `InvalidRequestError`.
    """

    n: int = Field(default=1, ge=1, le=MAX_SEQUENCES, description="sequences to generate")
    max_tokens: int | None = Field(
        default=16, ge=1, description="new tokens at most; None: as many as the context holds"
    )
    min_tokens: int = Field(default=0, ge=0, description="no end or stop before this many new tokens")
    temperature: float = Field(default=1.0, ge=0.0, le=1e4, allow_inf_nan=False, description="0: greedy")
    top_k: int = Field(default=0, ge=-1, description="0 or -1: all tokens")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=1e4, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    logit_bias: dict[int, float] | None = Field(default=None, description="token id to added logit")
    bad_words: StringList = Field(default=(), max_length=MAX_STOP_STRINGS)
    stop: StringList = Field(default=(), max_length=MAX_STOP_STRINGS)
    stop_token_ids: tuple[int, ...] = Field(default=(), max_length=MAX_STOP_STRINGS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    skip_special_tokens: bool = True
    grammar: Grammar | None = Field(default=None, description="what the text must match")
    watermark: Watermark | None = None
    penalty_style: PenaltyStyle = PenaltyStyle.COUNT
    logprobs_mode: LogprobsMode = LogprobsMode.RAW
    stop_match: StopMatch = StopMatch.ANYWHERE
    token_texts: bool = Field(default=False, description="report what each token added to the text")

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                "min_tokens", f"{self.min_tokens} is more than max_tokens, {self.max_tokens}"
            )
        for name in ("stop", "bad_words"):
            if any(not text for text in getattr(self, name)):
                raise InvalidRequestError(name, "an entry is the empty string")
        for token, bias in (self.logit_bias or {}).items():
            if not math.isfinite(bias):
                raise InvalidRequestError("logit_bias", f"the bias of token {token} is {bias}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


_ADAPTER = TypeAdapter(SamplingParams)


def parse_sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """Build `SamplingParams` from what a client sent.

    Raises:
        InvalidRequestError: naming the field, the limit and the value given.
    """
    try:
        return _ADAPTER.validate_python({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "sampling_parameters"
        if first["type"] == "unexpected_keyword_argument":
            raise InvalidRequestError(field, "unknown sampling parameter") from None
        raise InvalidRequestError(field, f"{first['msg']} (given: {first['input']!r:.100})") from None
