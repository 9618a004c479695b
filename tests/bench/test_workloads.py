from __future__ import annotations

import asyncio
import json
import statistics
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import msgspec
import pytest

from caudal.bench.serving import json_answers
from caudal.bench.serving.arrivals import Arrivals
from caudal.bench.serving.conversation import Conversation
from caudal.bench.serving.lengths import Lengths
from caudal.bench.serving.measuring import measure
from caudal.bench.serving.report import Report
from caudal.bench.serving.settings import LoadSettings, Wording, WorkloadName
from caudal.bench.serving.streams import Stream
from caudal.bench.serving.workloads import conversations
from caudal.errors import ParameterError
from support.fake_model import END, ScriptedExecutor, serve_fake
from support.running_server import running_server
from support.scripted_peer import scripted_peer

WORKLOADS: tuple[WorkloadName, ...] = (
    *("random", "shared-prefix", "multi-turn", "agent", "json", "repeat"),
)


def settled(workload: WorkloadName, **changes: Any) -> LoadSettings:
    """A load with nothing left to find out."""
    settings = LoadSettings.of_workload(workload)
    found = {"api": settings.api or "chat", "prompts": "text", "wording": Wording(), "seed": 1}
    return msgspec.structs.replace(settings, **found | changes)


def first(count: int, settings: LoadSettings, stream: str = "measured") -> list[Conversation]:
    return list(islice(conversations(settings, stream), count))


def run(url: str, settings: LoadSettings) -> Report:
    return asyncio.run(measure(url, None, settings))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_decides_what_is_asked(workload: WorkloadName):
    def asked(**changes: Any) -> list[tuple[Any, Any, int]]:
        return [
            (turn.messages, turn.calls, turn.max_tokens)
            for each in first(3, settled(workload, **changes))
            for turn in each.turns
        ]

    assert asked() == asked() != asked(seed=2)
    settings = settled(workload)
    ahead = [each.turns[0].messages[-1] for each in first(3, settings, "warm-up")]
    assert not any(each.turns[0].messages[-1] in ahead for each in first(3, settings))


def test_prefixes_take_turns_and_everything_else_differs():
    settings = settled(
        "shared-prefix", api="completions", prompts="ids", vocab_size=99999, prefixes=2,
        prefix_tokens=10, prompt_tokens="6",
    )  # fmt: skip
    prompts = [list(each.turns[0].prompt or ()) for each in first(5, settings)]
    assert [len(prompt) for prompt in prompts] == [16] * 5
    assert prompts[0][:10] == prompts[2][:10] == prompts[4][:10]
    assert prompts[1][:10] == prompts[3][:10] != prompts[0][:10]
    assert len({tuple(prompt[10:]) for prompt in prompts}) == 5


def test_what_repeats_itself_is_gone_on_with():
    for api in ("chat", "completions"):
        for each in first(6, settled("repeat", api=api)):
            [turn] = each.turns
            prompt = turn.prompt or turn.messages[0]["content"]
            assert (turn.prompt is None) == (api == "chat")
            end = prompt.rstrip().splitlines()[-1]
            assert turn.max_tokens == 128
            assert prompt.count(end.strip('> "')) == 2  # it stood there before


def test_text_has_as_many_words_as_make_the_tokens():
    assert Wording(1.5, 20).words(320) == 200
    assert Wording(1.5, 20).words(300, framed=False) == 200
    assert Wording(1.5, 20).words(5) == 1
    [each] = first(1, settled("random", prompt_tokens="50"))
    assert len(each.turns[0].messages[0]["content"].split()) == 50


@pytest.mark.parametrize(
    ("written", "mean"),
    [("40", 40), ("uniform:10:70", 40), ("normal:40:10", 40), ("lognormal:40:0.5", 45.3)],
)
def test_lengths(written: str, mean: float):
    lengths, random = Lengths.parse("prompt_tokens", written), Random(1)
    drawn = [lengths.draw(random) for _ in range(4000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.05)
    assert min(drawn) >= 1
    assert (len(set(drawn)) == 1) == (written == "40")


@pytest.mark.parametrize("burstiness", [0.0, 1.0, 4.0])
def test_gaps_between_arrivals(burstiness: float):
    times = list(islice(Arrivals(rate=10, burstiness=burstiness).times(Random(3)), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.pvariance(gaps) == pytest.approx(burstiness * 0.01, rel=0.1, abs=1e-9)


def test_a_chats_history_has_what_was_answered():
    script = (
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"He"}}]}\n\n'
        b'data: {"choices":[{"delta":{"content":"llo"},"finish_reason":"length"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":10}}}\n\n'
    )
    settings = settled(
        "multi-turn", requests=2, turns=3, output_tokens="2", concurrency=1, prefixes=1,
        prefix_tokens=20,
    )  # fmt: skip
    with scripted_peer(script) as (peer, url):
        [phase] = run(url, settings).phases
    assert phase.summary.failed == 0
    assert phase.summary.hit_rate == 0.25
    assert [(a.conversation, a.turn) for a in phase.answers] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1), (1, 2)),
    ]
    assert all(len(answer.gaps) == 1 for answer in phase.answers)  # the role is no token
    third = peer.bodies[2]["messages"]
    assert [message["role"] for message in third] == [
        *("system", "user", "assistant", "user", "assistant", "user")
    ]
    assert third[2]["content"] == third[4]["content"] == "Hello"
    assert third[:5] == [*peer.bodies[1]["messages"], third[4]]
    assert peer.bodies[3]["messages"][0] == third[0]  # all chats have the one system prompt


