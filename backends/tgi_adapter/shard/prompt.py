"""A request's prompt as tokens, the way TGI's router counted them."""

from __future__ import annotations

from tokenizers import Tokenizer


def tokenize_prompt(tokenizer: Tokenizer, text: str, truncate: int, *, add_special_tokens: bool) -> list[int]:
    """The last `truncate` tokens of a text; special tokens at its beginning stay and count.

    Args:
        truncate: 0 keeps everything.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    added = tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
    if truncate and len(encoding) + added > truncate:
        encoding.truncate(max(truncate - added, 0), direction="left")
    if add_special_tokens:
        encoding = tokenizer.post_process(encoding, None, True)
    ids: list[int] = encoding.ids
    return ids
