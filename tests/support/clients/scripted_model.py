"""A model with a real vocabulary and template, whose answers are written by the test.

Everything but the arithmetic is what `caudal serve` runs: template, tokenizer, grammars, engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from caudal.backends.executor import SampledToken, SamplingRow
from caudal.engine.config import EngineConfig
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.loading.files import open_model
from caudal.loading.load import LoadedModel
from caudal.service.model_service import ModelService
from caudal.service.parts import ServiceParts
from caudal.store import Store
from support.fake_executor import FakeExecutor, allows
from support.fake_facts import fake_facts

BLOCK_SIZE = 64

Script = Callable[[str], str]
"""What the model answers to a prompt; both as text, with the names of control tokens."""

THINKING_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' ~ message.role ~ '\n' }}"
    "{%- if message.reasoning_content -%}"
    "{{ '<think>\n' ~ message.reasoning_content ~ '\n</think>\n\n' }}{%- endif -%}"
    "{{ message.content ~ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}"
    "{{ '<think>\n\n</think>\n\n' }}{%- endif -%}{%- endif -%}"
)
"""ChatML for a model that thinks before it answers, and can be told not to."""


@dataclass(kw_only=True)
class ScriptedExecutor(FakeExecutor):
    """Says what the script says, token by token, and checks the engine's paging meanwhile.

    Attributes:
        tokenizer: The model's.
        script: The answers. Where a grammar forbids the next token, one that it allows is said
            instead: what ends things soonest.
    """

    tokenizer: Tokenizer
    script: Script
    _answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._closing = [*self.tokenizer.eos_ids]
        self._closing += [self.tokenizer.encode_continuation(text)[0] for text in '"}]01']

    def _sample(self, context: list[int], row: SamplingRow) -> SampledToken:
        prompt = context[: len(context) - row.step]
        answer = self._answer(tuple(prompt))
        token = answer[row.step] if row.step < len(answer) else min(self.tokenizer.eos_ids)
        if row.allowed_tokens is not None and not allows(row.allowed_tokens, token):
            candidates = (*self._closing, *range(self.vocab_size))
            token = next(filter(partial(allows, row.allowed_tokens), candidates))
        logprobs = row.params.logprobs
        return SampledToken(
            token, None if logprobs is None else self._logprob(context, token, logprobs)
        )

    def _answer(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._answers:
            text = self.script(self.tokenizer.decode(prompt, skip_special_tokens=False))
            self._answers[prompt] = self.tokenizer.encode_continuation(text)
        return self._answers[prompt]


def scripted_model(
    path: Path, script: Script, *, name: str, template: str | None, max_model_len: int
) -> ModelService:
    """A served model that answers by a script.

    Args:
        path: A GGUF file, for its vocabulary and template.
        script: The answers.
        name: The name to serve it under.
        template: A chat template instead of the file's.
        max_model_len: Tokens of its context.
    """
    with open_model(Store().resolve(str(path))) as files:
        tokenizer, program = files.tokenizer, files.program
        adapter_base = files.adapter_base
        chat_template = files.chat_template
    executor = ScriptedExecutor(
        num_blocks=2 * max_model_len // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer,
        script=script,
    )
    if template is not None:
        chat_template = ChatTemplate(template, tokenizer)
    loaded = LoadedModel(
        name=name,
        path=path,
        tokenizer=tokenizer,
        chat_template=chat_template,
        grammars=GrammarCompiler(tokenizer),
        program=program,
        executor=executor,
        engine_config=EngineConfig(max_model_len=max_model_len, max_num_batched_tokens=8192),
        facts=fake_facts(model=name, vocab_size=tokenizer.vocab_size, max_model_len=max_model_len),
        adapter_base=adapter_base,
    )
    return ModelService(ServiceParts.from_loaded(loaded))