CALLS = (
    b'data: {"choices":[{"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"own",'
    b'"type":"function","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"two",'
    b'"type":"function","function":{"name":"g","arguments":""}}]}}]}\n\n'
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},'
    b'"finish_reason":"tool_calls"}]}\n\ndata: {"choices":[],"usage":{"completion_tokens":9}}\n\n'
)

WORDS = (
    b'data: {"choices":[{"delta":{"content":"I will."},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":9}}\n\n'
)


@pytest.mark.parametrize(
    ("script", "ids"), [(CALLS, ["own", "two"]), (WORDS, ["call_0_1"])], ids=["calls", "words"]
)
def test_an_agents_history_has_calls_and_their_results(script: bytes, ids: list[str]):
    settings = settled(
        "agent", requests=1, turns=2, output_tokens="9", concurrency=1, prefix_tokens=2000
    )
    with scripted_peer(script) as (peer, url):
        assert run(url, settings).failed == 0
    begin, later = (body["messages"] for body in peer.bodies)
    assert [message["role"] for message in begin] == ["system", "user"]
    assert later[:2] == begin
    answer, *results = later[2:]
    assert [call["id"] for call in answer["tool_calls"]] == ids
    assert [(each["role"], each["tool_call_id"]) for each in results] == [
        ("tool", name) for name in ids
    ]
    assert len(peer.bodies[0]["tools"]) == 16
    assert peer.bodies[0]["tools"] == peer.bodies[1]["tools"]
    names = {tool["function"]["name"] for tool in peer.bodies[0]["tools"]}
    assert len(names) == 16
    size = len(json.dumps([begin[0], peer.bodies[0]["tools"]]))
    assert 2000 * 3.5 < size < 2000 * 6  # bytes of a token


def test_answers_that_a_schema_does_not_allow_are_wrong():
    good = {"name": "A", "age": 3, "city": "B", "languages": ["C"]}
    [turn] = first(1, settled("json"))[0].turns
    schema = turn.fields["response_format"]["json_schema"]["schema"]
    assert turn.check is not None
    for changes in ({}, {"age": -1}, {"age": "3"}, {"more": 1}, {"languages": []}, {"name": ""}):
        answer = good | changes
        said = turn.check(Stream(text=json.dumps(answer), finish_reason="stop"))
        allowed = jsonschema.Draft202012Validator(schema).is_valid(answer)
        assert (said is None) == allowed == (changes == {})
    assert turn.check(Stream(text="{", finish_reason="stop")) is not None
    cut = turn.check(Stream(text=json.dumps(good), finish_reason="length"))
    assert cut is not None
    assert "cut off" in cut
    for name, kind in json_answers._TYPES:
        form = json_answers.response_format(name, kind)
        jsonschema.Draft202012Validator.check_schema(form["json_schema"]["schema"])


def test_a_server_that_holds_answers_to_schemas_gives_right_ones():
    executor = ScriptedExecutor(script=b"x" * 400, vocab_size=END + 1)
    with running_server(serve_fake(executor, max_model_len=4000)) as server:
        settings = settled(
            "json", requests=2, prompt_tokens="20", output_tokens="1500", concurrency=2
        )
        [phase] = run(server.url, settings).phases
    assert phase.summary.requests == 2
    assert phase.summary.errors == {}


SHARE_GPT = [
    {
        "conversations": [
            {"from": "gpt", "value": "Welcome."},
            {"from": "human", "value": "One?"},
            {"from": "gpt", "value": "a b c d e f"},
            {"from": "human", "value": "Two?"},
            {"from": "gpt", "value": "a b c"},
        ]
    },
    {"conversations": [{"from": "gpt", "value": "Nobody asked."}]},
]


def test_share_gpt(tmp_path: Path):
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(SHARE_GPT))
    settings = settled("dataset", dataset=str(path))
    one, again = first(2, settings)
    assert one == again  # the only one that a user begins, and then again
    assert [turn.messages[0]["content"] for turn in one.turns] == ["One?", "Two?"]
    assert [turn.max_tokens for turn in one.turns] == [8, 4]
    [short] = first(1, settled("dataset", dataset=str(path), turns=1, output_tokens="5"))
    assert [turn.max_tokens for turn in short.turns] == [5]


def test_lines_of_json(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    lines = [{"prompt": "P", "max_tokens": 7}, {"messages": messages}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    asked = {
        json.dumps(turn.messages): turn.max_tokens
        for each in first(2, settled("dataset", dataset=str(path)))
        for turn in each.turns
    }
    user = json.dumps([{"role": "user", "content": "P"}])
    assert asked == {user: 7, json.dumps(messages): 256}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{", "line 1 is not JSON"),
        pytest.param("[" * 100_000, "is not JSON: maximum recursion", id="deep"),
        pytest.param('{"prompt":' * 100_000, "line 1 is not JSON", id="deep line"),
        ("[1]", "entry 1 is not an object"),
        ('{"text": 1}', "line 1 must have either prompt or messages"),
        ('{"prompt": "a"}\n{"messages": []}', "line 2: messages must be"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be positive"),
        ('{"prompt": 3}', "prompt must be text"),
        ('[{"conversations": [1]}]', "must have from and value"),
        ("[]", "has no conversation"),
    ],
)
def test_files_that_are_no_data_sets(written: str, words: str, tmp_path: Path):
    path = tmp_path / "set"
    path.write_text(written)
    with pytest.raises(ParameterError, match=words.replace("max_tokens must be positive", "posit")):
        first(1, settled("dataset", dataset=str(path)))
    with pytest.raises(ParameterError):
        first(1, settled("dataset", dataset=str(tmp_path / "missing")))
