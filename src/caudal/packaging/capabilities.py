"""What a model can do, in Ollama's words: `completion`, `tools`, `thinking`, `insert`, `embedding`.

Told as Ollama tells it (server/images.go, `capabilitiesForTemplate`; thinking/template.go): by keys
of the weights, and by what the template looks at. Images and sound aren't among them: text is what
Caudal serves, and who is told `vision` sends pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caudal.errors import TemplateError
from caudal.formats.go_template.detection import is_go_template
from caudal.formats.go_template.ollama import OllamaTemplate
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
        template = OllamaTemplate.compile(source)
    except TemplateError:
        return  # chats will say so
    if "tools" in template.names:
        yield "tools"
    if "suffix" in template.names:
        yield "insert"
    if template.facts.thinking_tags is not None:
        yield "thinking"
