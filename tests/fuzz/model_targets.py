"""Targets that read model files: whatever is wrong with them, `ModelLoadError` says what."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.target import Run, refused_in_words
from support.gguf_writer import Typed
from support.reference_model import TinyModel
from support.tiny_bert import TinyBert
from support.vocabularies import bpe_metadata

TEXT = "The <|im_end|> é🦙 ``quoted'' text,   with 12345 and \n\n" * 20

TINY = {"layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "feed_forward": 16}
"""Sizes of the smallest decoder."""


@contextmanager
def gguf() -> Iterator[Run]:
    """A whole GGUF file: opened, loaded, and run for two tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"

        @refused_in_words
        def run(data: bytes) -> bool:
            path.write_bytes(data)
            _use(path)
            return True

        yield run


@contextmanager
def modelfile() -> Iterator[Run]:
    """A Modelfile: read, printed and read again, and made into a recipe."""
    from caudal.packaging.modelfile import ModelfileError, parse_modelfile
    from caudal.packaging.recipe import recipe_of

    with tempfile.TemporaryDirectory() as folder:

        def run(data: bytes) -> bool:
            try:
                read = parse_modelfile(data)
                assert parse_modelfile(read.to_text()) == read
                recipe_of(read, Path(folder))
            except ModelfileError:
                return False
            return True

        yield run


@contextmanager
def hyperparameters() -> Iterator[Run]:
    """Metadata as a JSON object, laid over that of a sound model of the architecture it names."""
    from caudal.models import SUPPORTED_ARCHITECTURES

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"

        @refused_in_words
        def run(data: bytes) -> bool:
            try:
                given = json.loads(data)
                metadata = {key: _typed(value) for key, value in given.items()}
                architecture = given.get("general.architecture", "llama")
                known = architecture if architecture in SUPPORTED_ARCHITECTURES else "llama"
                tokens = given.get("tokenizer.ggml.tokens")
                made = TinyModel(
                    architecture=known,
                    vocab_size=len(tokens) if isinstance(tokens, list) else 259,
                    biases=known == "qwen2",
                    window=8 if known == "gemma3" else None,
                    metadata=bpe_metadata() | metadata,
                    **TINY,
                )
                with np.errstate(over="ignore"):  # infinities are inputs, too
                    made.write(path)
            except Exception:  # not what is tested: it can't be written
                return False
            _use(path)
            return True

        yield run


@contextmanager
def safetensors() -> Iterator[Run]:
    """A safetensors file, all of its tensors."""
    from caudal.formats.safetensors import SafetensorsFile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"

        @refused_in_words
        def run(data: bytes) -> bool:
            path.write_bytes(data)
            with SafetensorsFile.open(path) as file:
                for name, tensor in file.tensors.items():
                    assert file.tensor_bytes(name).nbytes == tensor.nbytes
            return True

        yield run


@contextmanager
def tokenizer() -> Iterator[Run]:
    """A tokenizer.json, and a text for it."""
    from caudal.errors import ModelLoadError
    from caudal.formats.model_folder import ModelFolder
    from caudal.formats.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"

        def run(data: bytes) -> bool:
            path.write_bytes(data)
            try:
                made = Tokenizer.from_folder(ModelFolder({"tokenizer.json": path}))
            except ModelLoadError:
                return False
            ids = made.encode(TEXT)
            assert len(ids) <= 4 * len(TEXT)
            made.decode(ids)
            made.encode(TEXT, parse_special=True)
            return True

        yield run


@contextmanager
def encoder() -> Iterator[Run]:
    """A BERT folder; the input is an object with the JSON of some of its files."""
    from caudal.store import Store

    with tempfile.TemporaryDirectory() as folder:
        plain = TinyBert(layers=1, hidden=16, heads=2, feed_forward=16, dense=(8, "Identity"))
        path = plain.write_folder(Path(folder) / "m")
        sound = {file: file.read_bytes() for file in path.rglob("*.json")}

        @refused_in_words
        def run(data: bytes) -> bool:
            try:
                given = json.loads(data)
                texts = {name: json.dumps(content) for name, content in given.items()}
            except Exception:  # not what is tested
                return False
            for file, content in sound.items():
                own = texts.get(file.relative_to(path).as_posix())
                file.write_bytes(content if own is None else own.encode())
            _use_stored(Store(Path(folder)).resolve(str(path)))
            return True

        yield run


