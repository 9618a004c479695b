"""Aliases and routes: how they are written, where they lead, and what a cascade answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caudal.backends.executor import TokenLogprob
from caudal.chat.conversation import Conversation, Message
from caudal.errors import (
    CaudalError,
    ConfigurationError,
    ModelLoadError,
    ParameterError,
    UnknownModelError,
    UnsupportedTaskError,
    WorkerEndedError,
)
from caudal.fleet.catalogue import GivenModels
from caudal.fleet.fleet import Fleet
from caudal.fleet.options import FleetOptions
from caudal.models.program import Task
from caudal.routes.configuration import read_routes
from caudal.routes.routed_models import RoutedModels
from caudal.routes.rules import Routes
from caudal.sampling_params import RecommendedSampling, SamplingParams
from caudal.server import waiting_for_models
from caudal.server.auth import Access
from caudal.service.answers import CascadeUsage
from caudal.service.asking import Nobody
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.model_service import ModelService
from caudal.service.models import Found, Lease, Models, ModelStatus
from caudal.service.registry import ModelRegistry
from caudal.service.service import Service
from caudal.service.work import ChatWork, CompletionWork
from caudal.tenants.keys import GivenKeys, Key, digest_of
from caudal.tenants.ring import KeyRing
from support.fake_launcher import FakeLauncher, FakeModel, offers
from support.fake_model import ScriptedExecutor, changed, serve_fake
from support.record_list import RecordList
from support.running_server import running_models

FILE = """
# Names that lead to models.
[aliases]
"gpt-4o" = "large"
again = "gpt-4o"

[routes.auto]
models = [
    { model = "small", max_prompt_tokens = 100 },
    { model = "gpt-4o", headers = { X-Tier = ["gold", "silver"] } },
    { model = "other" },
]

[routes.careful]
cascade = ["small", "large"]
min_logprob = -1
judged_tokens = 8
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "routes.toml"
    file.write_text(text)
    return file


@pytest.fixture
def routes(tmp_path: Path) -> Routes:
    return read_routes(written(tmp_path, FILE), ["mine=careful"])


class Kept(Lease):
    def __init__(self, models: FakeModels, name: str) -> None:
        self._models, self._name = models, name
        models.kept.append(name)

    def again(self) -> Lease:
        return Kept(self._models, self._name)

    def release(self) -> None:
        if self._name:
            self._models.kept.remove(self._name)
            self._name = ""


class FakeModels(Models):
    """Models that are there, or fail as a test says; and which of them are kept loaded."""

    def __init__(self, services: Mapping[str, Service | CaudalError]) -> None:
        self.services_by_name = services
        self.kept: list[str] = []

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        assert self.kept == [], "two models at a time may not fit"
        service = self.services_by_name.get(name or "small")
        if service is None:
            raise UnknownModelError(name or "", list(self.services_by_name))
        if isinstance(service, CaudalError):
            raise service
        if task is not None:
            service.check_task(task)
        return Found(name or "small", service, Kept(self, name or "small"))

    async def status(self, name: str) -> ModelStatus:
        if name not in self.services_by_name:
            raise UnknownModelError(name, list(self.services_by_name))
        return ModelStatus(names=(name,), state="loaded", size=7, tasks=frozenset(("generate",)))

    async def statuses(self) -> Sequence[ModelStatus]:
        return [await self.status(name) for name in self.services_by_name]


@dataclass
class Asker(Nobody):
    headers: Mapping[str, str] | None = None
    tokens: int = 0

    def header(self, name: str) -> str | None:
        return (self.headers or {}).get(name)

    @property
    def prompt_tokens(self) -> int:
        return self.tokens

    async def sampling_params(self, model: Service) -> SamplingParams | None:
        return SamplingParams(max_tokens=32, **model.facts.loaded.sampling.values())


@dataclass
class Sure(ScriptedExecutor):
    """How sure it is of each token that it says."""

    logprob: float = -0.1

    def _logprob(self, history: Sequence[int], target: int, top: int) -> TokenLogprob:
        return replace(super()._logprob(history, target, top), logprob=self.logprob)


