"""What passes the door of a model's service is plain data, and whoever asks knows nothing else."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from pathlib import Path

import caudal.server
from caudal.chat.conversation import Conversation, Message, Tool
from caudal.engine.wire import pack, unpack
from caudal.sampling_params import SamplingParams
from caudal.service.context import RequestContext
from caudal.service.forwarding import ForwardingService
from caudal.service.service import Service
from caudal.service.work import ChatWork, EmbedWork, ScoreWork
from support.fake_model import ScriptedExecutor, serve_fake

INSIDE = re.compile(
    r"^\s*(?:from|import) caudal\.(backends|engine|formats|grammars|loading)\b", re.M
)


def test_routes_know_nothing_of_what_a_model_is_made_of():
    sources = sorted(Path(caudal.server.__file__).parent.rglob("*.py"))
    assert len(sources) > 50
    assert {
        path.name: found for path in sources if (found := INSIDE.findall(path.read_text()))
    } == {}


def test_what_passes_on_leaves_nothing_out():
    empty = {name for name, deed in vars(Service).items() if inspect.iscoroutinefunction(deed)}
    assert {"chat", "embed", "stats"} <= empty
    assert empty | {"info", "healthy", "adapters"} <= vars(ForwardingService).keys()


def test_whatever_json_carries_in_passes():
    content = ["half of a pair: \ud83e", "🦙"]
    schema = {"maximum": 10**400, "minimum": -(2**63) - 1}
    variables = {"\udfff": [2**64, 2**64 - 1, -(2**63), 2.5, True, None, {"a": "\ud800"}]}
    work = ChatWork(
        conversation=Conversation(
            messages=[Message(role="user", content=content)],
            tools=[Tool(name="count", parameters=schema)],
            template_kwargs=variables,
        ),
        params=SamplingParams(stop=["\ud800"], logit_bias={3: 1.5}),
    )
    arrived = unpack(pack(work), ChatWork)
    [message], [tool] = arrived.conversation.messages, arrived.conversation.tools
    assert message.content == content
    assert tool.parameters == schema
    assert arrived.conversation.template_kwargs == variables
    assert (arrived.params.stop, arrived.params.logit_bias) == (["\ud800"], {3: 1.5})


def test_what_is_embedded_takes_as_long_as_since_it_arrived():
    async def check() -> bytes:
        service = serve_fake(ScriptedExecutor())
        context = RequestContext(arrived=time.monotonic() - 1000)
        await service.embed(EmbedWork(inputs=["a"]), context)
        await service.score(ScoreWork(pairs=[("a", "b")]), context)
        await service.shutdown()
        return await service.metrics()

    figures = asyncio.run(check()).decode()
    [total] = re.findall(r'caudal_e2e_request_latency_seconds_sum{model="fake"} (\S+)', figures)
    assert 2000 <= float(total) < 2100
