"""The values that Ollama fills its models' templates with, made of a conversation like OpenAI's.

Types, fields, their order and how they print are those of api/types.go and template/template.go in
Ollama's sources (August 2026). What these have no field for is kept all the same: it stands behind
the known fields wherever an object is written as JSON, so that the model sees all of a tool's
schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from caudal.formats.go_template.json_text import to_json
from caudal.formats.go_template.values import GoList, GoMap, GoStruct, json_value

KEYS = frozenset(
    (
        *("tool_calls", "tool_call_id", "tool_name", "name", "function", "arguments", "id"),
        *("index", "thinking", "reasoning_content", "type", "description", "parameters"),
        *("properties", "required", "items", "enum", "anyOf", "$defs"),
    )
)
"""Keys of messages and tools by which values are found."""

_TYPE_SCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


class _JsonStruct(GoStruct):
    """A struct whose fields have names of their own in JSON.

    Attributes:
        names: JSON's name of each field, and whether an empty one is left out.
        extra: What is written behind its fields.
    """

    names: ClassVar[Mapping[str, tuple[str, bool]]] = {}

    __slots__ = ("extra",)

    def __init__(self, values: Mapping[str, Any], source: Mapping[str, Any]) -> None:
        super().__init__(values)
        known = {name for name, _ in self.names.values()}
        self.extra = {key: json_value(v) for key, v in source.items() if key not in known}

    def to_json(self) -> Any:
        written: dict[str, Any] = {}
        for field, (name, omits_empty) in self.names.items():
            value = self.fields[field]
            if not omits_empty or not _is_empty(value):
                written[name] = value
        return written | self.extra


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | GoList) and not value)


class _Strings(GoList):
    type_name = "[]string"


class _Structs(GoList):
    type_name = "[]api.ToolProperty"


class PropertyType(GoList):
    """The type of a property: mostly one."""

    type_name = "api.PropertyType"

    def to_text(self) -> str:
        return self[0] if len(self) == 1 else f"[{' '.join(self)}]" if self else ""

    def to_json(self) -> Any:
        return self[0] if len(self) == 1 else self


class _Properties(GoMap):
    """A tool's properties, in the order of their names."""

    type_name = "template.templateProperties"

    def missing(self) -> Any:
        return ToolProperty.made_of({})

    def to_text(self) -> str | None:
        return "{}" if self.is_nil else to_json(self)


class _InOrder(_Properties):
    """A property's properties, in the order in which they are given."""

    type_name = "map[string]api.ToolProperty"

    def ordered(self) -> Iterator[tuple[str, Any]]:
        return iter(self.items())

    def to_text(self) -> str | None:
        return None


class _PropertiesMap(GoStruct):
    """What holds a property's properties, whose own fields are hidden."""

    type_name = "api.ToolPropertiesMap"
    is_pointer = True
    methods: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "Len": lambda it: len(it.properties),
        "All": lambda it: it.properties,
        "ToMap": lambda it: _Properties(it.properties),
    }

    __slots__ = ("properties",)

    def __init__(self, properties: _InOrder) -> None:
        super().__init__({})
        self.properties = properties

    def to_json(self) -> Any:
        return self.properties


class ToolProperty(_JsonStruct):
    """The schema of one argument."""

    type_name = "api.ToolProperty"
    methods: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "ToTypeScriptType": lambda it: it.to_type_script()
    }
    names: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "AnyOf": ("anyOf", True),
        "Type": ("type", True),
        "Items": ("items", True),
        "Description": ("description", True),
        "Enum": ("enum", True),
        "Properties": ("properties", True),
        "Required": ("required", True),
    }

    __slots__ = ()

    @classmethod
    def made_of(cls, schema: Any) -> ToolProperty:
        """One of a JSON schema; where that isn't an object, an empty one, which allows anything."""
        source = schema if isinstance(schema, Mapping) else {}
        properties = source.get("properties")
        inner: _PropertiesMap | None = None
        if isinstance(properties, Mapping):
            made = {name: cls.made_of(item) for name, item in properties.items()}
            inner = _PropertiesMap(_InOrder(made))
        values = {
            "AnyOf": _Structs(
                map(cls.made_of, _list_of(source, "anyOf")), is_nil="anyOf" not in source
            ),
            "Type": _types_of(source),
            "Items": json_value(source.get("items")),
            "Description": _text_of(source, "description"),
            "Enum": GoList(map(json_value, _list_of(source, "enum")), is_nil="enum" not in source),
            "Properties": inner,
            "Required": _Strings(_list_of(source, "required"), is_nil="required" not in source),
        }
        return cls(values, source)

    def to_type_script(self) -> str:
        """What TypeScript calls its type."""
        if self.fields["AnyOf"]:
            return " | ".join(option.to_type_script() for option in self.fields["AnyOf"])
        return " | ".join(_TYPE_SCRIPT.get(name, "any") for name in self.fields["Type"]) or "any"