def model(name: str, says: str, logprob: float = -0.1, **more: Any) -> ModelService:
    return serve_fake(Sure(script=says.encode(), logprob=logprob, **more), (name,))


def test_mistakes_in_a_file_are_told_with_their_line(tmp_path: Path) -> None:
    for text, message in (
        ("[aliases]\na =\n", r"routes\.toml, line 2: Invalid value"),
        ("[aliases]\na = 'b'\na = 'c'\n", "line 3: Cannot overwrite a value"),
        ("[aliases]\na = 1\n", "line 2: aliases.a: input should be a valid string"),
        ("\n[aliasses]\na = 'b'\n", "line 2: there is no key aliasses; did you mean aliases"),
        ("# x\n[routes.r]\n\nmodels = []\n", "line 4: routes.r.models: list should have at least"),
        (
            "[routes.r]\nmodels = [\n  {model = 'a'},\n  {model = 'b', max_promt_tokens = 3},\n]\n",
            r"line 2: there is no key routes\.r\.models\[1\]\.max_promt_tokens; did you mean max_p",
        ),
        (
            "[[routes.r.models]]\nmax_prompt_tokens = 3\n",
            r"line 1: routes\.r\.models\[0\]\.model is",
        ),
        ("[routes.r]\ncascade = ['a', 'b']\n", "line 1: the route 'r' needs a min_logprob"),
        ("[routes.r]\nmin_logprob = -1\n", "line 1: the route 'r' needs either models or a casc"),
        ("[routes.r]\nmodels = [{model='a'}]\nmin_logprob=-1", "line 3: min_logprob is for"),
        ("[routes.r]\ncascade = ['a', 'b']\nmin_logprob = 1", "line 3: .*min_logprob: input shou"),
        ("[aliases]\na = 'b'\nb = 'r'\n[routes.r]\nmodels=[{model='a'}]", "line 2: 'a' leads in a"),
        ("[routes.a]\nmodels=[{model='b'}]\n[aliases]\na='b'", "line 1: there is .* 'a' already"),
        ("[aliases]\nlarge = 'small'\n", "line 2: there is a model 'large' already"),
        ("[aliases]\nx = 'lost'\n", "line 2: 'x' leads to 'lost', which does not exist"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            routes = read_routes(written(tmp_path, text))
            routes.check_names(("small", "large").__contains__)
    with pytest.raises(ConfigurationError, match="--alias: must be NAME=MODEL, not 'x'"):
        read_routes(None, ["x"])
    with pytest.raises(ConfigurationError, match=r"routes\.toml, line 2: isn't UTF-8"):
        (tmp_path / "routes.toml").write_bytes(b"\n\xff")
        read_routes(tmp_path / "routes.toml")
    with pytest.raises(ConfigurationError, match=r"none\.toml: can't be read: No such file"):
        read_routes(tmp_path / "none.toml")


def test_a_route_leads_to_the_first_model_that_is_for_a_request_and_can_be_had(
    routes: Routes,
) -> None:
    services: dict[str, Service | CaudalError] = {
        name: model(name, name) for name in ("small", "large", "other")
    }

    async def led(name: str, **asks: Any) -> tuple[str, str | None]:
        models = FakeModels(services)
        routed = RoutedModels(models, routes).of_request(Asker(**asks))
        found = await routed.resolve(name, "generate")
        assert found.service.names[0] == (found.model or found.name)
        assert models.kept == [found.model or found.name]
        return found.name, found.model

    async def check() -> None:
        assert await led("large") == ("large", None)
        assert await led("again") == ("again", "large")  # as it would be under a name of its own
        assert await led("auto", tokens=100) == ("small", "small")
        gold, tin = {"x-tier": "gold"}, {"x-tier": "tin"}
        assert await led("auto", tokens=101, headers=gold) == ("gpt-4o", "large")
        assert await led("auto", tokens=101, headers=tin) == ("other", "other")
        small = services["small"]
        services["small"] = ModelLoadError("small", "is damaged")
        assert await led("auto", tokens=1) == ("other", "other")
        services["other"] = WorkerEndedError("other", "has crashed")
        with pytest.raises(ModelLoadError, match="small: is damaged"):
            await led("auto", tokens=1)
        assert isinstance(small, ModelService)
        services["small"] = small

        routed = RoutedModels(FakeModels(services), routes)
        await routed.check()
        shown = {status.names: status.leads_to for status in await routed.statuses()}
        assert shown == {
            ("small",): (),
            ("large", "gpt-4o", "again"): (),
            ("other",): (),
            ("auto",): ("small", "gpt-4o", "other"),
            ("careful",): ("small", "large"),
            ("mine",): ("small", "large"),
        }
        with pytest.raises(ParameterError, match="'mine' is a route; name one of small, large"):
            await routed.unload("mine")

    asyncio.run(check())


def test_a_route_without_a_model_for_a_request_says_so(tmp_path: Path) -> None:
    routes = read_routes(
        written(tmp_path, "[routes.r]\nmodels=[{model='a', headers={h='v'}, max_prompt_tokens=9}]")
    )
    with pytest.raises(ParameterError, match="'r' is for a prompt of about 5 tokens with h: 'w'"):
        asyncio.run(RoutedModels(FakeModels({}), routes, Asker({"h": "w"}, 5)).resolve("r"))


WORK = ChatWork(
    conversation=Conversation(messages=[Message(role="user", content="hi")]),
    params=SamplingParams(max_tokens=32),
)


@dataclass
class Said:
    text: str
    found: Found
    usage: Any
    tokens: list[Any]


async def said(models: Models, work: ChatWork = WORK, name: str = "careful") -> Said:
    """What a route answers."""
    found = await models.resolve(name, "generate")
    chat = await found.service.chat(work)
    answers = await chat.collect()
    await chat.aclose()
    found.lease.release()
    tokens = [token for answer in answers for token in answer.tokens]
    return Said("|".join(each.answer.content for each in answers), found, chat.usage, tokens)


def test_a_cascade_answers_with_the_small_model_where_that_is_sure(routes: Routes) -> None:
    large = model("large", "certainly", -3.0)
    loaded = replace(large.facts.loaded, sampling=RecommendedSampling(temperature=0.5))
    large = changed(large, facts=replace(large.facts, loaded=loaded))

    async def check() -> None:
        models = FakeModels({"small": model("small", "yes", -0.5), "large": large})
        routed = RoutedModels(models, routes, Asker())
        sure = await said(routed)
        assert (sure.text, sure.found.name, sure.found.model) == ("yes", "small", "small")
        assert not sure.usage.unused
        assert all(token.score is None and token.piece == b"" for token in sure.tokens)
        with pytest.raises(UnsupportedTaskError, match="'careful' can't make embeddings"):
            await routed.resolve("careful", "embed")
        with pytest.raises(ParameterError, match="prompt: token ids mean something else"):
            found = await routed.resolve("careful")
            work = CompletionWork(prompts=[[1, 2]], params=WORK.params)
            await found.service.complete(work)
        found.lease.release()

        # Not sure: the larger one answers, sampled as its maker recommends, and who was asked
        # before is told.
        models.services_by_name = {**models.services_by_name, "small": model("small", "uh", -2.0)}
        seen: list[SamplingParams] = []
        chat = large.chat

        async def noted(work: ChatWork, context: RequestContext = NO_CONTEXT) -> Any:
            seen.append(work.params)
            return await chat(work, context)

        large.chat = noted  # type: ignore[method-assign]
        unsure = await said(routed)
        assert (unsure.text, unsure.found.name) == ("certainly", "large")
        assert [(each.temperature, each.logprobs) for each in seen] == [(0.5, None)]
        [unused] = unsure.usage.unused
        assert (unused.model, unused.output_tokens, unused.mean_logprob) == ("small", 3, -2.0)
        assert unsure.usage.output_tokens == len("certainly") + 1

        # The larger one can't be had: better the answer that there is than none.
        models.services_by_name = {
            **models.services_by_name,
            "large": WorkerEndedError("large", "has crashed"),
        }
        alone = await said(routed)
        assert (alone.text, alone.found.name, alone.usage.unused) == ("uh", "small", [])
        assert models.kept == []

    asyncio.run(check())


def test_a_cascade_judges_long_answers_early_several_together_and_shows_scores_when_asked(
    routes: Routes,
) -> None:
    async def check() -> None:
        small = model("small", "a long answer, of many tokens", -0.5)
        models = FakeModels({"small": small, "large": model("large", "no")})
        routed = RoutedModels(models, routes)
        params = replace(WORK.params, n=2, logprobs=0)
        both = await said(routed, replace(WORK, params=params))
        assert both.text == "a long answer, of many tokens|a long answer, of many tokens"
        assert {token.score.logprob for token in both.tokens} == {-0.5}

        found = await routed.resolve("careful")
        texts = await found.service.complete(
            CompletionWork(prompts=["one", "two"], params=SamplingParams(max_tokens=32))
        )
        assert all(8 <= text.usage.output_tokens < 32 for text in texts)  # the rest isn't held
        for text in texts:
            joined = [delta.text async for deltas in text.deltas() for delta in deltas]
            assert "".join(joined) == "a long answer, of many tokens"
        found.lease.release()

        # It fails before it is judged: nobody has seen anything of it.
        batches: list[object] = []

        def after_three_batches(batch: object) -> None:
            batches.append(batch)
            if len(batches) > 3:
                raise RuntimeError("the executor failed")

        models.services_by_name = {
            **models.services_by_name,
            "small": model("small", "a long answer", fail=after_three_batches),
        }
        failed = await said(routed)
        assert (failed.text, failed.found.name, failed.usage.unused) == ("no", "large", [])
        assert isinstance(failed.usage, CascadeUsage)

        # Whoever asked goes away before it is judged: nothing of it goes on.
        slow = model("small", "a long answer", fail=lambda _: time.sleep(0.02))
        models.services_by_name = {**models.services_by_name, "small": slow}
        found = await routed.resolve("careful")
        asking = asyncio.ensure_future(found.service.chat(WORK))
        while not slow.parts.engine.stats().running:
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])
        found.lease.release()
        while slow.parts.engine.stats().running:
            await asyncio.sleep(0.001)
        assert models.kept == []

    asyncio.run(asyncio.wait_for(check(), 30))


