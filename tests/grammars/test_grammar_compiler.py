"""Grammars compiled by llguidance for small vocabularies, and everything that is refused."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from caudal.engine.grammar import MatcherError
from caudal.engine.request import FinishReason
from caudal.errors import ParameterError
from caudal.formats.tokenizer import Tokenizer
from caudal.grammars import compiler as grammar_compiler
from caudal.grammars.compiler import CACHED_GRAMMARS, GrammarCompiler, LLMatcher
from caudal.grammars.source import grammar_source
from caudal.structured_outputs import StructuredOutputsParams, json_rule, lark_literal
from support.engine_harness import Harness
from support.fake_executor import allows
from support.forced_tokens import check_forced_tokens
from support.vocabularies import bpe_metadata, make_tokenizer, spm_metadata

# `{"`, `":`, ` "`: tokens that cross what a JSON parser would call tokens.
MERGES = [
    "n a", "m e", "na me", "v a", "l u", "va lu", "valu e", '{ "', '" :', 'Ġ "', '" ,', "t r",
    "u e", "tr ue", "a b", "ab c", "1 2", "12 3", '" }', "] }", 'Ġ [',
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("bpe"), bpe_metadata(MERGES))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def wanted(**fields: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def write(
    matcher: LLMatcher, tokenizer: Tokenizer, *, seed: int = 0, jump: bool = True, limit: int = 400
) -> str | None:
    """A random text of a grammar, None if it is longer than the limit."""
    choose = random.Random(seed)
    tokens: list[int] = []
    while not matcher.complete:
        if len(tokens) > limit:
            return None
        if jump and (forced := list(matcher.forced())):
            matcher.accept(forced)
            tokens += forced
            continue
        mask = matcher.allowed()
        token = choose.choice([t for t in range(tokenizer.vocab_size) if allows(mask, t)])
        if token in tokenizer.eos_ids:
            break
        matcher.accept([token])
        tokens.append(token)
    return tokenizer.decode(tokens)


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_patterns_choices_and_grammars(
    compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int, jump: bool
) -> None:
    def text(**fields: Any) -> str:
        matcher = compiler.compile_now(wanted(**fields)).matcher()
        result = write(matcher, tokenizer, seed=seed, jump=jump)
        assert result is not None
        return result

    assert re.fullmatch(r"abc-[0-9]{3,5}x?", text(regex=r"abc-[0-9]{3,5}x?"))
    assert text(choice=["name", "value", 'a "b" \\n', "namee"]) in {
        "name",
        "value",
        'a "b" \\n',
        "namee",
    }
    assert re.fullmatch(r"(ab)+ (yes|no)", text(grammar='start: "ab"~1..9 " " ("yes" | "no")'))
    gbnf = 'root ::= word " " word\nword ::= [a-c]{2,4}'
    assert re.fullmatch(r"[a-c]{2,4} [a-c]{2,4}", text(grammar=gbnf))
    schema = {"type": "object", "properties": {"name": {"enum": ["abc"]}}, "required": ["name"]}
    called = text(grammar=f'start: "call " args "!"\nargs: {json_rule(closed(schema))}')
    assert called == 'call {"name": "abc"}!'
    assert text(json=closed(schema)) == '{"name": "abc"}'


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False}


def test_special_tokens_mark_where_free_text_ends(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    mark = lark_literal("<|im_start|>", tokenizer.special_tokens)
    grammar = f'start: TEXT {mark} "abc"\nTEXT: /(.|\\n)*/'
    matcher = compiler.compile_now(wanted(grammar=grammar)).matcher()
    start = tokenizer.token_id("<|im_start|>")
    assert start is not None
    matcher.accept(tokenizer.encode("any <|im_start|> text"))
    mask = matcher.allowed()
    assert allows(mask, start)
    assert not any(allows(mask, end) for end in tokenizer.eos_ids)
    matcher.accept([start])
    assert tokenizer.decode(matcher.forced()) == "abc"


def test_forced_text_is_cut_as_the_tokenizer_cuts_it(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    check_forced_tokens(compiler, tokenizer)


def test_sentencepiece_puts_no_space_before_forced_text(tmp_path: Path) -> None:
    pieces = {"▁": -1.0, "▁name": -2.0, "name": -3.0, "n": -9.0, "a": -9.0, "m": -9.0, "e": -9.0}
    tokenizer = make_tokenizer(tmp_path, spm_metadata(pieces))
    compiler = GrammarCompiler(tokenizer)
    matcher = compiler.compile_now(wanted(regex="[xy]name name")).matcher()
    matcher.accept(tokenizer.encode_continuation("x"))
    forced = list(matcher.forced())
    assert tokenizer.decode(forced) == "name name"
    assert forced == tokenizer.encode_continuation("name name")


def test_json_goes_on_with_no_white_space_when_it_is_complete(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile_now(wanted(json_object=True)).matcher()
    matcher.accept(tokenizer.encode('{"name": [1, {"value": null}]'))
    assert not matcher.complete
    matcher.accept(tokenizer.encode("}"))
    assert matcher.complete


def test_an_end_is_allowed_only_where_the_grammar_is_matched(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile_now(wanted(regex="ab*")).matcher()
    assert not any(allows(matcher.allowed(), end) for end in tokenizer.eos_ids)
    matcher.accept(tokenizer.encode("a"))
    assert all(allows(matcher.allowed(), end) for end in tokenizer.eos_ids)
    assert not matcher.complete


def test_forks_and_matchers_of_one_grammar_are_apart(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile_now(wanted(choice=["name", "value"]))
    one = grammar.matcher()
    one.accept(tokenizer.encode("v"))
    other = one.fork()
    other.accept(other.forced())
    assert other.complete
    assert not one.complete
    assert allows(grammar.matcher().allowed(), tokenizer.encode("n")[0])


def test_a_token_that_is_not_allowed_breaks_the_matcher(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = compiler.compile_now(wanted(regex="ab*")).matcher()
    with pytest.raises(MatcherError):
        matcher.accept(tokenizer.encode("x"))
    with pytest.raises(MatcherError):
        matcher.allowed()
    assert not matcher.complete


MANY_KEYS = {f"key{number}": {"type": "string"} for number in range(3000)}
ENDLESS = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"regex": "foo**"}, "'foo**' can't"),
        ({"regex": "\\!"}, "\\!"),
        ({"regex": "a[b"}, "unclosed character class"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": "(a)\\1"}, "backreferences"),
        ({"regex": "a" * 10_000}, "may have 8192 characters"),
        ({"grammar": "start: T\nT: /.*a.{30}/ & /.*b.{31}/ & ~/.*c.{32}/"}, "too complex"),
        ({"json": "{"}, "line 1 column 2"),
        ({"json": "[]"}, "must be a JSON object"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"json": {"type": "object", "not": {}}}, "not"),
        ({"json": {"type": "object", "not": {}, "x-guidance": {"lenient": True}}}, "not"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"if": {"type": "string"}, "then": {"maxLength": 3}}}, "if"),
        ({"json": {"type": "string", "pattern": "foo**"}}, "foo**"),
        ({"json": {"type": "string", "pattern": "\\!"}}, "\\!"),
        ({"json": {"items": {"patternProperties": {"a**": {}}}}}, "a**"),
        ({"json": {"$ref": "#/$defs/a"}}, "$defs/a"),
        ({"json": {"$ref": "https://example.org/schema.json"}}, "example.org"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"json": ENDLESS}, "matches no text"),
        ({"json": {"type": "object", "properties": MANY_KEYS}}, "too complex"),
        ({"json": {"enum": [[]] * 10_001}}, "more than 10000"),
        ({"json": '{"a":' * 5000 + "1" + "}" * 5000}, "recursion"),
        ({"grammar": "hello"}, "Expected token"),
        ({"grammar": "start: missing"}, '"missing"'),
        ({"grammar": 'start: "a" <|nothing|>'}, "<|nothing|>"),
        ({"grammar": 'start: "a"{1000000}'}, "too complex"),
        ({"grammar": 'start: %json {"not": {}}'}, "not"),
        ({"grammar": 'start: %json {"type": "string", "pattern": "a**"}'}, "a**"),
        ({"grammar": 'start: "' + "a" * 40_000 + '"'}, "beside schemas"),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "nested"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": "root ::= [a"}, "line 1"),
        ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "recursion"),
    ],
)
def test_what_can_not_be_enforced_is_refused_by_name(
    compiler: GrammarCompiler, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(ParameterError) as error:
        compiler.compile_now(wanted(**fields))
    assert error.value.param == "structured_outputs"
    assert says in str(error.value)
    assert len(str(error.value)) < 600
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        # Within the limits, and deep enough to end the process on a stack of the usual size.
        {
            "$defs": {
                **{f"n{i}": {"items": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(4900)},
                "n4900": {},
            },
            "$ref": "#/$defs/n0",
        },
        {
            "$defs": {
                **{f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}, {}]} for i in range(2400)},
                "n2400": {},
            },
            "$ref": "#/$defs/n0",
        },
    ],
)
def test_long_chains_of_references_leave_the_process_alive(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    """Compiled, used and dropped in a process of its own: otherwise this one would go down."""
    program = """
