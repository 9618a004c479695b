"""The grammars of a model's requests, made of the plain data that these carry."""

from __future__ import annotations

from caudal.engine.grammar import Grammar
from caudal.engine.request import Generate
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars.compiler import GrammarCompiler
from caudal.grammars.thinking import limit_thinking
from caudal.grammars.token_rules import with_token_rules


class RequestGrammars:
    """What an engine has grammars made by (see `caudal.engine.grammar.Grammars`).

    Args:
        tokenizer: The model's.
        forms: Compiles `structured_outputs`.
    """

    def __init__(self, tokenizer: Tokenizer, forms: GrammarCompiler) -> None:
        self._tokenizer = tokenizer
        self._forms = forms

    async def compile(self, work: Generate) -> Grammar:
        """The grammar of a request that `is_constrained`.

        Raises:
            ParameterError: See `GrammarCompiler.compile_now` and `with_token_rules`.
        """
        form = work.params.structured_outputs
        return self._complete(work, None if form is None else await self._forms.compile(form))

    def compile_now(self, work: Generate) -> Grammar:
        """The same for callers that may wait."""
        form = work.params.structured_outputs
        return self._complete(work, None if form is None else self._forms.compile_now(form))

    def _complete(self, work: Generate, form: Grammar | None) -> Grammar:
        grammar = with_token_rules(work.params, self._tokenizer, form)
        if work.thinking is not None:
            grammar = limit_thinking(work.thinking, self._tokenizer, grammar)
        if grammar is None:
            raise ValueError("this request takes no grammar")
        return grammar
