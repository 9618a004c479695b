"""Says which of a request's schemas can't be enforced, where their common grammar can't be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caudal.chat.conversation import Tool
from caudal.errors import ParameterError
from caudal.grammars.compiler import GrammarCompiler
from caudal.structured_outputs import StructuredOutputsParams


async def check_answer_form(
    grammars: GrammarCompiler,
    form: StructuredOutputsParams,
    content_form: StructuredOutputsParams | None,
    tools: Sequence[Tool],
    *,
    required: bool,
) -> Collection[str]:
    """Compile the form of a whole answer.

    A form may speak of calls because one tool's must follow their schema. That another's can't be
    enforced, which nobody asked for, is no reason to refuse them all.

    Args:
        grammars: Compiles it.
        form: What the whole answer is held to.
        content_form: What the request demands of the content.
        tools: The request's tools, for whose arguments the form speaks too.
        required: Whether one of them must be called.

    Returns:
        The names of tools whose schemas can't be enforced and need not be: the form can be had
        without them. Empty where it is fine as it is.

    Raises:
        ParameterError: It can't be enforced; blames `structured_outputs`, or the tool.
    """
    for index, tool in enumerate(tools):
        if tool.grammar is not None:
            await _check_text(grammars, f"tools[{index}].format", tool.grammar)
    try:
        await grammars.compile(form)
    except ParameterError as error:
        if content_form is not None:
            await grammars.compile(content_form)
        unchecked = set()
        for index, tool in enumerate(tools):
            if not tool.checked:
                continue
            field = f"tools[{index}].parameters"
            try:
                await grammars.compile(StructuredOutputsParams(json=tool.parameters))
            except ParameterError as own:
                if tool.strict or required or content_form is not None:
                    raise ParameterError(field, f"{field}: {own}") from error
                unchecked.add(tool.name)
        if unchecked:
            return unchecked
        if tools:
            raise ParameterError("tools", f"tools: {error}") from error
        raise
    return ()


async def _check_text(grammars: GrammarCompiler, field: str, grammar: str) -> None:
    """Raises `ParameterError` where a custom tool's grammar isn't one by itself; blames `field`."""
    try:
        await grammars.compile(StructuredOutputsParams(grammar=grammar))
    except ParameterError as error:
        raise ParameterError(field, f"{field}: {error}") from error
