"""The engine: requests in, one step at a time, outputs back. In-process and synchronous."""

from __future__ import annotations

import time

import torch

from pageport.core.config import EngineConfig
from pageport.core.decode_graphs import CudaCapturer, graph_sizes
from pageport.core.errors import ConfigError, InvalidRequestError
from pageport.core.generation import Generation, RequestProgress, TokenTexts
from pageport.core.kv_cache import allocate_kv_pool, size_kv_cache
from pageport.core.kv_manager import KVManager
from pageport.core.metrics import EngineInfo, EngineStats
from pageport.core.model.loader import load_model, load_model_config, resolve_dtype
from pageport.core.request import EngineRequest, FinishReason, PositionLogprobs, RequestOutput
from pageport.core.runner import ModelRunner, StepResult
from pageport.core.sampling import (
    GrammarCompiler,
    Sampler,
    SamplingState,
    bad_word_token_ids,
    validate_for_vocabulary,
)
from pageport.core.scheduler import Scheduler, StepPlan
from pageport.core.sequence import Sequence
from pageport.core.stats_keeper import StatsKeeper
from pageport.core.text_stream import TextStream
from pageport.core.tokenizer import load_tokenizer
from pageport.kernels import make_kernels


class Engine:
    """Paged, continuously batched generation with one model on one device.

    Call `add_request`, then `step` while `has_work`. Nothing is ever lost: each sequence of each request gets
    exactly one output with a finish reason, and its blocks are free when that output is returned.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Load the model and take the KV memory.

        Raises:
            ConfigError: arguments that cannot be honoured on this machine with this model.
            ModelError: the model folder is missing, damaged or unsupported.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        device = resolve_device(config.device)
        model_config = load_model_config(config.model)
        dtype = resolve_dtype(config.dtype, device)
        kernels = make_kernels(config.kernel_backend, device)
        model = load_model(
            config.model,
            dtype=dtype,
            device=device,
            kernels=kernels,
            quantised=config.quantization is not None,
        )
        size = size_kv_cache(config, model_config, dtype, device)
        kv = KVManager(size.num_blocks, config.block_size, config.max_num_seqs, size.max_model_len)
        uses_graphs = uses_decode_graphs(config, device)
        # Rows that pad a captured step need a block to write to.
        num_blocks = size.num_blocks + uses_graphs
        pool = allocate_kv_pool(num_blocks, config.block_size, model_config, dtype, device)
        self._runner = ModelRunner(model, kernels, pool, kv)
        if uses_graphs:
            sizes = graph_sizes(config.max_num_seqs, size.max_model_len)
            self._runner.capture_decode_steps(sizes, CudaCapturer())
        self._scheduler = Scheduler(
            kv,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            watermark=config.watermark,
            chunk_alignment=kernels.chunk_alignment(dtype, model_config.head_dim),
            prefix_caching=config.enable_prefix_caching,
            exact_recompute=config.exact_recompute,
        )
        self._tokenizer = load_tokenizer(config.tokenizer or config.model)
        self._texts = TokenTexts(self._tokenizer)
        self._grammars = GrammarCompiler(
            self._tokenizer, model_config.vocab_size, tuple(model_config.eos_token_ids)
        )
        self._sampler = Sampler(device)
        self._eos_token_ids = tuple(model_config.eos_token_ids)
        self._requests: dict[str, RequestProgress] = {}
        self._generations: dict[Sequence, Generation] = {}
        self._size = size
        self.reset_stats()
        self.info = EngineInfo(
            max_model_len=size.max_model_len,
            kv_token_capacity=size.num_blocks * config.block_size,
            vocab_size=model_config.vocab_size,
            max_num_seqs=config.max_num_seqs,
            dtype=str(dtype).removeprefix("torch."),
            device=str(device),
            kernels=kernels.name,
            eos_token_ids=self._eos_token_ids,
        )

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def stats(self) -> EngineStats:
        return self._stats.snapshot()

    def reset_stats(self) -> None:
        """Start counting anew."""
        self._stats = StatsKeeper(self._scheduler, self._size)

    def check_integrity(self) -> None:
        """Assert the block manager's invariants; cheap enough for tests to call after each step."""
        self._scheduler.kv.check_integrity()

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; one with progress goes on from there.

        Raises:
            InvalidRequestError: it can never be served by this engine; nothing was queued.
        """
        if request.request_id in self._requests:
            raise InvalidRequestError("request_id", f"{request.request_id!r} is in flight already")
        validate_request(request, self.info)
        progress = RequestProgress.start(request)
        if request.progress:
            self._resume(request, progress)
        else:
            self._track(Sequence.first_of(request), progress)
        self._requests[request.request_id] = progress
        for sequence in progress.sequences:
            self._scheduler.add(sequence)
        self._stats.observe()

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End a request now; its blocks are free on return. Unknown ids give no outputs."""
        progress = self._requests.get(request_id)
        return self._end(progress, FinishReason.CANCELLED, None) if progress is not None else []

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Plan, compute and sample once; outputs for every sequence that got a token."""
        plan = self._scheduler.plan()
        if not plan.scheduled:
            return []
        self._stats.observe_step(plan)
        self._mark_scheduled(plan)
        result = self._runner.execute(plan)
        self._scheduler.complete(plan)
        self._collect_prompt_logprobs(result)
        outputs = self._sample(result)
        self._stats.observe()
        return outputs

    # -- private -----------------------------------------------------------------------------------------

    def _track(self, sequence: Sequence, progress: RequestProgress) -> Generation:
        request = sequence.request
        params = request.sampling
        prompt = request.prompt_token_ids
        room = self.info.max_model_len - len(prompt)
        generation = Generation(
            sequence,
            progress,
            SamplingState(
                params,
                seed=(request.seed + sequence.index) % 2**64,
                prompt_token_ids=prompt,
                output_token_ids=[],
                eos_token_ids=self._eos_token_ids,
                bad_words_ids=bad_word_token_ids(self._encode_plain, params.bad_words),
                grammar=None if params.grammar is None else self._grammars.matcher(params.grammar),
            ),
            TextStream(
                self._tokenizer,
                prompt,
                stop=params.stop,
                include_stop_string=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                stop_match=params.stop_match,
            ),
            max_output_tokens=room if params.max_tokens is None else params.max_tokens,
        )
        progress.sequences.append(sequence)
        self._generations[sequence] = generation
        return generation

    def _resume(self, request: EngineRequest, progress: RequestProgress) -> None:
        """Each unfinished sequence goes on alone: its prompt and tokens are computed again, whatever was shared."""
        for index, done in enumerate(request.progress):
            if not done.finished:
                sequence = Sequence(request, index, list(request.prompt_token_ids))
                self._track(sequence, progress).resume(done)

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _mark_scheduled(self, plan: StepPlan) -> None:
        now = time.monotonic()
        for item in plan.scheduled:
            times = self._generations[item.sequence].progress.times
            times.first_scheduled = times.first_scheduled or now

    def _collect_prompt_logprobs(self, result: StepResult) -> None:
        for rows in result.rows:
            sequence, num_tokens = rows.item
            progress = self._generations[sequence].progress
            wanted = sequence.request.sampling.prompt_logprobs
            if progress.prompt_logprobs is None or wanted is None or sequence.index != 0:
                continue
            start = sequence.num_computed - num_tokens
            targets = sequence.request.prompt_token_ids[start + 1 : sequence.num_computed + 1]
            # A prompt that is computed again after a preemption has given its first positions already.
            known = len(progress.prompt_logprobs) - 1 - start
            if not targets or known >= len(targets) or len(rows.all_rows) < len(targets):
                continue
            logits = result.logits[rows.all_rows.start + known : rows.all_rows.start + len(targets)]
            values = self._sampler.prompt_logprobs(logits, targets[known:], wanted)
            progress.prompt_logprobs += [self._texts.position(value) for value in values]

    def _sample(self, result: StepResult) -> list[RequestOutput]:
        generations: list[Generation] = []
        logit_rows: list[int] = []
        for rows in result.rows:
            if rows.last < 0:
                continue
            family = [self._generations[rows.item.sequence], *self._fork(rows.item.sequence)]
            generations += family
            logit_rows += [rows.last] * len(family)
        if not generations:
            return []
        logits = result.logits
        if logit_rows != list(range(logits.shape[0])):
            logits = logits[torch.tensor(logit_rows, device=logits.device)]
        sampled = self._sampler.sample(logits, [generation.sampling for generation in generations])
        return [
            self._accept(generation, token, self._texts.position(values) if values is not None else None)
            for generation, token, values in zip(
                generations, sampled.token_ids, sampled.logprobs, strict=True
            )
        ]

    def _fork(self, parent: Sequence) -> list[Generation]:
        """The other sequences of a request with n > 1, once its prompt is computed: shared blocks, no copies."""
        progress = self._generations[parent].progress
        forks = []
        for index in range(1, 1 + parent.unforked):
            child = Sequence(
                parent.request,
                index,
                list(parent.token_ids),
                num_computed=parent.num_computed,
                arrival=parent.arrival,
                digests=parent.digests,
                num_registered=parent.num_registered,
            )
            self._scheduler.add_fork(parent, child)
            forks.append(self._track(child, progress))
        return forks

    def _accept(self, generation: Generation, token: int, logprobs: PositionLogprobs | None) -> RequestOutput:
        progress = generation.progress
        now = time.monotonic()
        if not progress.times.first_token:
            progress.times.first_token = now
            self._stats.count_prompt(len(progress.request.prompt_token_ids))
        output = generation.accept(token, logprobs)
        if generation.sequence.index == 0 and output.num_output_tokens == 1:
            output.prompt_logprobs = progress.prompt_logprobs
        self._stats.count_generated()
        if output.finish_reason is not None:
            self._forget(generation)
            if output.request_finished:
                progress.times.finished = now
        return output

    def _end(self, progress: RequestProgress, reason: FinishReason, error: str | None) -> list[RequestOutput]:
        progress.times.finished = time.monotonic()
        outputs = []
        for sequence in list(progress.sequences):
            generation = self._generations[sequence]
            progress.unfinished -= sequence.unforked  # forks that will never be
            outputs.append(generation.end(reason, error))
            self._forget(generation)
        self._stats.observe()
        return outputs

    def _forget(self, generation: Generation) -> None:
        progress = generation.progress
        self._scheduler.remove(generation.sequence)
        progress.sequences.remove(generation.sequence)
        del self._generations[generation.sequence]
        if not progress.sequences:
            del self._requests[progress.request.request_id]
            self._stats.count_finished()


def resolve_device(name: str) -> torch.device:
    """`auto` is the GPU where torch sees one.

    Raises:
        ConfigError: a GPU was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda was asked for, but torch sees no GPU")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def uses_decode_graphs(config: EngineConfig, device: torch.device) -> bool:
    return device.type == "cuda" and not config.enforce_eager


