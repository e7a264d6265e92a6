"""TGI's native request bodies, as strict as its own parser: no number for a string, no float for an integer, no null
where there is a default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class Body(BaseModel):
    """Fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class JsonGrammar(Body):
    """A JSON schema, as an object or as its text."""

    type: Literal["json", "json_object"]
    value: Any


class RegexGrammar(Body):
    """A regular expression that the whole answer matches."""

    type: Literal["regex"]
    value: str


class NamedSchema(Body):
    """A JSON schema with a name for people."""

    name: str | None = None
    schema_: Any = Field(alias="schema")


class JsonSchemaGrammar(Body):
    """A JSON schema in OpenAI's wrapping."""

    type: Literal["json_schema"]
    value: NamedSchema


GrammarBody = Annotated[JsonGrammar | RegexGrammar | JsonSchemaGrammar, Field(discriminator="type")]


class GenerateParameters(Body):
    """The parameters of a generate request; see section 'limits' of the settings for their ranges."""

    best_of: UInt64 | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: UInt32 | None = None
    return_full_text: bool | None = None
    stop: list[str] = Field(default_factory=list)
    truncate: UInt64 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: UInt64 | None = None
    top_n_tokens: UInt32 | None = None
    grammar: GrammarBody | None = None
    adapter_id: str | None = None


def parameters_when_left_out() -> GenerateParameters:
    """A request without `parameters` is sampled; one with empty `parameters` is not."""
    return GenerateParameters(do_sample=True)


class GenerateRequest(Body):
    """The body of `/generate`, `/generate_stream` and `/tokenize`."""

    inputs: str
    parameters: GenerateParameters = Field(default_factory=parameters_when_left_out)


class CompatGenerateRequest(GenerateRequest):
    """The body of `POST /` and `/invocations`."""

    stream: bool = False
