"""Several answers to one prompt, which TGI does not give: `n`."""

from __future__ import annotations

from pageport.backends.tgi_adapter.router.errors import invalid
from pageport.backends.tgi_adapter.router.settings import RouterSettings

_SEEDS = 2**64


def check_num_choices(count: int, settings: RouterSettings) -> None:
    """Raises RouterError (validation): more than the server ever serves at once."""
    limit = settings.max_concurrent_requests
    if count > limit:
        raise invalid("n", f"must be at most max_concurrent_requests, {limit} (given: {count})")


def seed_of_choice(seed: int | None, index: int) -> int | None:
    """The first choice is the one that the seed gives alone; the others differ from it and are as repeatable."""
    return None if seed is None else (seed + index) % _SEEDS