def validate_request(request: EngineRequest, info: EngineInfo) -> None:
    """Refuse what this engine could never serve.

    Raises:
        InvalidRequestError: naming the field, the limit and the value given.
    """
    prompt, params = request.prompt_token_ids, request.sampling
    if not prompt:
        raise InvalidRequestError("prompt", "is empty; at least one token is needed")
    if len(prompt) >= info.max_model_len:
        raise InvalidRequestError(
            "prompt",
            f"has {len(prompt)} tokens; at most {info.max_model_len - 1} fit with one new token "
            f"(max_model_len {info.max_model_len}, KV cache of {info.kv_token_capacity} tokens)",
        )
    if params.max_tokens is not None and len(prompt) + params.max_tokens > info.max_model_len:
        raise InvalidRequestError(
            "max_tokens",
            f"{params.max_tokens} new tokens after {len(prompt)} prompt tokens exceed max_model_len, "
            f"{info.max_model_len}",
        )
    if params.n > info.max_num_seqs:
        raise InvalidRequestError("n", f"{params.n} is more than max_num_seqs, {info.max_num_seqs}")
    worst = max(prompt)
    if min(prompt) < 0 or worst >= info.vocab_size:
        bad = worst if worst >= info.vocab_size else min(prompt)
        raise InvalidRequestError(
            "prompt", f"token id {bad} is outside of the vocabulary, 0 to {info.vocab_size - 1}"
        )
    validate_for_vocabulary(params, info.vocab_size)
    if request.progress:
        _validate_progress(request, info)


def _validate_progress(request: EngineRequest, info: EngineInfo) -> None:
    """Refuse to go on where nothing could come any more."""
    prompt, params, progress = request.prompt_token_ids, request.sampling, request.progress
    if len(progress) != params.n:
        raise InvalidRequestError("progress", f"has {len(progress)} sequences; the request has {params.n}")
    unfinished = [len(sequence.token_ids) for sequence in progress if not sequence.finished]
    if not unfinished:
        raise InvalidRequestError("progress", "all sequences are finished")
    room = info.max_model_len - len(prompt)
    limit = room if params.max_tokens is None else params.max_tokens
    if max(unfinished) >= limit:
        raise InvalidRequestError(
            "progress", f"{max(unfinished)} tokens leave no room for one more: limit {limit}"
        )
    if any(not 0 <= token < info.vocab_size for sequence in progress for token in sequence.token_ids):
        raise InvalidRequestError(
            "progress", f"a token id is outside of the vocabulary, 0 to {info.vocab_size - 1}"
        )
