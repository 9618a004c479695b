from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from caudal.server.auth import Access
from caudal.server.limits import ServerLimits
from caudal.server.records import RecordSink
from caudal.service.model_service import ModelService
from caudal.service.service import Service
from support.fake_model import ScriptedExecutor, changed, serve_fake
from support.fake_template import tool_chat
from support.far_model import FarModel
from support.gate import Gate
from support.running_server import RunningServer, Serve, running_server

THROUGH_BOTH_DOORS = {
    "test_chat",
    "test_chat_custom_tools",
    "test_completions",
    "test_embeddings",
    "test_generate",
    "test_lora",
    "test_messages",
    "test_native_completion",
    "test_records",
    "test_responses",
    "test_tokenize",
    "test_tools",
}
"""Tests that are run on services behind a socket too."""

NEAR_ONLY = frozenset(("test_a_demanded_call_that_is_cut_short_leaves_no_marks",))
"""Of them, those that take long; and those that have variants, which are about other things."""

Door = Callable[[ModelService], Service | FarModel]


def same(service: ModelService) -> Service:
    return service


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test = metafunc.definition
    near_only = test.originalname in NEAR_ONLY or test.get_closest_marker("parametrize")
    chosen = test.path.stem in THROUGH_BOTH_DOORS and not near_only
    if "door" in metafunc.fixturenames and chosen:
        doors = {"near": same, "far": FarModel}
        metafunc.parametrize("door", doors.values(), ids=doors, indirect=True, scope="module")


@pytest.fixture(scope="module")
def door(request: pytest.FixtureRequest) -> Door:
    """What stands between the routes and the model."""
    return getattr(request, "param", same)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Closed; a test that forgets to open it holds nothing up."""
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def serve(door: Door) -> Iterator[Serve]:
    """Serves a scripted executor: `serve(ScriptedExecutor(...), max_queue=1, ...)`."""
    with contextlib.ExitStack() as stack:

        def start(
            executor: ScriptedExecutor,
            *,
            api_key: str | None = None,
            access: Access | None = None,
            limits: ServerLimits | None = None,
            strict_fields: bool = False,
            allow_runtime_lora: bool = False,
            sinks: Sequence[RecordSink] = (),
            **options: object,
        ) -> RunningServer:
            model = changed(serve_fake(executor, **options), strict=strict_fields)
            served = running_server(
                door(model),
                api_key=api_key,
                access=access,
                limits=limits,
                strict_fields=strict_fields,
                allow_runtime_lora=allow_runtime_lora,
                sinks=sinks,
            )
            return stack.enter_context(served)

        yield start


@pytest.fixture(scope="module")
def hello(door: Door) -> Iterator[RunningServer]:
    """A server whose model always says `Hello, día!`."""
    model = serve_fake(ScriptedExecutor(script="Hello, día!".encode()))
    with running_server(door(model)) as server:
        yield server


@pytest.fixture
def converse(door: Door) -> Iterator[Callable[..., RunningServer]]:
    """Serves a model that thinks and calls tools, and always says `script`."""
    with contextlib.ExitStack() as stack:

        def start(script: str, **options: object) -> RunningServer:
            executor = ScriptedExecutor(script=script.encode(), num_blocks=2048)
            model = serve_fake(executor, **{"max_model_len": 16384} | options)
            return stack.enter_context(running_server(door(changed(model, chat=tool_chat()))))

        yield start