def test_cascades_of_models_that_do_not_fit_together_all_get_answers(routes: Routes) -> None:
    async def check() -> None:
        says = {"small": ("uh", -2.0), "large": ("yes", -0.1)}
        launcher = FakeLauncher(
            {
                name: FakeModel(
                    open_seconds=0.01,
                    read_seconds=0.0,
                    make_service=lambda name: model(name, *says[name]),
                )
                for name in says
            }
        )
        fleet = Fleet(
            GivenModels(offers(list(says))),
            launcher,
            FleetOptions(memory=14, turn=0.05, pause=0.01),
        )
        await fleet.start()
        routed = RoutedModels(fleet, routes)
        answers = await asyncio.gather(*(said(routed) for _ in range(6)))
        assert {each.text for each in answers} == {"yes"}
        assert len(launcher.started) <= 6, "models were loaded over and over"
        await fleet.shutdown()

    asyncio.run(asyncio.wait_for(check(), 20))


def test_all_apis_say_which_model_has_answered(routes: Routes) -> None:
    registry = ModelRegistry()

    async def start() -> None:
        registry.add(model("small", "uh", -2.0))
        registry.add(model("large", "yes"))
        registry.add(model("other", "well"))

    records = RecordList()
    with running_models(RoutedModels(registry, routes), start, sinks=[records]) as server:
        chat: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 32}

        def answer(path: str, header: Any = None, **fields: Any) -> tuple[Any, str | None]:
            reply = server.http.post(path, json=chat | fields, headers=header)
            return reply.json(), reply.headers.get("x-caudal-model")

        chats = "/v1/chat/completions"
        whole, header = answer(chats, model="careful")
        assert (whole["model"], header) == ("large", "large")
        assert whole["choices"][0]["message"]["content"] == "yes"
        assert whole["usage"]["completion_tokens"] == 4
        assert whole["usage"]["unused_answers"] == [
            {"model": "small", "prompt_tokens": 18, "completion_tokens": 3, "mean_logprob": -2.0}
        ]
        assert [
            header for _, header in (answer(chats, model="large"), answer(chats, model="again"))
        ] == [None, "large"]
        ended = [records.next() for _ in range(3)]
        assert [(each.asked_model, each.model) for each in ended] == [
            ("careful", "large"),
            ("large", "large"),
            ("again", "large"),
        ]
        long = [{"role": "user", "content": "é" * 220}]
        assert answer(chats, model="auto")[0]["model"] == "small"
        assert answer(chats, model="auto", messages=long)[0]["model"] == "other"
        gold = answer(chats, {"X-Tier": "silver"}, model="auto", messages=long)
        assert (gold[0]["model"], gold[1]) == ("gpt-4o", "large")
        assert answer("/v1/messages", model="mine")[0]["model"] == "large"
        assert answer("/v1/responses", model="careful", input="hi")[0]["model"] == "large"
        assert answer("/completion", model="careful", prompt="hi")[0]["model"] == "large"
        refused, _ = answer("/v1/completions", model="careful", prompt=[1, 2])
        assert refused["error"]["param"] == "prompt"
        refused, _ = answer("/v1/embeddings", model="careful", input="hi")
        assert "'careful' can't make embeddings" in refused["error"]["message"]
        counted = server.http.post("/tokenize", json={"model": "careful", "prompt": "hi"})
        assert counted.json()["count"] == 2

        client = server.openai()
        stream = client.chat.completions.create(
            model="careful", stream=True, stream_options={"include_usage": True}, **chat
        )
        chunks = list(stream)
        assert {chunk.model for chunk in chunks} == {"large"}
        text = [c.choices[0].delta.content or "" for c in chunks if c.choices]
        assert "".join(text) == "yes"
        assert chunks[-1].usage.unused_answers[0]["model"] == "small"
        listed = {each.id: getattr(each, "leads_to", None) for each in client.models.list()}
        assert listed["again"] is None
        assert listed["careful"] == ["small", "large"]
        assert client.models.retrieve("again").root == "large"


