"""What `caudal show` says about a model, read from its file without loading it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from caudal.backends.backend import MemoryKinds, MemoryPlan, WeightMemory
from caudal.backends.registry import find_backend
from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.gguf import GGUFFile
from caudal.formats.gguf_metadata import StringArray
from caudal.formats.huggingface.checkpoint import open_checkpoint
from caudal.formats.model_folder import CONFIG, ModelFolder
from caudal.formats.old_latents import with_latents
from caudal.formats.safetensors import SafetensorsEntry
from caudal.formats.tensor_file import TensorFile, TensorInfo
from caudal.loading.facts import embedding_text
from caudal.loading.files import open_model
from caudal.loading.options import LoadOptions
from caudal.loading.planning import plan_run
from caudal.models import build_program
from caudal.models.program import Program
from caudal.packaging.description import model_capabilities, model_details
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


USUAL_LENGTH = 4096
"""Tokens of a conversation of which it is said what it takes."""


@dataclass(frozen=True, slots=True)
class DefaultMemory:
    """What sequences cost in memory, and how many have room by default on this machine.

    Attributes:
        bytes_per_token: Keys and values of one token over all layers that see all tokens.
        bytes: The default KV pool, for those.
        tokens: Tokens that fit in it.
        max_model_len: The longest sequence that would be served.
        sequences: How many sequences of that length fit, in every kind of memory.
        usual_length: A length of which it is said what a sequence takes.
        sequence_bytes: What that takes, of all kinds.
        kinds: What there would be of each kind.
    """

    bytes_per_token: int
    bytes: int
    tokens: int
    max_model_len: int
    sequences: float
    usual_length: int
    sequence_bytes: int
    kinds: MemoryKinds


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
        embedding: How it makes embeddings, or an empty string if it can't be served.
        generates: Whether it continues text; an encoder doesn't.
        weights: What its weights take where it is served; None if it can't be.
        kv_memory: None if the model can't be served, or keeps no keys and values.
        obstacle: Why the model can't be served as things are, or None if it can.
        quantisation: What the weights as a whole are quantised to, e.g. `Q4_K_M`, or `unknown`.
        capabilities: What it can do, in Ollama's words; none where it can't be read.
        left_out: Modules that aren't loaded, because they aren't for text.
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
    embedding: str
    generates: bool
    weights: WeightMemory | None
    kv_memory: DefaultMemory | None
    obstacle: str | None
    quantisation: str = "unknown"
    capabilities: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def describe_model(model: StoredModel) -> ModelDescription:
    """Read a model's facts.

    Raises:
        ModelLoadError: The file is damaged. A sound file of an unsupported kind is described, and
            its `obstacle` says what isn't supported.
    """
    description = _describe_files(model)
    try:
        return replace(
            description,
            quantisation=model_details(model).quantization_level or "unknown",
            capabilities=tuple(model_capabilities(model)),
        )
    except ModelLoadError:
        return description


def _describe_files(model: StoredModel) -> ModelDescription:
    folder = model.folder
    if folder is not None:
        return _describe_folder(model, folder)
    with GGUFFile.open(model.path, model.paths) as file:
        program, plan, obstacle = None, None, None
        try:
            weights = with_latents(file)
            program = build_program(weights)
            plan = _default_plan(weights, program)
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
            tensor_types=_tensor_types(file.tensors.values()),
            tokenizer=_tokenizer(file),
            vocabulary=len(tokens) if isinstance(tokens, StringArray) else None,
            chat_template=model.package.template is not None
            or "tokenizer.chat_template" in file.metadata,
            embedding=_embedding(program),
            generates=program is None or not program.is_encoder,
            weights=None if plan is None else plan.weights,
            kv_memory=_default_memory(program, plan),
            obstacle=obstacle,
        )


def _describe_folder(model: StoredModel, folder: ModelFolder) -> ModelDescription:
    program, tokenizer, obstacle, plan = None, None, None, None
    has_template = False
    left_out: tuple[str, ...] = ()
    with open_checkpoint(folder) as checkpoint:
        tensor_types = _entry_types(checkpoint.entry(name) for name in checkpoint)
    try:
        with open_model(model) as files:
            program, tokenizer, left_out = files.program, files.tokenizer, files.left_out
            has_template = not files.chat_template.is_default
            plan = _default_plan(files.weights, program)
    except ModelLoadError as error:
        obstacle = error.reason
    except ParameterError as error:
        obstacle = str(error)
    return ModelDescription(
        name=model.name,
        description=model.description,
        paths=tuple(str(path) for path in model.paths),
        size=model.size,
        licence=model.licence,
        sources=model.sources,
        architecture=folder.read_object(CONFIG).get("model_type", str, "unknown"),
        parameters=sum(share.parameters for share in tensor_types.values()),
        context_length=None if program is None else program.context_length,
        tensor_types=tensor_types,
        tokenizer="" if tokenizer is None else tokenizer.kind,
        vocabulary=None if tokenizer is None else tokenizer.vocab_size,
        chat_template=has_template,
        embedding=_embedding(program),
        generates=program is None or not program.is_encoder,
        weights=None if plan is None else plan.weights,
        kv_memory=_default_memory(program, plan),
        obstacle=obstacle,
        left_out=left_out,
    )


def _default_plan(weights: TensorFile, program: Program) -> MemoryPlan:
    options = LoadOptions()
    return plan_run(weights, program, options, find_backend(options.backend)).memory


def _default_memory(program: Program | None, plan: MemoryPlan | None) -> DefaultMemory | None:
    if program is None or plan is None or program.is_encoder:
        return None
    kinds, longest = plan.kinds, plan.max_model_len
    usual = min(longest, USUAL_LENGTH)
    return DefaultMemory(
        bytes_per_token=kinds.kv.bytes_per_token,
        bytes=kinds.kv.bytes,
        tokens=kinds.kv.tokens,
        max_model_len=longest,
        sequences=kinds.sequences(longest),
        usual_length=usual,
        sequence_bytes=kinds.sequence_bytes(usual),
        kinds=kinds,
    )


def _embedding(program: Program | None) -> str:
    return "" if program is None else embedding_text(program.pooling, program.state.width)


def _tensor_types(file_tensors: Iterable[TensorInfo]) -> dict[str, TensorTypeShare]:
    return _shares(
        (tensor.type.name, tensor.num_elements, tensor.nbytes) for tensor in file_tensors
    )


def _entry_types(entries: Iterable[SafetensorsEntry]) -> dict[str, TensorTypeShare]:
    return _shares((entry.dtype, math.prod(entry.shape), entry.nbytes) for entry in entries)


def _shares(tensors: Iterable[tuple[str, int, int]]) -> dict[str, TensorTypeShare]:
    """By type, from each tensor's type, number of weights and bytes."""
    groups = defaultdict(list)
    for name, parameters, size in tensors:
        groups[name].append((parameters, size))
    shares = {
        name: TensorTypeShare(
            tensors=len(group),
            parameters=sum(parameters for parameters, _ in group),
            bytes=sum(size for _, size in group),
        )
        for name, group in groups.items()
    }
    return dict(sorted(shares.items(), key=lambda item: item[1].bytes, reverse=True))


def _tokenizer(file: GGUFFile) -> str:
    kind = file.get_str("tokenizer.ggml.model", "")
    pretokenizer = file.get_str("tokenizer.ggml.pre", "")
    if not kind:
        return ""
    return f"{kind} ({pretokenizer})" if pretokenizer else kind
