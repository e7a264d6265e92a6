"""From what a client asked for to what the engine may be given, or to a refusal that names field, limit and value."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pydantic import ValidationError
from tokenizers import Encoding, Tokenizer

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.router.errors import invalid
from pageport.backends.tgi_adapter.router.grammar import read_grammar
from pageport.backends.tgi_adapter.router.inference import GenerateInput, ValidRequest
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.core import Grammar, InvalidRequestError, SamplingParams

# TGI generates in rounds of so many tokens, and checks a request's length as if there were only one.
TGI_ROUND = 1024

# TGI has no upper limit for temperature and repetition penalty, the engine has this one. Beyond it next to nothing
# changes: all tokens are about equally likely; what was there does not come again.
_LARGEST = 1e4

# A text of this many characters takes about a millisecond to tokenise; longer ones leave the event loop.
_INLINE_CHARACTERS = 4096


class Validator:
    """TGI's limits, and the tokenizer. Close it when no request is left."""

    def __init__(self, settings: RouterSettings, tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._seeds = random.SystemRandom()
        self._workers = ThreadPoolExecutor(settings.validation_workers, thread_name_prefix="validation")

    async def validate(self, request: GenerateInput) -> ValidRequest:
        """Raises RouterError (validation)."""
        self.check(request)
        grammar = await self._grammar(request)
        prompt_ids = await self._prompt_ids(request)
        max_new_tokens = self._max_new_tokens(request.parameters.max_new_tokens, len(prompt_ids))
        parameters = self._engine_parameters(request, max_new_tokens, grammar)
        return ValidRequest(prompt_ids, parameters, _sampling_params(parameters))

    def check(self, request: GenerateInput) -> None:
        """What can be said without looking at the prompt. Raises RouterError (validation)."""
        asked = request.parameters
        self._check_ranges(asked)
        self._check_best_of(asked, stream=request.stream)
        self._check_lists(asked)
        if request.stream and asked.decoder_input_details:
            raise invalid("decoder_input_details", "must be false where the answer is a stream (given: true)")

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Long texts are tokenised by the workers."""
        if len(text) <= _INLINE_CHARACTERS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._workers, encode)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _engine_parameters(
        self, request: GenerateInput, max_new_tokens: int, grammar: Grammar | None
    ) -> GenerationParameters:
        asked = request.parameters
        return GenerationParameters(
            max_new_tokens=max_new_tokens,
            seed=self._seeds.getrandbits(64) if asked.seed is None else asked.seed,
            temperature=min(_or(asked.temperature, 1.0), _LARGEST),
            top_k=asked.top_k or 0,
            top_p=_or(asked.top_p, 1.0),
            typical_p=_or(asked.typical_p, 1.0),
            do_sample=asked.do_sample,
            repetition_penalty=min(_or(asked.repetition_penalty, 1.0), _LARGEST),
            frequency_penalty=asked.frequency_penalty or 0.0,
            watermark=self._settings.watermark if asked.watermark else None,
            grammar=grammar,
            stop_sequences=tuple(asked.stop),
            top_n_tokens=asked.top_n_tokens or 0,
            prefill_logprobs=asked.decoder_input_details and self._settings.enable_prefill_logprobs,
            logit_bias=None if request.logit_bias is None else dict(request.logit_bias),
        )

    def _check_ranges(self, asked: GenerateParameters) -> None:
        _above_zero("temperature", asked.temperature)
        _above_zero("repetition_penalty", asked.repetition_penalty)
        _above_zero("top_k", asked.top_k)
        _above_zero("max_new_tokens", asked.max_new_tokens)
        _open_interval("top_p", asked.top_p, one_is_off=not self._settings.strict)
        _open_interval("typical_p", asked.typical_p)
        penalty = asked.frequency_penalty
        if penalty is not None and not -2.0 <= penalty <= 2.0:
            raise invalid("frequency_penalty", f"must be from -2 to 2 (given: {penalty})")
        limit = self._settings.max_input_tokens
        if asked.truncate is not None and not 1 <= asked.truncate <= limit:
            raise invalid(
                "truncate", f"must be from 1 to max_input_tokens, {limit} (given: {asked.truncate})"
            )

    def _check_best_of(self, asked: GenerateParameters, *, stream: bool) -> None:
        best_of, limit = asked.best_of or 1, self._settings.max_best_of
        if best_of == 1:
            return
        if stream:
            raise invalid("best_of", f"must be 1 where the answer is a stream (given: {best_of})")
        if best_of > limit:
            raise invalid("best_of", f"must be at most max_best_of, {limit} (given: {best_of})")
        warpers = (asked.temperature, asked.top_k, asked.top_p, asked.typical_p)
        if not asked.do_sample and all(value is None for value in warpers):
            raise invalid("best_of", f"above 1 needs sampling: do_sample or temperature (given: {best_of})")
        if asked.seed is not None:
            raise invalid("seed", f"must not be given with best_of above 1 (given: {asked.seed})")

    def _check_lists(self, asked: GenerateParameters) -> None:
        limit = self._settings.max_stop_sequences
        if len(asked.stop) > limit:
            raise invalid(
                "stop", f"must have at most max_stop_sequences, {limit}, entries (given: {len(asked.stop)})"
            )
        limit = self._settings.max_top_n_tokens
        if asked.top_n_tokens is not None and asked.top_n_tokens > limit:
            raise invalid(
                "top_n_tokens", f"must be at most max_top_n_tokens, {limit} (given: {asked.top_n_tokens})"
            )

    async def _grammar(self, request: GenerateInput) -> Grammar | None:
        body = request.parameters.grammar
        if body is None and request.grammar is None:
            return None
        if self._settings.disable_grammar_support:
            raise invalid("grammar", "this server was started with disable_grammar_support")
        if request.grammar is not None or body is None:
            return request.grammar
        read = partial(read_grammar, body, strict=self._settings.strict)
        # A schema of a megabyte takes seconds; the library lets other threads run meanwhile.
        return await asyncio.get_running_loop().run_in_executor(self._workers, read)

    async def _prompt_ids(self, request: GenerateInput) -> tuple[int, ...]:
        """The end of the prompt that shall be kept."""
        truncate = request.parameters.truncate
        if request.prompt_ids is not None:
            ids = list(request.prompt_ids)
        elif request.inputs:
            ids = (await self.tokenize(request.inputs, add_special_tokens=request.add_special_tokens)).ids
        else:
            ids = []
        if not ids:
            raise invalid("inputs", "must not be empty")
        return tuple(ids if truncate is None else ids[-truncate:])

    def _max_new_tokens(self, asked: int | None, input_length: int) -> int:
        """What the engine shall generate: the number asked for, up to what the total limit leaves."""
        total = self._settings.max_total_tokens
        counted = min(asked or 0, TGI_ROUND)
        if input_length + counted > total:
            raise invalid(
                "max_new_tokens",
                f"with the prompt must be at most max_total_tokens, {total} "
                f"(given: {input_length} tokens of prompt and {asked or 0} new ones)",
            )
        limit = self._settings.max_input_tokens
        if input_length > limit:
            raise invalid(
                "inputs", f"must have at most max_input_tokens, {limit}, tokens (given: {input_length})"
            )
        room = total - input_length
        if asked is None:
            return room
        if self._settings.strict:
            asked = counted if asked <= TGI_ROUND else -(-asked // TGI_ROUND) * TGI_ROUND
        return min(asked, room)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _sampling_params(parameters: GenerationParameters) -> SamplingParams:
    """Raises RouterError where a value is beyond what the engine can honour."""
    try:
        return parameters.to_sampling_params()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise invalid(field, f"{first['msg']} (given: {first['input']!r:.100})") from None
    except InvalidRequestError as error:
        raise invalid(error.field, error.problem) from None


def _above_zero(field: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise invalid(field, f"must be above 0 (given: {value})")


def _open_interval(field: str, value: float | None, *, one_is_off: bool = False) -> None:
    if value is None or 0.0 < value < 1.0 or (one_is_off and value == 1.0):
        return
    above = "at most" if one_is_off else "below"
    raise invalid(field, f"must be above 0 and {above} 1 (given: {value})")