import sys
from pathlib import Path
from caudal.grammars.compiler import GrammarCompiler
from caudal.structured_outputs import StructuredOutputsParams
from support.vocabularies import bpe_metadata, make_tokenizer

compiler = GrammarCompiler(make_tokenizer(Path(sys.argv[1]), bpe_metadata()))
grammar = compiler.compile_now(StructuredOutputsParams(json=sys.stdin.read()))
matcher = grammar.matcher().fork()
matcher.forced() or matcher.allowed()
del grammar, matcher, compiler
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        input=json.dumps(schema),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert done.stdout == "alive\n", (done.returncode, done.stderr)


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
        {"regex": "((a+){1,100}){1,100}"},
        {"json": {"type": "string", "pattern": "^(((a{1,100}){1,100}){1,100}){1,100}$"}},
        {"grammar": "start: T\nT: /(((a{1,100}){1,100}){1,100}){1,100}/"},
    ],
)
def test_a_grammar_that_explodes_later_on_is_refused_at_once(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    merges = ["a a", "aa aa", "aaaa aaaa"]
    compiler = GrammarCompiler(make_tokenizer(tmp_path, bpe_metadata(merges)))
    with pytest.raises(ParameterError, match="too complex"):
        compiler.compile_now(wanted(**fields))


def few_states(states: int) -> Any:
    return grammar_compiler.llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000, step_lexer_fuel=300_000, max_lexer_states=states
    )


