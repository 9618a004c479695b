"""A served model with a real chat template, on a scripted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caudal.chat.model import ChatModel
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.template_workers import TemplateWorkers
from caudal.grammars.compiler import GrammarCompiler
from caudal.service.served_model import ServedModel
from support.fake_model import ScriptedExecutor, serve_fake
from support.vocabularies import bpe_metadata, make_tokenizer

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def serve_template(
    folder: Path, source: str = TURNS, *, allow_request_templates: bool = True
) -> ServedModel:
    """A model that always says `Hi`; it has started what runs templates."""
    tokenizer = make_tokenizer(folder, bpe_metadata())
    executor = ScriptedExecutor(script=b"Hi", num_blocks=2048, vocab_size=tokenizer.vocab_size)
    chat = ChatModel(
        ChatTemplate(source, tokenizer),
        tokenizer,
        request_templates=TemplateWorkers(niceness=10, cpu_seconds=0.5)
        if allow_request_templates
        else None,
        max_model_len=4096,
    )
    chat.start()
    served = serve_fake(executor, max_model_len=4096)
    return replace(served, tokenizer=tokenizer, chat=chat, grammars=GrammarCompiler(tokenizer))
