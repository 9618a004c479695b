"""How an engine guesses: plain data, and how users write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from caudal.errors import ParameterError

MAX_PROPOSED = 32
"""Tokens of a sequence proposed at once. Each takes a row of logits, which may cost more than all
else: a whole page of them would hold up everyone else's next token.
"""

SpeculationMethod = Literal["ngram", "draft", "mtp"]

FIELDS = (
    *("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"),
    "adaptive",
)
"""Those of vLLM's `--speculative-config` that mean something here, and one of our own."""

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "disable_padded_drafter_batch": (True, False),
    "draft_sample_method": ("greedy", "probabilistic"),  # measured: see `guess_rows.py`
    "draft_tensor_parallel_size": (1,),
    "enforce_eager": (True, False),
    "parallel_drafting": (False,),
    "rejection_sample_method": ("standard",),
    "tensor_parallel_size": (1,),
    "use_heterogeneous_vocab": (False,),
}
"""Those of its others that may be given, with the values that change nothing here."""

_METHODS = {"ngram_gpu": "ngram", "draft_model": "draft"}
"""vLLM's names of methods that are called otherwise here; what ends in `_mtp` is `mtp`."""

_TRAINED = ("dflash", "dspark", "eagle", "eagle3", "medusa", "mlp_speculator")
"""Its methods that take heads, or layers, trained for one model and published beside it."""

_BOUNDS = ("prompt_lookup_max", "prompt_lookup_min")

COMPUTED = 5
"""Tokens that a draft model, or the model itself, guesses at once where nobody says how many: each
of them is computed, one after the other."""

LONGEST_LOOKUP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What makes guesses, and how long they are. Names are vLLM's.

    Attributes:
        method: `ngram`: what followed the same text before, in the request's own or in what is
            cached; `draft`: a smaller model; `mtp`: the model's own heads.
        model: `draft`: the model, by a name as for `caudal pull`.
        num_speculative_tokens: Most tokens guessed at once. Fewer are where it pays more.
        prompt_lookup_max: `ngram`: tokens of the text's end that are compared at most, to choose
            between places.
        prompt_lookup_min: `ngram`: tokens that must be the same at least.
        adaptive: Guess as far as it pays, by what guesses cost and how often they are right; off
            only to measure what that brings: then it is as far as there is room.

    Raises:
        ParameterError: Names the field and what it may be.
    """

    method: SpeculationMethod = "ngram"
    model: str | None = None
    num_speculative_tokens: int = MAX_PROPOSED
    prompt_lookup_max: int = 16
    prompt_lookup_min: int = 3
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.method not in get_args(SpeculationMethod):
            raise _error(
                f"method must be one of {', '.join(get_args(SpeculationMethod))}, "
                f"not {self.method!r:.80}"
            )
        if (self.model is not None) != (self.method == "draft"):
            raise _error(
                "a draft needs a model, e.g. draft:smollm2"
                if self.model is None
                else f"a model goes with the method draft, not {self.method}"
            )
        if not isinstance(self.model, str | None) or self.model == "":
            raise _error("model must be a model's name")
        for name, most in (
            ("num_speculative_tokens", MAX_PROPOSED),
            ("prompt_lookup_max", LONGEST_LOOKUP),
            ("prompt_lookup_min", LONGEST_LOOKUP),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise _error(f"{name} must be an integer from 1 to {most}, but is {value!r:.80}")
        if not isinstance(self.adaptive, bool):
            raise _error(f"adaptive must be true or false, but is {self.adaptive!r:.80}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise _error("prompt_lookup_min must not exceed prompt_lookup_max")

    def __str__(self) -> str:
        return self.method if self.model is None else f"{self.method}:{self.model}"


def speculation_of(text: str) -> Speculation | None:
    """What a user means by `ngram`, `draft:MODEL` or `mtp`; None by `off`.

    Raises:
        ParameterError: Nothing.
    """
    method, _, model = text.partition(":")
    match method:
        case "off" if text == method:
            return None
        case "ngram" if text == method:
            return Speculation(method=method)
        case "mtp" if text == method:
            return Speculation(method=method, num_speculative_tokens=COMPUTED)
        case "draft":
            return Speculation(method="draft", model=model or None, num_speculative_tokens=COMPUTED)
    raise _error(f"must be ngram, draft:MODEL, mtp or off, not {text!r:.80}")


def speculation_of_config(config: str | Mapping[str, Any]) -> Speculation:
    """What is meant by vLLM's `--speculative-config`, JSON or what that says.

    There a number of tokens is guessed in every iteration; here it is the most.

    Raises:
        ParameterError: It is no JSON object; a field is unknown, or makes no sense.
    """
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise _error('must be JSON, e.g. {"method": "ngram"}') from error
    if not isinstance(config, Mapping):
        raise _error('must be a JSON object, e.g. {"method": "ngram"}')
    fields = {}
    for name, value in config.items():
        if name in FIELDS:
            if value is not None:
                fields[name] = value
        elif name not in _WITHOUT_EFFECT:
            raise _error(f"has no field {name!r:.80}; there are {', '.join(FIELDS)}")
        elif value is not None and not any(
            type(value) is type(may) and value == may for may in _WITHOUT_EFFECT[name]
        ):
            may_be = " or ".join(json.dumps(may) for may in _WITHOUT_EFFECT[name])
            raise _error(f"{name} can only be {may_be} here, not {value!r:.80}")
    model = fields.get("model")
    method = _method_of(fields.get("method"), model)
    if method == "ngram" and model in ("ngram", "[ngram]"):
        del fields["model"]
    if method in ("draft", "mtp"):
        fields.setdefault("num_speculative_tokens", COMPUTED)
    for given, other in (_BOUNDS, _BOUNDS[::-1]):  # one bound is the other, too
        if given in fields:
            fields.setdefault(other, fields[given])
    return Speculation(**{**fields, "method": method})


def _method_of(method: Any, model: Any) -> str:
    """What guesses, where vLLM's configuration says so of method and model.

    Raises:
        ParameterError: There is no such method here.
    """
    if method is None:  # as vLLM finds it out
        return "draft" if model is not None and model not in ("ngram", "[ngram]") else "ngram"
    if isinstance(method, str):
        if method.endswith("_mtp"):
            return "mtp"
        method = _METHODS.get(method, method)
    if method in _TRAINED:
        raise _error(
            f"there is no method {method}, whose heads are trained for one model. Use mtp for a "
            "model that has a layer of its own to guess with, or draft_model with a smaller one of "
            "the same vocabulary"
        )
    if method == "suffix":
        raise _error(
            "there is no method suffix. Use ngram, which looks up earlier answers in the prefix "
            "cache, too"
        )
    if method not in get_args(SpeculationMethod):
        raise _error(f"method must be ngram, draft_model or mtp, not {method!r:.80}")
    return str(method)


def with_speculation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a `Speculation` for what is said in either of the two ways.

    Raises:
        ParameterError: It makes no sense, or is said twice.
    """
    made = dict(options)
    config = made.pop("speculative_config", None)
    said = made.get("speculative")
    if config is not None:
        if said is not None:
            raise _error("say either speculative or speculative_config")
        made["speculative"] = speculation_of_config(config)
    elif isinstance(said, str):
        made["speculative"] = speculation_of(said)
    return made


def _error(what: str) -> ParameterError:
    return ParameterError("speculative", f"speculative: {what}.")


LOOK_UP = Speculation()
"""What models are loaded with unless somebody says otherwise."""
