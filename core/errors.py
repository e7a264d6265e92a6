"""Every exception the core raises on purpose.

PageportError
├── ConfigError          an engine argument, or a pair of them, cannot be honoured
├── InvalidRequestError  one request is wrong: names the field, the limit and the value
├── ModelError           the model folder is missing, damaged or of an unsupported kind
├── RequestTimeoutError  the request's own time limit passed; its blocks are free again
└── EngineDeadError      engines died under this request, or there is no engine any more
"""

from __future__ import annotations


class PageportError(Exception):
    """Base of all errors that Pageport raises on purpose."""


class ConfigError(PageportError):
    """An engine argument, or a combination of arguments, that cannot be honoured."""


class ModelError(PageportError):
    """A model folder that is missing, damaged or of an unsupported kind."""


class InvalidRequestError(PageportError):
    """A request that cannot be served as asked.

    Attributes:
        field: the name of the offending field, as the client wrote it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidRequestError], tuple[str, str]]:
        return (InvalidRequestError, (self.field, self.problem))


class RequestTimeoutError(PageportError):
    """The request's own time limit passed before it was finished."""


class EngineDeadError(PageportError):
    """The engine is stopped or cannot be started; or engines in a row died under this one request.

    The death of an engine alone does not end a request: the next engine goes on with it.
    """