class _Parameters(_JsonStruct):
    type_name = "template.templateToolFunctionParameters"
    names: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "Type": ("type", False),
        "Defs": ("$defs", True),
        "Items": ("items", True),
        "Required": ("required", True),
        "Properties": ("properties", False),
    }

    __slots__ = ()


class _Function(_JsonStruct):
    type_name = "template.templateToolFunction"
    names: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "Name": ("name", False),
        "Description": ("description", False),
        "Parameters": ("parameters", False),
    }

    __slots__ = ()


class Tool(_JsonStruct):
    """A tool, which prints as JSON."""

    type_name = "template.templateTool"
    names: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "Type": ("type", False),
        "Items": ("items", True),
        "Function": ("function", False),
    }

    __slots__ = ()

    def to_text(self) -> str:
        return to_json(self)

    @classmethod
    def made_of(cls, source: Mapping[str, Any]) -> Tool:
        """One of a tool as in OpenAI's API."""
        function = _mapping_of(source, "function")
        parameters = _mapping_of(function, "parameters")
        properties = parameters.get("properties")
        made = (
            _Properties({name: ToolProperty.made_of(item) for name, item in properties.items()})
            if isinstance(properties, Mapping)
            else _Properties(is_nil=True)
        )
        values = {
            "Type": _text_of(parameters, "type"),
            "Defs": json_value(parameters.get("$defs")),
            "Items": json_value(parameters.get("items")),
            "Required": _Strings(
                _list_of(parameters, "required"), is_nil="required" not in parameters
            ),
            "Properties": made,
        }
        of_function = {
            "Name": _text_of(function, "name"),
            "Description": _text_of(function, "description"),
            "Parameters": _Parameters(values, parameters),
        }
        return cls(
            {
                "Type": _text_of(source, "type"),
                "Items": json_value(source.get("items")),
                "Function": _Function(of_function, function),
            },
            source,
        )


class Tools(GoList):
    """All tools, which print as JSON."""

    type_name = "template.templateTools"

    def to_text(self) -> str:
        return to_json(self)


class _Arguments(GoMap):
    """A call's arguments, which print as JSON.

    Attributes:
        text: What the model wrote in their place, where it was no object.
    """

    type_name = "template.templateArgs"

    def __init__(self, arguments: Any) -> None:
        self.text = arguments if isinstance(arguments, str) else None
        items = json_value(arguments) if isinstance(arguments, Mapping) else None
        super().__init__(items, is_nil=arguments is None)

    def to_text(self) -> str:
        if self.text is not None:
            return self.text
        return "{}" if self.is_nil else to_json(self)

    def to_json(self) -> Any:
        return self if self.text is None else self.text


class _CallFunction(GoStruct):
    type_name = "template.templateToolCallFunction"
    __slots__ = ()


class _Call(GoStruct):
    type_name = "template.templateToolCall"
    __slots__ = ()


class _Calls(GoList):
    type_name = "[]template.templateToolCall"


class Message(GoStruct):
    """A message."""

    type_name = "template.templateMessage"
    is_pointer = True
    __slots__ = ()

    @classmethod
    def made_of(cls, source: Mapping[str, Any]) -> Message:
        """One of a message as in OpenAI's or Ollama's API."""
        calls = [
            _Call(
                {
                    "ID": _text_of(call, "id"),
                    "Function": _CallFunction(
                        {
                            "Index": _mapping_of(call, "function").get("index", 0),
                            "Name": _text_of(_mapping_of(call, "function"), "name"),
                            "Arguments": _Arguments(_mapping_of(call, "function").get("arguments")),
                        }
                    ),
                }
            )
            for call in _list_of(source, "tool_calls")
            if isinstance(call, Mapping)
        ]
        thinking = _text_of(source, "thinking") or _text_of(source, "reasoning_content")
        name = _text_of(source, "tool_name") or _text_of(source, "name")
        return cls(
            {
                "Role": _text_of(source, "role"),
                "Content": _text_of(source, "content"),
                "Thinking": thinking,
                "Images": GoList(is_nil=True),
                "ToolCalls": _Calls(calls, is_nil=not calls),
                "ToolName": name if source.get("role") == "tool" else "",
                "ToolCallID": _text_of(source, "tool_call_id"),
            }
        )


class Messages(GoList):
    """All messages."""

    type_name = "[]*template.templateMessage"


def _text_of(source: Mapping[str, Any], key: str) -> str:
    value = source.get(key)
    return value if isinstance(value, str) else ""


def _list_of(source: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = source.get(key)
    return value if isinstance(value, list) else ()


def _mapping_of(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def _types_of(schema: Mapping[str, Any]) -> PropertyType:
    value = schema.get("type")
    types = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return PropertyType(name for name in types if isinstance(name, str))
