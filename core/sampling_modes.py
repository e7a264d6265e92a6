"""What sampling parameters choose between."""

from __future__ import annotations

import enum


class GrammarKind(enum.StrEnum):
    """How a grammar is written."""

    REGEX = "regex"
    JSON_SCHEMA = "json_schema"


class PenaltyStyle(enum.StrEnum):
    """Whose formula the frequency penalty follows."""

    COUNT = "count"  # OpenAI and vLLM: penalty * count, over the output
    SHARE = "share"  # TGI: penalty * count / length, over prompt and output


class LogprobsMode(enum.StrEnum):
    """Which scores log-probabilities are taken from."""

    RAW = "raw"  # the model's own
    # After everything that changes or removes scores. Impossible tokens are not listed; tokens that are as likely as
    # the last one listed are listed too.
    PROCESSED = "processed"


class StopMatch(enum.StrEnum):
    """Where a stop string counts, and what becomes of its text."""

    ANYWHERE = "anywhere"  # the text ends before it, in the middle of a token too
    # Only where a token ends with it, or with it and a line break; it stays in the text.
    AT_TOKEN_END = "at_token_end"
