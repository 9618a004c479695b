"""What config.json alone says of a model, held against the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caudal.backends.native.costs import weight_costs
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.sketch import sketch_decoder
from caudal.formats.model_file import ModelFile
from caudal.formats.tensor_types import TensorType
from caudal.models import build_program


def check_sketch(config: Mapping[str, Any], file: ModelFile, floats: TensorType) -> None:
    """A sketch of a configuration has the program of the model, and weights of the same bytes.

    Args:
        config: The model's config.json.
        file: The model.
        floats: The type of its numbers.
    """
    program = build_program(file)
    sketch = sketch_decoder(Config("config.json", config), floats=floats)
    assert build_program(sketch) == program
    assert weight_costs(sketch, program) == weight_costs(file, program)
