"""What a model can do, in Ollama's words: `completion`, `tools`, `thinking`, `insert`, `embedding`.

Told as Ollama tells it (server/images.go, `capabilitiesForTemplate`; thinking/template.go): by keys
of the weights, and by what the template looks at. Images and sound aren't among them: text is what
Caudal serves, and who is told `vision` sends pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caudal.errors import TemplateError
from caudal.formats.go_template.detection import is_go_template
from caudal.formats.go_template.nodes import (
    Action,
    Body,
    Branch,
    Call,
    Chain,
    Field,
    Operand,
    Pipeline,
    Text,
    Variable,
)
from caudal.formats.go_template.template import GoTemplate
from caudal.formats.model_file import ModelFile
from caudal.store.oci import ImageConfig

_UNSERVED = ("vision", "audio", "image")


def capabilities_of(file: ModelFile, template: str, config: ImageConfig) -> Sequence[str]:
    """What a model can do.

    Args:
        file: Its weights.
        template: The template that its prompts are made with; empty where it has none.
        config: What it says of itself.

    Raises:
        ModelLoadError: The weights don't say what they are.
    """
    embeds = f"{file.architecture}.pooling_type" in file.metadata
    found = [
        *config.capabilities,
        "embedding" if embeds else "completion",
        *(_of_go(template) if is_go_template(template) else _of_jinja(template)),
        *(["thinking"] if file.architecture in ("gptoss", "gpt-oss") else []),
    ]
    return [each for each in dict.fromkeys(found) if each not in _UNSERVED]


def _of_jinja(source: str) -> Iterator[str]:
    if "tools" in source or "tool_call" in source:
        yield "tools"
    splits = "content.split('</think>')" in source or 'content.split("</think>")' in source
    if ("<think>" in source and "</think>" in source) or (
        splits and "reasoning_content" not in source and "<SPECIAL_12>" not in source
    ):
        yield "thinking"


def _of_go(source: str) -> Iterator[str]:
    try:
        template = GoTemplate.parse(source)
    except TemplateError:
        return  # chats will say so
    names = {name for body in template.trees.values() for name in _names(body)}
    if "Tools" in names:
        yield "tools"
    if "Suffix" in names:
        yield "insert"
    if any(map(_shows_thinking, template.trees.values())):
        yield "thinking"


def _names(body: Body) -> Iterator[str]:
    """All names that a template looks up."""
    for node in body:
        if isinstance(node, Action | Branch | Call) and node.pipeline is not None:
            yield from _looked_up(node.pipeline)
        if isinstance(node, Branch):
            yield from _names(node.body)
            yield from _names(node.otherwise or ())


def _looked_up(pipeline: Pipeline) -> Iterator[str]:
    for command in pipeline.commands:
        for operand in command.operands:
            yield from _in_operand(operand)


def _in_operand(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Field):
        yield from operand.names
    elif isinstance(operand, Variable):
        yield from operand.fields
    elif isinstance(operand, Chain):
        yield from _in_operand(operand.operand)
        yield from operand.fields
    elif isinstance(operand, Pipeline):
        yield from _looked_up(operand)


def _shows_thinking(body: Body, *, in_messages: bool = False) -> bool:
    """Whether what was thought is written between two texts, in a loop over the messages."""
    for node in body:
        if isinstance(node, Branch):
            inside = in_messages
            if node.keyword == "range":
                inside = "Messages" in set(_looked_up(node.pipeline))
            for part in (node.body, node.otherwise or ()):
                if _shows_thinking(part, in_messages=inside):
                    return True
        elif isinstance(node, Action) and in_messages and "Thinking" in _looked_up(node.pipeline):
            return _is_text(body[0]) and _is_text(body[-1])
    return False


def _is_text(node: object) -> bool:
    return isinstance(node, Text) and bool(node.text.strip())
