"""The form that an answer must have, under the names of OpenAI, vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.service.naming import FieldNames, renamed
from caudal.structured_outputs import StructuredOutputsParams


class JSONSchemaFormat(RequestObject):
    """OpenAI's `response_format.json_schema`."""

    closed = True

    name: str | None = Field(None, description="Not needed here.")
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="Makes no difference: answers always conform.")


class ResponseFormat(RequestObject):
    """OpenAI's `response_format`; llama.cpp's servers also take a `schema` with `json_object`."""

    closed = True

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _check(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("json_schema goes with type json_schema, and only with it")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("schema goes with type json_object, and only with it")
        return self

    def form(self) -> StructuredOutputsParams | None:
        """What is asked for, None where that is text."""
        match self.type:
            case "text":
                return None
            case "json_object" if self.schema_ is None:
                return StructuredOutputsParams(json_object=True)
            case "json_object":
                return StructuredOutputsParams(json=self.schema_)
            case "json_schema":
                assert self.json_schema is not None
                return StructuredOutputsParams(json=self.json_schema.schema_)


class StructuredOutputs(RequestObject):
    """vLLM's `structured_outputs`."""

    closed = True

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "disable_any_whitespace": (False, True),  # white space is never free
        "disable_fallback": (False, True),  # there is nothing to fall back to
        "structural_tag": (),
        "whitespace_pattern": (),
    }

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_additional_properties: bool | None = None

    def form(self) -> StructuredOutputsParams:
        """What is asked for."""
        return StructuredOutputsParams(
            json=self.json_,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object,
            disable_additional_properties=self.disable_additional_properties or False,
        )


FORMS_ELSEWHERE: Mapping[str, Sequence[Any]] = {
    # What vLLM called `structured_outputs` once, and SGLang's names: without them answers would
    # be free.
    "ebnf": ("",),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "regex": ("",),
    "structural_tag": ("",),
}
"""Names of forms that no API here has."""

CHAT_FORMS: Mapping[str, Sequence[Any]] = {
    "grammar": ("",),
    "json_schema": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
}
"""Names of forms that chats and completions have, with the values that ask for none."""


class FormFields(RequestObject):
    """Fields of a request that give its answer a form; at most one of them may."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = FORMS_ELSEWHERE

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="As in vLLM.")
    json_schema: dict[str, Any] | None = Field(None, description="As in llama.cpp.")
    grammar: str | None = Field(None, description="GBNF, as in llama.cpp, or Lark.")

    @property
    def form_field(self) -> str:
        """The name under which the form was given."""
        names = ("structured_outputs", "json_schema", "grammar")
        given = (name for name in names if getattr(self, name) not in (None, ""))
        return next(given, "response_format")

    def form(self) -> StructuredOutputsParams | None:
        """The form that the answer must have, None where it is free.

        Raises:
            ParameterError: There are two, or one that makes no sense; names the field.
        """
        forms: dict[str, StructuredOutputsParams] = {}
        for name, make in self._forms().items():
            try:
                form = make()
            except ParameterError as error:
                raise renamed(error, FieldNames({error.param: name})) from None
            if form is not None:
                forms[name] = form
        if len(forms) > 1:
            first, second, *_ = forms
            raise ParameterError(second, f"{second} and {first} exclude each other.")
        return next(iter(forms.values()), None)

    def _forms(self) -> dict[str, Callable[[], StructuredOutputsParams | None]]:
        forms: dict[str, Callable[[], StructuredOutputsParams | None]] = {}
        if self.response_format is not None:
            forms["response_format"] = self.response_format.form
        if self.structured_outputs is not None:
            forms["structured_outputs"] = self.structured_outputs.form
        if self.json_schema is not None:
            forms["json_schema"] = partial(StructuredOutputsParams, json=self.json_schema)
        if self.grammar:  # llama.cpp's clients send an empty one for none
            forms["grammar"] = partial(StructuredOutputsParams, grammar=self.grammar)
        return forms
