"""Fields of generation that vLLM and llama.cpp's server have beside OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar

from pydantic import Field

from caudal.errors import ParameterError
from caudal.sampling_params import MAX_LOGPROBS
from caudal.server.llama_cpp.fields import LlamaCppFields


class PeerFields(LlamaCppFields):
    """What chat and text completions share of them."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        # vLLM's
        "best_of": (1,),
        "kv_transfer_params": ({},),
        "logprob_token_ids": ([],),
        "prompt_embeds": ([],),
        "repetition_detection": ({},),
        "spaces_between_special_tokens": (True,),
        "use_beam_search": (False,),
        "vllm_xargs": ({},),
        "watermarking": (False,),
        # old ways to sample, whose fields many clients still send
        "tfs_z": (1,),
        "top_a": (0,),
        # llama.cpp's, which its own route has
        "n_probs": (0,),
        "response_fields": ([],),
    }
    hints: ClassVar[AbstractSet[str] | Mapping[str, Sequence[Any]]] = frozenset(
        (
            # vLLM's
            "length_penalty",  # of beam search
            "request_id",
            "return_token_offsets",
            "return_weight_versions",
            "session_id",
            "stream_interval",
            # llama.cpp's
            "verbose",
        )
    )

    allowed_token_ids: list[int] | None = Field(None, description="Nothing else is ever chosen.")
    bad_words: list[str] | None = Field(
        None, description="Words that the answer won't have, as the tokenizer cuts them."
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="As many of the likeliest tokens at every place of the prompt."
    )
    return_token_ids: bool | None = Field(
        None, description="The answer has the token ids of the prompt and of the text."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Tokens of log-probabilities are called `token_id:1234`."
    )
    n_predict: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="llama.cpp's `max_tokens`; -1: the rest of the context."
    )
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="llama.cpp's `repetition_penalty`."
    )

    def check_prompt_logprobs(self, *, stream: bool) -> None:
        """Raises `ParameterError` where a stream is to have log-probabilities of the prompt."""
        if stream and self.prompt_logprobs:
            raise ParameterError(
                "prompt_logprobs", "prompt_logprobs are not available where stream is true."
            )


def same_meaning(given: Mapping[str, Any]) -> tuple[str, Any]:
    """The value that one of several names was given, and that name.

    Args:
        given: Values by name, the usual one first; None where it was not given.

    Raises:
        ParameterError: Two of them say different things.
    """
    usual = next(iter(given))
    found = {name: value for name, value in given.items() if value is not None}
    if not found:
        return usual, None
    (name, value), *others = found.items()
    for other, said in others:
        if said != value:
            raise ParameterError(name, f"{name} and {other} differ; set one of them.")
    return name, value