def test_what_others_made_of_a_grammar_uses_it_up_for_nobody(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matchers of one grammar share states, of which there is a limited number."""
    monkeypatch.setattr(grammar_compiler, "_LIMITS", few_states(1500))
    schema = closed(
        {"type": "object", "properties": {"name": {"type": "string", "maxLength": 400}}}
    )
    compiler = GrammarCompiler(tokenizer)
    grammar = compiler.compile_now(wanted(json=schema))
    early = grammar.matcher()
    early.accept(tokenizer.encode('{"name": "an ear'))
    for seed in range(20):
        choose = random.Random(seed)
        word = "".join(choose.choice("nameabc1 \\u") for _ in range(150)).replace("\\", "\\\\")
        text = json.dumps({"name": word})
        matcher = grammar.matcher()
        for token in tokenizer.encode_continuation(text):
            assert allows(matcher.allowed(), token)
            matcher.accept([token])
        assert matcher.complete
    assert grammar._generation > 0
    twin = early.fork()
    for matcher in (early, twin):  # one that has begun long ago goes on where it was
        for token in tokenizer.encode_continuation("ly one"):
            assert allows(matcher.allowed(), token)
            matcher.accept([token])
        matcher.accept(tokenizer.encode_continuation('"}'))
        assert matcher.complete


def test_a_grammar_that_one_answer_uses_up_at_once_fails_it(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(tokenizer)
    grammar = compiler.compile_now(wanted(regex="[a-z]{1,4000}"))
    monkeypatch.setattr(grammar_compiler, "_LIMITS", few_states(60))
    grammar._start = compiler._start_anew(grammar_source(wanted(regex="[a-z]{1,4000}")))
    failing = grammar.matcher()
    with pytest.raises(MatcherError, match="too complex"):
        for _ in range(200):
            failing.allowed()
            failing.accept(tokenizer.encode("a"))


def test_a_model_without_an_end_can_not_be_held_to_a_form(tokenizer: Tokenizer) -> None:
    class Endless:
        eos_ids = frozenset[int]()
        vocab_size = 50

    compiler = GrammarCompiler(Endless())  # type: ignore[arg-type]
    compiler.prepare()
    with pytest.raises(ParameterError, match="no end-of-sequence"):
        compiler.compile_now(wanted(regex="a"))


def test_a_prepared_vocabulary_is_not_indexed_again(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(tokenizer)
    compiler.prepare()
    monkeypatch.setattr(Tokenizer, "token_bytes", None)
    assert compiler.compile_now(wanted(regex="a")).matcher().allowed()


def test_grammars_are_kept_by_content_and_the_oldest_go(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer)
    first = compiler.compile_now(wanted(regex="a0"))
    assert compiler.compile_now(wanted(regex="a0")) is first
    for number in range(1, CACHED_GRAMMARS):
        compiler.compile_now(wanted(regex=f"a{number}"))
    assert compiler.compile_now(wanted(regex="a0")) is first  # the latest now
    compiler.compile_now(wanted(regex="one more"))
    assert compiler.compile_now(wanted(regex="a0")) is first
    assert len(compiler._grammars) == CACHED_GRAMMARS


def test_compiling_is_done_beside_the_event_loop(compiler: GrammarCompiler) -> None:
    async def run() -> None:
        threads = []

        class Noting(GrammarCompiler):
            def _compile(self, wanted: StructuredOutputsParams) -> Any:
                threads.append(threading.current_thread())
                return super()._compile(wanted)

        noting = Noting(compiler._tokenizer)
        grammars = await asyncio.gather(*(noting.compile(wanted(regex="a+")) for _ in range(5)))
        assert len(set(map(id, grammars))) == 1
        assert threading.current_thread() not in threads
        with pytest.raises(ParameterError):
            await noting.compile(wanted(regex="("))

    asyncio.run(run())


names = st.sampled_from(["name", "value", "a", 'quo"te', "día", "key with spaces"])


def objects(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def make(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
        return closed(
            {
                "type": "object",
                "properties": properties,
                "required": [name for name in properties if name in required],
            }
        )

    return st.builds(make, st.dictionaries(names, schemas, max_size=4), st.sets(names))


def arrays(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, low, more: {
            "type": "array",
            "items": items,
            "minItems": low,
            "maxItems": low + more,
        },
        schemas,
        st.integers(0, 2),
        st.integers(0, 2),
    )


leaves = st.one_of(
    st.builds(lambda length: {"type": "string", "maxLength": length}, st.integers(0, 8)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-1000, 1000),
        st.integers(0, 1000),
    ),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "string", "format": "date"}),
    st.just({"type": "string", "pattern": "^[a-f]{1,4}(-[0-9]+)?$", "maxLength": 8}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(names, st.integers(-9, 9), st.none(), st.booleans()), min_size=1),
    ),
    st.builds(lambda value: {"const": value}, st.dictionaries(names, st.integers(-9, 9))),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        arrays(inner),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=schemas, jump_ahead=st.booleans(), budget=st.integers(8, 64), n=st.integers(1, 3))
def test_every_answer_conforms_to_its_schema(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    schema: dict[str, Any],
    jump_ahead: bool,
    budget: int,
    n: int,
) -> None:
    """Through the engine, with tokens drawn at random by the fake executor."""
    harness = Harness(
        num_blocks=256,
        block_size=4,
        vocab_size=tokenizer.vocab_size,
        max_model_len=400,
        max_num_seqs=6,
        max_num_batched_tokens=budget,
        jump_ahead=jump_ahead,
    )
    harness.engine._eos_token_ids = tokenizer.eos_ids  # type: ignore[misc]
    grammar = compiler.compile_now(wanted(json=schema))
    request = harness.submit([1, 2, 3], grammar=grammar, n=n, max_tokens=390)
    harness.run()
    for index in range(n):
        text = tokenizer.decode(harness.output(request, index))
        if harness.reason(request, index) is FinishReason.LENGTH:
            continue
        assert harness.reason(request, index) is FinishReason.STOP
        jsonschema.validate(json.loads(text), schema)
    assume(any(harness.reason(request, index) is FinishReason.STOP for index in range(n)))


def test_answers_are_the_same_in_a_crowd(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = closed(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 9},
                "value": {"type": "boolean"},
            },
            "required": ["name", "value"],
        }
    )
    grammar = compiler.compile_now(wanted(json=schema))

    def answers(crowd: Sequence[int], **config: int) -> list[list[int]]:
        harness = Harness(block_size=4, vocab_size=tokenizer.vocab_size, **config)
        harness.engine._eos_token_ids = tokenizer.eos_ids  # type: ignore[misc]
        requests = [
            harness.submit([seed, 2, 3], grammar=grammar, max_tokens=80, seed=seed)
            for seed in crowd
        ]
        harness.run()
        assert all(harness.reason(request) is FinishReason.STOP for request in requests)
        return [harness.output(request) for request in requests]

    alone = [answers([seed], num_blocks=64)[0] for seed in range(6)]
    crowded = answers(
        range(6), num_blocks=24, max_num_seqs=6, max_num_batched_tokens=8, max_model_len=90
    )
    assert crowded == alone
