"""Caudal: a serving layer for local large language models.

>>> from caudal import LLM, SamplingParams
>>> with LLM("smollm2") as llm:
...     [result] = llm.generate("The capital of France is", SamplingParams(temperature=0))
...     print(result.outputs[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    __version__: str

    from caudal.library.chat_options import NoEffectWarning
    from caudal.library.llm import LLM
    from caudal.library.results import (
        CompletionOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
        ScoringRequestOutput,
        ToolCall,
    )

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "NoEffectWarning",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "ToolCall",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # `import caudal` stays light, for the command line: the engine comes with the first use.
    if name == "LLM":
        from caudal.library.llm import LLM

        return LLM
    if name == "NoEffectWarning":
        from caudal.library.chat_options import NoEffectWarning

        return NoEffectWarning
    if name in __all__ and name.endswith(("Output", "Logprob", "ToolCall")):
        from caudal.library import results

        return getattr(results, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("caudal")
    raise AttributeError(f"module 'caudal' has no attribute {name!r}")
