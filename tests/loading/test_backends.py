"""The loader runs a model on whichever backend is in the table, by what that one plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from caudal import LLM, SamplingParams
from caudal.backends.backend import (
    BackendOptions,
    MemoryKinds,
    MemoryPlan,
    PagedKV,
    RunLimits,
    WeightMemory,
)
from caudal.backends.executor import Executor
from caudal.backends.native.backend import NativeBackend
from caudal.backends.registry import BACKENDS
from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.tensor_file import TensorFile
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.models.program import Program
from caudal.store.packed import PackedModel
from support.fake_executor import FakeExecutor, expected_output
from support.fake_facts import EXECUTOR_FACTS
from support.reference_model import TinyModel
from support.tiny_bert import TinyBert
from support.vocabularies import bpe_metadata


class SmallBackend:
    """A pool of 100 blocks of 3 tokens, and a fake executor."""

    def check_options(self, options: BackendOptions) -> None:
        if options.kv_type not in ("f16", "tokens"):
            raise ParameterError("kv_type", "kv_type must be 'tokens'.")

    def plan(
        self, weights: TensorFile, program: Program, options: BackendOptions, limits: RunLimits
    ) -> MemoryPlan:
        kv = PagedKV(num_blocks=100, block_size=3, bytes_per_token=7)
        length = limits.max_model_len or min(program.context_length, kv.tokens)
        return MemoryPlan(
            options=options,
            limits=limits,
            weights=WeightMemory(bytes=1000, mapped=False),
            kinds=MemoryKinds(kv=kv),
            max_model_len=length,
        )

    def open(
        self,
        weights: TensorFile,
        program: Program,
        plan: MemoryPlan,
        progress: Callable[[float], None] | None = None,
        kept: PackedModel | None = None,
        beside: Executor | None = None,
        more: Program | None = None,
    ) -> FakeExecutor:
        kv = plan.kinds.kv
        return FakeExecutor(kv.num_blocks, kv.block_size, program.vocab_size)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    BACKENDS["small"] = SmallBackend
    yield
    del BACKENDS["small"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyModel(architecture="llama", vocab_size=259, layers=1, metadata=bpe_metadata())
    return tiny.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


def test_a_model_runs_on_the_backend_that_is_asked_for(model: Path):
    prompt = list(range(40))
    params = SamplingParams(seed=5, max_tokens=20, ignore_eos=True)
    with LLM(model, backend="small", kv_type="tokens") as llm:
        assert llm.max_model_len == 300, "what fits into its pool"
        [result] = llm.generate({"prompt_token_ids": prompt}, params)
    assert result.outputs[0].token_ids == expected_output(prompt, seed=5, count=20, vocab_size=259)


def test_what_a_user_chooses_reaches_the_engine(model: Path):
    chosen = {
        "ageing": 3.0,
        "batching": "dynamic",
        "preferred_batch_size": 4,
        "max_queue_delay": 0.2,
        "first_token_timeout": 20.0,
        "request_timeout": 90.0,
        "max_queue": 7,
    }
    loaded = load_model(str(model), LoadOptions(backend="small", **chosen))  # type: ignore[arg-type]
    assert {name: getattr(loaded.engine_config, name) for name in chosen} == chosen
    for name in ("ageing", "first_token_timeout", "request_timeout"):
        with pytest.raises(ParameterError, match=f"{name} must be more than 0 seconds"):
            load_model(str(model), LoadOptions(backend="small", **{name: 0.0}))  # type: ignore[arg-type]


def test_facts_are_what_the_backend_planned(model: Path):
    loaded = load_model(str(model), LoadOptions(backend="small", max_model_len=120))
    assert loaded.facts.executor is EXECUTOR_FACTS
    assert loaded.facts.max_model_len == loaded.engine_config.max_model_len == 120
    memory = loaded.facts.memory
    assert memory is not None
    assert (memory.kv.tokens, memory.bytes) == (300, 2100)
    assert memory.sequences(120) == 2.5


def test_backends_and_what_they_understand_are_refused_by_name():
    for options, message in (
        ({"backend": "abacus"}, "backend must be 'native' or 'small', not 'abacus'"),
        ({"backend": "small", "kv_type": "f32"}, "kv_type must be 'tokens'"),
        ({"kv_type": "tokens"}, "kv_type must be 'f16', 'f32' or 'q8', not 'tokens'"),
        ({"kv_type": 8}, "kv_type must be 'f16', 'f32' or 'q8', not 8"),
        ({"kv_type": "fp8"}, "not 'fp8': take q8, for keys and values in 8 bits"),
        ({"activations": 1}, "activations must be 'auto' or 'f32', not 1"),
        ({"prefix_store": ""}, "prefix_store must be a path, but is empty"),
        ({"threads": 0}, "threads must be 1 to 256, but is 0"),
        ({"threads": True}, "threads must be an integer, but is True"),
        ({"ageing": "5"}, "ageing must be a number of seconds, but is '5'"),
        ({"request_timeout": True}, "request_timeout must be a number of seconds, but is True"),
        ({"preferred_batch_size": 4}, "preferred_batch_size goes with batching dynamic only"),
        ({"max_queue_delay": 1.0, "batching": "static"}, "max_queue_delay goes with batching"),
    ):
        with pytest.raises(ParameterError, match=message):
            LoadOptions(**options)  # type: ignore[arg-type]


def test_heads_too_wide_for_8_bits_are_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = TinyModel(
        architecture="llama",
        vocab_size=259,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=520,
        metadata=bpe_metadata(),
    )
    path = model.write(tmp_path / "wide.gguf")
    options = LoadOptions(kv_type="q8", threads=1, packed_size=0)
    with monkeypatch.context() as patch:
        patch.setattr(NativeBackend, "open", None)
        with pytest.raises(ModelLoadError, match=r"have 520 channels.* 512 at most; take f16"):
            load_model(str(path), options)
    load_model(str(path), replace(options, kv_type="f16")).executor.close()


def test_the_native_pool_holds_what_its_memory_suffices_for(model: Path):
    per_token = 2 * 2 * 16 * 2  # keys and values, two heads of 16, two bytes
    loaded = load_model(str(model), LoadOptions(kv_memory=per_token * 100, threads=1))
    loaded.executor.close()
    pool = PagedKV(num_blocks=6, block_size=16, bytes_per_token=per_token)
    assert loaded.facts.memory == MemoryKinds(kv=pool, kept_token_bytes=per_token)
    assert loaded.max_model_len == 96, "the context shrinks"
    with pytest.raises(ParameterError, match="holds 96 tokens, but one sequence of 97 needs"):
        load_model(str(model), LoadOptions(kv_memory=per_token * 100, max_model_len=97))


def test_an_encoders_pool_holds_a_batch(tmp_path: Path):
    folder = TinyBert().write_folder(tmp_path / "m")
    loaded = load_model(str(folder), LoadOptions(threads=1, max_num_seqs=4))
    loaded.executor.close()
    assert loaded.engine_config.max_num_batched_tokens == 512
    assert loaded.executor.info.num_blocks == 512 // 16 + 2 * 4
    assert loaded.facts.memory is None
    with pytest.raises(ParameterError, match="this model reads each input as a whole"):
        load_model(str(folder), LoadOptions(threads=1, max_num_batched_tokens=40))
    with pytest.raises(ParameterError, match="set request_timeout instead"):
        load_model(str(folder), LoadOptions(threads=1, first_token_timeout=5))
