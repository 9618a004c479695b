"""Embeddings of a list of prompts: those of one salt and adapter together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from caudal.errors import ParameterError
from caudal.library.running import progress_bar
from caudal.service.answers import Embedding
from caudal.service.context import RequestContext
from caudal.service.model_service import ModelService
from caudal.service.naming import FieldNames, renamed
from caudal.service.work import EmbedWork


async def embed_all(
    service: ModelService,
    prompts: Sequence[tuple[str | list[int], str | None]],
    adapters: Sequence[str | None],
    *,
    dimensions: int | None,
    truncate: int | None,
    prompt_name: str | None,
    show_progress: bool,
) -> list[Embedding]:
    """Embed prompts.

    Args:
        service: The model's.
        prompts: Text or token ids of each, and its cache salt.
        adapters: The adapter of each, by name.
        dimensions: See `LLM.embed`.
        truncate: Likewise.
        prompt_name: Likewise.
        show_progress: Likewise.

    Returns:
        One result per prompt, in order.

    Raises:
        ParameterError: A prompt or parameter is refused; in a group of errors, as all that are
            embedded together may be refused.
    """
    together: dict[RequestContext, list[int]] = {}
    for index, ((_, salt), adapter) in enumerate(zip(prompts, adapters, strict=True)):
        context = RequestContext(cache_salt=salt, adapter=adapter)
        together.setdefault(context, []).append(index)
    made: dict[int, Embedding] = {}
    with progress_bar(len(prompts), show_progress) as advance:

        async def embed(context: RequestContext, indices: Sequence[int]) -> None:
            work = EmbedWork(
                inputs=[prompts[index][0] for index in indices],
                truncate=truncate,
                dimensions=dimensions,
                show_token_ids=True,
                prompt_name=prompt_name,
            )
            try:
                results = await service.embed(work, context, on_done=advance)
            except ParameterError as error:
                raise renamed(error, _input_names(indices, len(prompts))) from None
            made.update(zip(indices, results, strict=True))

        async with asyncio.TaskGroup() as group:
            for context, indices in together.items():
                group.create_task(embed(context, indices))
    return [made[index] for index in range(len(prompts))]


def _input_names(indices: Sequence[int], count: int) -> FieldNames:
    """What prompts are called that are embedded together: some of `count`."""
    if len(indices) == count:
        return FieldNames({"input": "prompts"})
    if len(indices) == 1:
        return FieldNames({"input": f"prompts[{indices[0]}]"})
    return FieldNames({f"input[{i}]": f"prompts[{index}]" for i, index in enumerate(indices)})
