"""TGI's parameters of one request, and what they mean to the engine. The shard and the router both end here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pageport.core import (
    Grammar,
    InvalidRequestError,
    LogprobsMode,
    PenaltyStyle,
    SamplingParams,
    StopMatch,
    Watermark,
    parse_sampling_params,
)

# What the engine calls otherwise.
_TGI_NAMES = {
    "ignore_eos": "ignore_eos_token",
    "logprobs": "top_n_tokens",
    "max_tokens": "max_new_tokens",
    "stop": "stop_sequences",
}


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """One request as a TGI shard understands it; the defaults switch everything off.

    Attributes:
        seed: always resolved by whoever received the request.
        max_new_tokens: at least 1.
        stop_sequences: an empty one ends the answer after its first token, as in TGI.
        watermark: None is off.
        top_n_tokens: alternatives to report for each token; 0 is none.
        prefill_logprobs: report the prompt's tokens and log-probabilities.
        logit_bias: an addition to TGI, for OpenAI's clients.
    """

    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    do_sample: bool = False
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    watermark: Watermark | None = None
    grammar: Grammar | None = None
    stop_sequences: tuple[str, ...] = ()
    ignore_eos_token: bool = False
    top_n_tokens: int = 0
    prefill_logprobs: bool = False
    logit_bias: dict[int, float] | None = None

    @property
    def is_sampled(self) -> bool:
        """TGI samples a row when it is asked to, or when any warper is on."""
        return (
            self.do_sample
            or self.temperature != 1.0
            or self.top_k != 0
            or self.top_p < 1.0
            or self.typical_p < 1.0
        )

    @property
    def stops_at_once(self) -> bool:
        """Whether an empty stop sequence ends the answer after one token."""
        return "" in self.stop_sequences

    def to_sampling_params(self) -> SamplingParams:
        """The same, for the engine.

        Raises:
            InvalidRequestError: a value that the engine cannot honour.
        """
        try:
            return parse_sampling_params(self._engine_values())
        except InvalidRequestError as error:
            raise InvalidRequestError(_TGI_NAMES.get(error.field, error.field), error.problem) from None

    def _engine_values(self) -> dict[str, Any]:
        return {
            "max_tokens": 1 if self.stops_at_once else self.max_new_tokens,
            "temperature": self.temperature if self.is_sampled else 0.0,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "typical_p": self.typical_p,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "penalty_style": PenaltyStyle.SHARE,
            "seed": self.seed,
            "logit_bias": self.logit_bias,
            "stop": tuple(stop for stop in self.stop_sequences if stop),
            "stop_match": StopMatch.AT_TOKEN_END,
            "ignore_eos": self.ignore_eos_token,
            "logprobs": self.top_n_tokens,
            "logprobs_mode": LogprobsMode.PROCESSED,
            "prompt_logprobs": 0 if self.prefill_logprobs else None,
            "skip_special_tokens": False,
            "token_texts": True,
            "grammar": self.grammar,
            "watermark": self.watermark,
        }
