"""What `caudal show` says about a model, read from its file without loading it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from caudal.backends.native import BLOCK_SIZE, BYTES_PER_ELEMENT
from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_metadata import StringArray
from caudal.loader import LoadOptions, size_kv_pool
from caudal.models import build_program
from caudal.models.program import kv_bytes_per_token
from caudal.store import StoredModel


@dataclass(frozen=True, slots=True)
class TensorTypeShare:
    """How much of a model has one tensor type.

    Attributes:
        tensors: Number of tensors.
        parameters: Number of weights in them.
        bytes: Bytes they take in the file.
    """

    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KVMemory:
    """What sequences cost in memory, and how many have room by default on this machine.

    Attributes:
        bytes_per_token: Keys and values of one token over all layers, in half precision.
        bytes: The default KV pool.
        tokens: Tokens that fit in it.
        max_model_len: The longest sequence that would be served.
        sequences: How many sequences of that length fit.
    """

    bytes_per_token: int
    bytes: int
    tokens: int
    max_model_len: int
    sequences: float


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's facts.

    Attributes:
        name: As the store has it.
        description: One line, or an empty string.
        paths: Its files.
        size: Bytes of the files.
        licence: Its licence, or an empty string where neither store nor file says.
        sources: Packages it came in.
        architecture: The model family.
        parameters: Number of weights.
        context_length: Tokens it was trained for, or None if the file doesn't say.
        tensor_types: By tensor type, the largest first.
        tokenizer: Kind of the tokenizer as the file names it, e.g. `gpt2 (smollm)`.
        vocabulary: Tokens in the vocabulary, or None without a tokenizer.
        chat_template: Whether the file has one.
        kv_memory: None if the model can't be served.
        obstacle: Why the model can't be served as things are, or None if it can.
    """

    name: str
    description: str
    paths: tuple[str, ...]
    size: int
    licence: str
    sources: tuple[str, ...]
    architecture: str
    parameters: int
    context_length: int | None
    tensor_types: dict[str, TensorTypeShare]
    tokenizer: str
    vocabulary: int | None
    chat_template: bool
    kv_memory: KVMemory | None
    obstacle: str | None


def describe_model(model: StoredModel) -> ModelDescription:
    """Read a model's facts.

    Raises:
        ModelLoadError: The file is damaged. A sound file of an unsupported kind is described, and
            its `obstacle` says what isn't supported.
    """
    with GGUFFile.open(model.path) as file:
        kv_memory, obstacle = None, None
        try:
            kv_memory = _kv_memory(file)
        except ModelLoadError as error:
            obstacle = error.reason
        except ParameterError as error:
            obstacle = str(error)
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        return ModelDescription(
            name=model.name,
            description=model.description or file.get_str("general.name", ""),
            paths=tuple(str(path) for path in model.paths),
            size=model.size,
            licence=model.licence or file.get_str("general.license", ""),
            sources=model.sources,
            architecture=file.architecture,
            parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            context_length=file.get_int(f"{file.architecture}.context_length", None),
            tensor_types=_tensor_types(file),
            tokenizer=_tokenizer(file),
            vocabulary=len(tokens) if isinstance(tokens, StringArray) else None,
            chat_template="tokenizer.chat_template" in file.metadata,
            kv_memory=kv_memory,
            obstacle=obstacle,
        )


def _kv_memory(file: GGUFFile) -> KVMemory:
    program = build_program(file)
    options = LoadOptions()
    num_blocks, max_model_len = size_kv_pool(program, options)
    per_token = kv_bytes_per_token(program.kv_layers, BYTES_PER_ELEMENT[options.kv_type])
    tokens = num_blocks * BLOCK_SIZE
    return KVMemory(
        bytes_per_token=per_token,
        bytes=tokens * per_token,
        tokens=tokens,
        max_model_len=max_model_len,
        sequences=tokens / max_model_len,
    )


def _tensor_types(file: GGUFFile) -> dict[str, TensorTypeShare]:
    groups = defaultdict(list)
    for tensor in file.tensors.values():
        groups[tensor.type.name].append(tensor)
    shares = {
        name: TensorTypeShare(
            tensors=len(tensors),
            parameters=sum(tensor.num_elements for tensor in tensors),
            bytes=sum(tensor.nbytes for tensor in tensors),
        )
        for name, tensors in groups.items()
    }
    return dict(sorted(shares.items(), key=lambda item: item[1].bytes, reverse=True))


def _tokenizer(file: GGUFFile) -> str:
    kind = file.get_str("tokenizer.ggml.model", "")
    pretokenizer = file.get_str("tokenizer.ggml.pre", "")
    if not kind:
        return ""
    return f"{kind} ({pretokenizer})" if pretokenizer else kind
