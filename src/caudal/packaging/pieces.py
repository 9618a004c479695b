"""What files turn out to be: a model's weights, adapters for it, what makes images into embeddings.

Told by what is in them, as Ollama does (`ggufLayers` in server/create.go); names count only where a
model has several files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from caudal.errors import ModelLoadError
from caudal.formats.gguf import GGUFFile
from caudal.formats.lora.peft import WEIGHTS as ADAPTER_WEIGHTS
from caudal.formats.lora.peft_config import CONFIG as ADAPTER_CONFIG
from caudal.formats.model_folder import CONFIG, is_part_of_model
from caudal.formats.split_names import SplitName

_MAGIC = b"GGUF"


class PieceKind(Enum):
    """What files are."""

    GGUF = "a model's GGUF file, or all its files"
    FOLDER = "a model's folder"
    ADAPTER = "an adapter's GGUF file"
    ADAPTER_FOLDER = "an adapter's folder"
    PROJECTOR = "what makes images or sounds into embeddings"


@dataclass(frozen=True, slots=True)
class Piece:
    """Files that belong together.

    Attributes:
        kind: What they are.
        names: What they are called within the model.
        paths: Where they are, in the same order.
    """

    kind: PieceKind
    names: tuple[str, ...]
    paths: tuple[Path, ...]

    @property
    def files(self) -> Mapping[str, Path]:
        """Paths by name."""
        return dict(zip(self.names, self.paths, strict=True))


def sort_files(files: Mapping[str, Path]) -> Sequence[Piece]:
    """Find out what files are, and which belong together.

    Args:
        files: Files by their names within a model.

    Raises:
        ModelLoadError: One is neither, or damaged, or a part of something is missing.
        OSError: One can't be read.
    """
    names = _without_common_folder(files)
    gguf = {name: path for name, path in names.items() if _is_gguf(path)}
    others = {name: path for name, path in names.items() if name not in gguf}
    return [*_folders(others), *_gguf_pieces(gguf)]


def _without_common_folder(files: Mapping[str, Path]) -> dict[str, Path]:
    """Files by their names below the folder that all of them are in."""
    parts = {name: PurePosixPath(name).parts for name in files}
    heads = {each[:-1] for each in parts.values()}
    shared = 0
    while all(len(head) > shared for head in heads) and len({h[shared] for h in heads}) == 1:
        shared += 1
    return {str(PurePosixPath(*parts[name][shared:])): path for name, path in files.items()}


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _folders(files: Mapping[str, Path]) -> Iterable[Piece]:
    if ADAPTER_CONFIG in files or ADAPTER_WEIGHTS in files:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if name not in files:
                raise ModelLoadError("the adapter", f"it has no {name}")
        chosen = {name: files[name] for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)}
        yield _piece(PieceKind.ADAPTER_FOLDER, chosen)
    elif files:
        chosen = {name: path for name, path in files.items() if is_part_of_model(name)}
        if CONFIG not in chosen:
            wrong = next(iter(files))
            raise ModelLoadError(
                wrong, f"it is no GGUF file, nor part of a folder with {CONFIG} and safetensors"
            )
        yield _piece(PieceKind.FOLDER, chosen)


def _gguf_pieces(files: Mapping[str, Path]) -> Iterable[Piece]:
    alone = []
    splits: dict[tuple[str, int], dict[str, Path]] = {}
    for name, path in files.items():
        split = SplitName.parse(name)
        if split is None or split.count < 2:
            alone.append({name: path})
        else:
            splits.setdefault((split.stem, split.count), {})[name] = path
    for parts in splits.values():
        first = SplitName.parse(next(iter(parts)))
        assert first is not None
        for name in first.names:
            if name not in parts:
                raise ModelLoadError(str(first), f"part {name} of the split model is missing")
        alone.append({name: parts[name] for name in first.names})
    for group in alone:
        paths = tuple(group.values())
        with GGUFFile.open(paths[0], paths) as file:
            yield _piece(_gguf_kind(file), group)


def _gguf_kind(file: GGUFFile) -> PieceKind:
    kind = file.get_str("general.type", "model")
    if kind == "adapter":
        return PieceKind.ADAPTER
    architecture = file.architecture
    blocks = file.get_int(f"{architecture}.block_count", 0)
    sees = file.get_int(f"{architecture}.vision.block_count", 0)
    if kind in ("projector", "mmproj") or (blocks == 0 and (sees > 0 or architecture == "clip")):
        return PieceKind.PROJECTOR
    return PieceKind.GGUF


def _piece(kind: PieceKind, files: Mapping[str, Path]) -> Piece:
    return Piece(kind, tuple(files), tuple(files.values()))
