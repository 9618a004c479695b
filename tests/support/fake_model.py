"""A model that says what a test tells it to: bytes for tokens, a script for an answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from caudal.backends.executor import SampledToken, SamplingRow, SequenceStep, StepResult
from caudal.chat.preparer import ChatPreparer
from caudal.engine.async_engine import AsyncEngine
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.grammar import Grammars
from caudal.errors import ParameterError, TemplateError
from caudal.formats.fill_tokens import FillTokens
from caudal.formats.lora.adapter import Adapter
from caudal.formats.template_workers import TemplateProcesses
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.requests import RequestGrammars
from caudal.models.pooling import Pooling
from caudal.service.adapters import ModelAdapters
from caudal.service.embedding import Embedder
from caudal.service.facts import ServedFacts
from caudal.service.metrics import ServiceMetrics
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from support.fake_executor import FakeExecutor, allows
from support.fake_facts import fake_facts
from support.tiny_adapter import read_tiny_adapter

END = 256
"""The control token that ends an answer."""

WORDS = ("O P Q", "llo wor", "día", " ST", "OP!", "🦙")
"""Tokens of several characters, ids from 257."""


class ByteTokenizer:
    """One token per byte, one control token, and a few longer ones that only decode."""

    eos_ids = frozenset({END})
    special_tokens: Mapping[str, int] = {"<|end|>": END}
    vocab_size = END + 1 + len(WORDS)
    add_bos = False
    add_eos = False
    bos_id = None
    eos_id = END
    longest_token = len("<|end|>")
    fill_tokens: FillTokens | None = None

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        if parse_special and "<|end|>" in text:
            before, _, after = text.partition("<|end|>")
            return [*self.encode(before), END, *self.encode(after, parse_special=True)]
        return list(text.encode(errors="replace"))

    def with_bos(self, ids: list[int]) -> list[int]:
        return ids

    def without_bos(self, ids: list[int]) -> list[int]:
        return ids

    def framed(self, ids: list[int]) -> list[int]:
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [token for token in ids if not (skip_special_tokens and self.is_control(token))]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ParameterError("tokens", f"there is no token {token}")
        if token < END:
            return bytes([token])
        return b"<|end|>" if token == END else WORDS[token - END - 1].encode()

    def plain_text(self, token: int) -> str | None:
        return None if self.is_control(token) or 128 <= token < END else self.decode([token])

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def is_control(self, token: int) -> bool:
        return token == END


def word(text: str) -> int:
    """The id of one of the longer tokens."""
    return END + 1 + WORDS.index(text)


class FakeTemplate:
    """A chat template that runs in no process of its own."""

    is_default = is_go = supports_suffix = False
    thinking_tags = None
    variables: frozenset[str] = frozenset()

    def reads(self, variable: str) -> bool:
        return variable in self.variables

    def choices(self, variable: str) -> frozenset[str]:
        return frozenset()

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        raise TemplateError("this template makes tokens only")

    def start(self) -> None:
        """Nothing runs elsewhere."""

    def check(self) -> None:
        """It is right."""

    def close(self) -> None:
        """Nothing runs elsewhere."""


class RoleTemplate(FakeTemplate):
    """`role:content` per line; no system messages, as some models' templates insist."""

    source = "role:content"
    sources = (source,)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        if any(message["role"] == "system" for message in messages):
            raise TemplateError("System role not supported")
        text = "\n".join(f"{message['role']}:{_text_of(message)}" for message in messages)
        if add_generation_prompt:
            text += "\nassistant:"
        text += "".join(map(str, (template_kwargs or {}).values()))
        return list(text.encode(errors="replace"))

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return bytes(self.encode(messages, **options)).decode()


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass
class ScriptedExecutor(FakeExecutor):
    """Answers every prompt with the same tokens, then ends; still checks the paging.

    Attributes:
        script: The answer's tokens; `END` follows.
        by_prompt: Answers to particular prompts instead.
        by_adapter: Answers with particular adapters instead, by the base names of their files.
        seconds: What an iteration takes at least, with the GIL let go as a real one lets it go.
            An engine that takes it again within microseconds keeps the event loops from running:
            who waits for the GIL is woken each time, comes too late, and waits anew.
    """

    num_blocks: int = 512
    block_size: int = 16
    vocab_size: int = ByteTokenizer.vocab_size
    script: Sequence[int] = ()
    by_prompt: Mapping[bytes, Sequence[int]] = field(default_factory=dict)
    by_adapter: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seconds: float = 0.0002
    _adapter: Adapter | None = None

    def collect(self) -> Sequence[StepResult]:
        time.sleep(self.seconds)
        return super().collect()

    def _choose(self, step: SequenceStep, context: list[int]) -> list[SampledToken] | None:
        self._adapter = self.adapter_of(step)
        return super()._choose(step, context)

    def _sample(self, context: list[int], row: SamplingRow) -> SampledToken:
        prompt = context[: len(context) - row.step]
        script = self.script
        for key, answer in self.by_prompt.items():
            if prompt == list(key):
                script = answer
        if self._adapter is not None:
            script = self.by_adapter.get(Path(self._adapter.source).stem, script)
        token = script[row.step] if row.step < len(script) else END
        if token in row.banned_tokens:
            token = ord(".")
        if row.allowed_tokens is not None and not allows(row.allowed_tokens, token):
            token = next(filter(partial(allows, row.allowed_tokens), range(self.vocab_size)))
        logprob = None
        if row.params.logprobs is not None:
            logprob = self._logprob(context, token, row.params.logprobs)
        return SampledToken(token, logprob)


def start_engine(
    executor: FakeExecutor, grammars: Grammars | None = None, **limits: Any
) -> AsyncEngine:
    """An engine on a fake model."""
    config = EngineConfig(**{"max_model_len": 512, "max_num_seqs": 8} | limits)
    if grammars is None:
        tokenizer: Any = ByteTokenizer()
        grammars = RequestGrammars(tokenizer, GrammarCompiler(tokenizer))
    return AsyncEngine(Engine(executor, config, ByteTokenizer.eos_ids, grammars))


def serve_fake(
    executor: FakeExecutor,
    names: Sequence[str] = ("fake",),
    *,
    tool_parser: str = "auto",
    reasoning_parser: str = "auto",
    tokenizer: Any = None,
    **limits: Any,
) -> ModelService:
    """A served model on a fake one; its tokenizer is a `ByteTokenizer` unless given."""
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    grammars = GrammarCompiler(tokenizer)
    engine = start_engine(executor, RequestGrammars(tokenizer, grammars), **limits)
    metrics = ServiceMetrics(names[0], engine, TemplateProcesses)
    adapters = ModelAdapters(engine, read_tiny_adapter, names)
    template: Any = RoleTemplate()
    return ModelService(
        ServiceParts(
            names=names,
            tokenizer=tokenizer,
            chat=ChatPreparer(
                template, tokenizer, tool_parser=tool_parser, reasoning_parser=reasoning_parser
            ),
            grammars=grammars,
            engine=engine,
            embedder=Embedder(
                engine,
                tokenizer,
                Pooling(kind="last", normalize=False),
                1,
                metrics.observe_queue_time,
            ),
            adapters=adapters,
            facts=ServedFacts(
                loaded=fake_facts(
                    model=names[0],
                    vocab_size=ByteTokenizer.vocab_size,
                    max_model_len=engine.config.max_model_len,
                )
            ),
            metrics=metrics,
        )
    )


def changed(model: ModelService, **parts: Any) -> ModelService:
    """A model with other parts."""
    return ModelService(replace(model.parts, **parts))
