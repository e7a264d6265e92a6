"""What OpenAI's clients document and TGI refuses, said in TGI's terms."""

from __future__ import annotations

from typing import Any

from pageport.backends.tgi_adapter.router.call import read_model
from pageport.backends.tgi_adapter.router.errors import BodyError
from pageport.backends.tgi_adapter.router.openai.chat_schemas import ChatRequest

_NO_PARAMETERS = {"type": "object", "properties": {}}
_ANY_OBJECT = {"type": "object", "properties": {}, "additionalProperties": True}


def read_chat(value: Any, *, strict: bool) -> ChatRequest:
    """A decoded chat body.

    Raises:
        BodyError: 422, it is none; with `strict`, also where TGI says so and OpenAI's documentation does not.
    """
    request = read_model(ChatRequest, value if strict else _chat_body(value))
    if strict and isinstance(request.logit_bias, dict):
        raise BodyError(422, "logit_bias: must be a list in strict mode (given: an object)")
    return request


def without_nulls(value: Any) -> Any:
    """A field that is null is one that was left out."""
    return (
        {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
    )


def stop_as_list(body: dict[str, Any]) -> None:
    """One stop sequence need not stand in a list."""
    if isinstance(body.get("stop"), str):
        body["stop"] = [body["stop"]]


def _chat_body(value: Any) -> Any:
    body = without_nulls(value)
    if not isinstance(body, dict):
        return body
    stop_as_list(body)
    if "max_completion_tokens" in body:
        # The older of the two fields, which clients may still send beside the newer one.
        body.pop("max_tokens", None)
    if isinstance(body.get("messages"), list):
        body["messages"] = [_message(message) for message in body["messages"]]
    if isinstance(body.get("tools"), list):
        body["tools"] = [_tool(tool) for tool in body["tools"]]
    if "response_format" in body and (format_ := _response_format(body.pop("response_format"))) is not None:
        body["response_format"] = format_
    return body


def _message(message: Any) -> Any:
    """What an assistant refused with is what it said."""
    if not isinstance(message, dict):
        return message
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):
        return {**message, "content": [_part(part) for part in content]}
    if content is None and message.get("tool_calls") is None and isinstance(refusal, str):
        return {**message, "content": refusal}
    return message


def _part(part: Any) -> Any:
    is_refusal = isinstance(part, dict) and part.get("type") == "refusal"
    return {"type": "text", "text": part.get("refusal")} if is_refusal else part


def _tool(tool: Any) -> Any:
    """A function without parameters takes none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or {"arguments", "parameters"} & function.keys():
        return tool
    return {**tool, "function": {**function, "parameters": _NO_PARAMETERS}}


def _response_format(given: Any) -> Any:
    """None: the answer is free text."""
    if not isinstance(given, dict) or "value" in given:
        return given
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "json", "value": _ANY_OBJECT}
        case "json_schema" if isinstance(given.get("json_schema"), dict):
            return {"type": "json", "value": _root(given["json_schema"].get("schema"))}
    return given


def _root(schema: Any) -> Any:
    """TGI wants an object that names its properties; OpenAI also takes objects that name none."""
    if schema is None:
        return _ANY_OBJECT
    if isinstance(schema, dict) and schema.get("type") == "object" and "properties" not in schema:
        return {**schema, "properties": {}}
    return schema
