"""Targets that read adapters, for models that are sound."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.model_targets import first_step, open_executor
from fuzz.target import Run, refused_in_words

MODELS = ("llama", "phi3", "qwen3_next")
"""Permuted heads; several matrices of one; reordered rows and columns. The first is the default."""

_MAX_ELEMENTS = 1 << 16
_TYPES = ("float32", "float16", "uint16", "int32")


@contextmanager
def gguf_adapter() -> Iterator[Run]:
    """A whole GGUF file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.gguf"
        use = _opened(MODELS[0], Path(folder))

        @refused_in_words
        def run(data: bytes) -> bool:
            path.write_bytes(data)
            use(path)
            return True

        yield run


@contextmanager
def peft_adapter() -> Iterator[Run]:
    """A folder: an object with the `config`, and of the `tensors` their shapes by name.

    All of their values are its `value`, of its `type` (uint16: the bits of BF16); `model` is what
    they are for.
    """
    from support.safetensors_writer import write_safetensors

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it"
        path.mkdir()
        opened = cache(lambda model: _opened(model, Path(folder)))

        @refused_in_words
        def run(data: bytes) -> bool:
            try:
                given = json.loads(data)
                model, kind = given.get("model", MODELS[0]), given.get("type", _TYPES[0])
                shapes = given["tensors"]
                config = json.dumps(given["config"])
                if model not in MODELS or kind not in _TYPES:
                    return False
                if any(math.prod(map(int, shape)) > _MAX_ELEMENTS for shape in shapes.values()):
                    return False
                with np.errstate(all="ignore"):  # infinities are inputs, too
                    value = np.array(given.get("value", 0.5)).astype(kind)
                tensors = {name: np.full(shape, value, kind) for name, shape in shapes.items()}
                write_safetensors(path / "adapter_model.safetensors", tensors)
            except Exception:  # not what is tested: it can't be written
                return False
            (path / "adapter_config.json").write_text(config)
            opened(model)(path)
            return True

        yield run


def _opened(name: str, folder: Path) -> Callable[[Path], None]:
    """A model of those that references are kept of; what is returned has it use an adapter."""
    from caudal.backends.executor import Batch
    from caudal.formats.lora.base import AdapterBase
    from caudal.formats.lora.reading import read_adapter
    from caudal.models import build_program
    from references.checks import open_reference
    from references.reference import Recorded
    from references.weights import write_folder

    with open_reference(write_folder(Recorded.read(name), folder / name)) as file:
        base, program = AdapterBase.of(file), build_program(file)
        executor = open_executor(file, program)

    def last_answer(*adapters: int | None) -> Any:
        steps = [first_step(program, number, each) for number, each in enumerate(adapters)]
        return executor.execute(Batch(steps))[-1]

    without = last_answer(None)

    def use(path: Path) -> None:
        adapter = read_adapter(path, base)
        loaded = executor.load_adapter(adapter)
        try:
            assert last_answer(loaded.index, None) == without, "others are as they were"
        finally:
            executor.unload_adapter(loaded.index)

    return use