@contextmanager
def decoder() -> Iterator[Run]:
    """A decoder's folder; the input is an object with the JSON of some of its files."""
    from caudal.store import Store
    from support.tiny_folder import write_tiny_folder

    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_folder(Path(folder) / "m")
        sound = {name: (path / name).read_bytes() for name in ("config.json", "tokenizer.json")}
        others = ("tokenizer_config.json", "generation_config.json", "model.safetensors.index.json")
        weights = (path / "model.safetensors").read_bytes()

        @refused_in_words
        def run(data: bytes) -> bool:
            try:
                given = json.loads(data)
                texts = {name: json.dumps(content).encode() for name, content in given.items()}
            except Exception:  # not what is tested
                return False
            for name in (*sound, *others):
                content = texts.get(name, sound.get(name))
                (path / name).unlink(missing_ok=True)
                if content is not None:
                    (path / name).write_bytes(content)
            # With an index, the weights are its shard.
            for name in ("model.safetensors", "model-1.safetensors"):
                (path / name).unlink(missing_ok=True)
            is_sharded = others[-1] in texts
            (path / ("model-1.safetensors" if is_sharded else "model.safetensors")).write_bytes(
                weights
            )
            _use_stored(Store(Path(folder)).resolve(str(path)))
            return True

        yield run


@contextmanager
def plan() -> Iterator[Run]:
    """A config.json, of which it is said what the model takes, as it is and quantised."""
    from caudal.planning.plan import Demand, Planner
    from caudal.planning.reading import read_figures

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"

        @refused_in_words
        def run(data: bytes) -> bool:
            path.write_bytes(data)
            figures = read_figures(str(path))
            demand = Demand(context=2048, users=3, shared_prefix=100)
            planner = Planner(figures)
            least = planner.least_memory(demand)
            assert least > planner.needs(demand).total  # a part of it is left to others
            assert planner.fits(demand, least)
            assert not planner.fits(demand, least - 1)
            assert planner.most_users(demand, least) >= demand.users
            figures.others()
            return True

        yield run


def _use(path: Path) -> None:
    from caudal.store import Store

    _use_stored(Store(path.parent).resolve(str(path)))


def _use_stored(stored: Any) -> None:
    """Load a model, and run it for what its first tokens give."""
    from caudal.backends.executor import Batch
    from caudal.backends.registry import find_backend
    from caudal.loading.files import open_model
    from caudal.loading.options import LoadOptions
    from caudal.loading.planning import plan_run

    with open_model(stored) as files:
        files.tokenizer.encode(TEXT)
        options = LoadOptions()
        plan_run(files.weights, files.program, options, find_backend(options.backend))
        executor = open_executor(files.weights, files.program)
    try:
        executor.execute(Batch([first_step(files.program)]))
    finally:
        executor.close()


def open_executor(weights: Any, program: Any) -> Any:
    """What runs a model, with memory for two sequences of some tokens."""
    from caudal.backends.native.executor import NativeExecutor, NativeOptions

    options = NativeOptions(
        num_blocks=2,
        window_blocks=(2,) * len(program.windows),
        num_slots=2 if program.state_layers else 0,
        max_batch_tokens=16,
        threads=1,
    )
    return NativeExecutor(weights, program, options)


def first_step(program: Any, sequence: int = 0, adapter: int | None = None) -> Any:
    """The first tokens of one of two sequences."""
    from caudal.backends.executor import PooledRows, SamplingRow, SequenceStep, StateSlots
    from caudal.sampling_params import SamplingParams

    tokens = [0, min(1, program.vocab_size - 1)]
    tables = [[sequence]] * len(program.windows)
    step = SequenceStep(tokens, 0, [sequence], window_tables=tables, adapter=adapter)
    if program.is_encoder:
        step.pooled_rows = PooledRows(0, 2)
    else:
        step.samples = [SamplingRow(SamplingParams(temperature=0), seed=0, stream=0, step=0)]
    if program.state_layers:
        step.state = StateSlots(None, sequence)
    return step


def _typed(value: Any) -> Any:
    """The number types of GGUF that hold what JSON says."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**32:
        return Typed("uint64" if value >= 0 else "int64", value)
    return Typed("float64", value) if isinstance(value, float) else value