def test_answers_dont_name_models_that_there_arent_to_who_asks(routes: Routes) -> None:
    registry = ModelRegistry()

    async def start() -> None:
        registry.add(model("small", "uh", -2.0))
        registry.add(model("large", "yes"))

    rules: Mapping[str, Any] = {"models": ("again", "careful")}
    keys = KeyRing([GivenKeys([Key(name="bob", digest=digest_of(b"bob"), rules=rules)])])
    routed = RoutedModels(registry, routes)
    with running_models(routed, start, access=Access(keys=keys)) as server:
        server.http.headers["authorization"] = "Bearer bob"
        chat: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 32}
        for name in ("again", "careful"):
            for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
                reply = server.http.post(path, json=chat | {"model": name, "stream": False})
                assert reply.json()["model"] == name
                assert "x-caudal-model" not in reply.headers
            assert "large" not in server.http.get(f"/v1/models/{name}").json()["aliases"]
            assert server.http.get(f"/v1/models/{name}").json()["root"] == name
            caches = server.http.get("/v1/prefix-cache", params={"model": name}).json()["data"]
            assert [each["model"] for each in caches] == ["again"] * (name == "again")
        assert server.http.post("/v1/messages", json=chat | {"model": "large"}).status_code == 404


def test_a_stream_is_kept_alive_while_an_answer_is_held_back(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_models, "PING_INTERVAL", 0.02)
    registry = ModelRegistry()

    async def start() -> None:
        registry.add(model("small", "uh", -2.0, fail=lambda _: time.sleep(0.05)))
        registry.add(model("large", "yes"))

    with running_models(RoutedModels(registry, routes), start) as server:
        body = {"model": "careful", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = [line for line in reply.iter_lines() if line]
        assert "x-caudal-model" not in reply.headers  # which had gone out before it was known
        said = lines.index(": x-caudal-model: large")
        assert set(lines[:said]) == {": ping"}
        assert '"model":"large"' in lines[said + 1]
        assert lines[-1] == "data: [DONE]"
