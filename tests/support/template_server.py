"""A served model with a real chat template, on a scripted one."""

from __future__ import annotations

from pathlib import Path

from caudal.chat.preparer import ChatPreparer
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.template_workers import TemplateWorkers
from caudal.service.model_service import ModelService
from support.fake_model import ScriptedExecutor, changed, serve_fake
from support.vocabularies import bpe_metadata, make_tokenizer

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def serve_template(
    folder: Path, source: str = TURNS, *, allow_request_templates: bool = True
) -> ModelService:
    """A model that always says `Hi`; it has started what runs templates."""
    tokenizer = make_tokenizer(folder, bpe_metadata())
    executor = ScriptedExecutor(script=b"Hi", num_blocks=2048, vocab_size=tokenizer.vocab_size)
    chat = ChatPreparer(
        ChatTemplate(source, tokenizer),
        tokenizer,
        request_templates=TemplateWorkers(niceness=10, cpu_seconds=0.5)
        if allow_request_templates
        else None,
        max_model_len=4096,
    )
    chat.start()
    served = serve_fake(executor, tokenizer=tokenizer, max_model_len=4096)
    return changed(served, chat=chat)
