"""From a recipe to a model in the store.

Steps, their names, and what comes of a base and of what the recipe says are those of Ollama
(server/create.go), except that GGUF files are kept as they are, split ones in their parts; that a
recipe may build on a model by name and add files to it; and that all is checked before anything is
committed: template and parameters, that files are models, that adapters are for the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from caudal.conversion import ConversionProgress, convert_model, find_mix
from caudal.errors import ModelLoadError, ParameterError, StoreError
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.model import FolderModel
from caudal.formats.lora.base import AdapterBase
from caudal.formats.old_latents import with_latents
from caudal.models import build_program
from caudal.packaging.adapter_files import adapter_file
from caudal.packaging.base import Base, base_of
from caudal.packaging.checks import checked_recipe
from caudal.packaging.create_progress import (
    Count,
    CreateCallback,
    CreateProgress,
    ignore_progress,
)
from caudal.packaging.layers import messages_layer, params_layer
from caudal.packaging.parameters import without_effect
from caudal.packaging.pieces import Piece, PieceKind, sort_files
from caudal.packaging.recipe import Recipe
from caudal.packaging.weights import open_weights
from caudal.store import Store, StoredModel, oci
from caudal.store.disk import explained_os_errors
from caudal.store.image_config import config_of
from caudal.store.incoming import BlobInfo, MissingBlobError
from caudal.store.oci import ImageConfig, Layer
from caudal.store.stored import model_of_files

_MODELS = (PieceKind.GGUF, PieceKind.FOLDER)
_ADAPTERS = (PieceKind.ADAPTER, PieceKind.ADAPTER_FOLDER)
_WEIGHTS = "model.gguf"
_ATTEMPTS = 3


def create_model(
    store: Store, name: str, recipe: Recipe, progress: CreateCallback = ignore_progress
) -> StoredModel:
    """Make a model, and put it in the store under a name; what had the name before goes.

    Where anything is wrong, or the process ends, the store has no part of the model, and what had
    the name keeps it.

    Args:
        store: The store.
        name: The name, in any form but a path.
        recipe: What the model is to be made of. What it builds on is pulled if it isn't there.
        progress: Called with every step, on the calling thread.

    Returns:
        The model.

    Raises:
        ModelNameError: It isn't a name that a model can have.
        ModelNotFoundError: What the recipe builds on isn't there, nor can it be pulled.
        ParameterError: A file isn't what it should be, or a parameter; names it, and what is wrong.
        ConversionError: The weights can't become what they should.
        TemplateError: The template can't be parsed; names the line.
        StoreError: A blob isn't there, or the store can't be written to, as on a full disk.
    """
    recipe = checked_recipe(name, recipe)
    for _ in range(_ATTEMPTS - 1):
        # Who deletes a model meanwhile deletes what it alone had, though it is part of this one.
        with contextlib.suppress(MissingBlobError):
            return _create(store, name, recipe, progress)
    return _create(store, name, recipe, progress)


def _create(store: Store, name: str, recipe: Recipe, progress: CreateCallback) -> StoredModel:
    base = None if recipe.from_ is None else base_of(store, recipe.from_, progress)
    names = _blob_names(store, recipe)
    pieces = _sorted(store, "files", recipe.files, names, progress)
    adapters = _sorted(store, "adapters", recipe.adapters, names, progress)
    with explained_os_errors(store.home), store.workspace() as directory:
        creation = _Creation(store, name, recipe, base, directory, names, progress)
        config, layers = creation.run(pieces, adapters)
        for layer in layers:
            progress(CreateProgress(creation.status(layer)))
        progress(CreateProgress("writing manifest"))
        annotations = {} if base is None else base.annotations
        stored = store.commit(name, config.to_mapping(), layers, annotations)
    progress(CreateProgress("success"))
    return stored


@contextlib.contextmanager
def _blamed(field: str, names: Mapping[str, str]) -> Iterator[None]:
    """Blames a recipe for files that are none of a model, or not of this one.

    Args:
        field: What of it.
        names: What it calls blobs, by where they lie: who sent them needn't know that.
    """
    try:
        yield
    except ModelLoadError as error:
        source = names.get(error.source, error.source)
        raise ParameterError(field, str(ModelLoadError(source, error.reason))) from error


def _blob_names(store: Store, recipe: Recipe) -> Mapping[str, str]:
    """What a recipe calls blobs, by where they lie."""
    given = [*recipe.files.items(), *recipe.adapters.items()]
    return {str(store.blob(place)): name for name, place in given if isinstance(place, str)}


def _sorted(
    store: Store,
    field: str,
    files: Mapping[str, Path | str],
    names: Mapping[str, str],
    progress: CreateCallback,
) -> Sequence[Piece]:
    """What a recipe's files are; for `names` see `_blamed`."""
    if not files:
        return ()
    progress(CreateProgress("parsing GGUF"))
    located: dict[str, Path] = {}
    for name, place in files.items():
        path = store.blob(place) if isinstance(place, str) else place
        if path is None:
            raise StoreError(f"{name}: there is no blob {place} in the store; send it first")
        located[name] = path
    try:
        with _blamed(field, names):
            return sort_files(located)
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror}") from error


class _Creation:
    """The making of one model, up to what is committed."""

    def __init__(
        self,
        store: Store,
        name: str,
        recipe: Recipe,
        base: Base | None,
        directory: Path,
        names: Mapping[str, str],
        progress: CreateCallback,
    ) -> None:
        self._store = store
        self._name = name
        self._recipe = recipe
        self._base = base
        self._directory = directory
        self._names = names
        self._progress = progress
        self._counts = 0
        self._before = {path.name for path in store.layout.shelf.blobs.iterdir()}

    def run(
        self, pieces: Sequence[Piece], named_adapters: Sequence[Piece]
    ) -> tuple[ImageConfig, Sequence[Layer]]:
        """What the model says of itself, and its layers, whose blobs are in the store.

        Args:
            pieces: The recipe's files.
            named_adapters: What it names as adapters.
        """
        with _blamed("files", self._names):
            source = self._source(pieces)
            self._warn(source)
        with _blamed("adapters", self._names):
            adapters = self._adapters(source, pieces, named_adapters)
        projectors = [piece.paths[0] for piece in pieces if piece.kind is PieceKind.PROJECTOR]
        with _blamed("quantize" if self._recipe.quantize else "files", self._names):
            converted = self._converted(source)
        config = self._config(source, converted)
        replaced = [
            *([oci.ADAPTER_TYPE] if adapters else []),
            *([oci.PROJECTOR_TYPE] if projectors else []),
        ]
        # What is large comes last, so that where that has no room little is left to be pruned.
        texts = list(self._texts())
        added = [
            *(self._file(oci.ADAPTER_TYPE, path) for path in adapters),
            *(self._file(oci.PROJECTOR_TYPE, path) for path in projectors),
        ]
        weights = list(self._weights(source, converted))
        return config, [*weights, *self._kept(replaced), *added, *texts]

    def status(self, layer: Layer) -> str:
        """What became of a layer."""
        base = () if self._base is None else [each.digest for each in self._base.layers]
        is_old = layer.digest in base or layer.digest.replace(":", "-") in self._before
        return f"{'using existing' if is_old else 'creating new'} layer {layer.digest}"

    def _source(self, pieces: Sequence[Piece]) -> StoredModel:
        """The weights that the model is made of, wherever they are."""
        models = [piece for piece in pieces if piece.kind in _MODELS]
        names = [piece.names[0] for piece in models]
        if self._base is not None:
            names.insert(0, self._base.stored.name)
        if len(names) > 1:
            raise ModelLoadError(
                self._name, f"it can be made of one model only, not of {' and '.join(names)}"
            )
        if self._base is not None:
            return self._base.stored
        if not models:
            raise ModelLoadError(self._name, "there is no model among its files")
        return model_of_files(self._name, models[0].files)

    def _warn(self, source: StoredModel) -> None:
        """Say what the recipe asks for in vain, and what can't be served, but kept."""
        idle = without_effect(self._recipe.parameters)
        if idle:
            self._progress(CreateProgress(f"without effect in Caudal: {', '.join(idle)}"))
        if self._base is None:
            with open_weights(source) as file:
                if isinstance(file, FolderModel) and file.left_out:
                    what = ", ".join(file.left_out)
                    self._progress(CreateProgress(f"left out, as only text is kept: {what}"))
                try:
                    build_program(with_latents(file))
                except ModelLoadError as error:
                    self._progress(CreateProgress(f"Caudal cannot serve it: {error.reason}"))

    def _adapters(
        self, source: StoredModel, pieces: Sequence[Piece], named: Sequence[Piece]
    ) -> Sequence[Path]:
        """The adapter's file, checked."""
        for piece in named:
            if piece.kind not in _ADAPTERS:
                raise ModelLoadError(piece.names[0], f"it is {piece.kind.value}, and no adapter")
        adapters = [piece for piece in (*pieces, *named) if piece.kind in _ADAPTERS]
        if not adapters:
            return ()
        if len(adapters) > 1:
            raise ModelLoadError(self._name, "only one adapter is currently supported")
        if adapters[0].kind is PieceKind.ADAPTER_FOLDER:
            self._progress(CreateProgress("converting adapter"))
        with open_weights(source) as file:
            base = AdapterBase.of(with_latents(file))
            return [adapter_file(adapters[0], base, self._directory)]

    def _converted(self, source: StoredModel) -> Path | None:
        """The weights in another form; None where they stay as they are."""
        wanted = None if self._recipe.quantize is None else find_mix(self._recipe.quantize).name
        now = config_of(dict(zip(source.names, source.paths, strict=True))).file_type
        is_folder = source.folder is not None
        if wanted == now and not is_folder:
            return None
        if wanted is None and (self._base is not None or not is_folder):
            return None
        words = "converting model" if is_folder else f"quantizing {now} model to {wanted}"

        count: Count | None = None

        def report(done: ConversionProgress) -> None:
            nonlocal count
            count = count or self._count(words, done.total)
            count(done.completed)

        self._progress(CreateProgress(words))
        path = self._directory / _WEIGHTS
        convert_model(source, path, wanted, report)
        self._progress(CreateProgress("verifying conversion"))
        with GGUFFile.open(path):
            return path

    def _weights(self, source: StoredModel, converted: Path | None) -> Iterator[Layer]:
        if converted is not None:
            yield self._file(oci.MODEL_TYPE, converted, move=True)
        elif self._base is not None:
            yield from self._base.of_type(*oci.MODEL_TYPES)
        else:
            several = len(source.paths) > 1
            for name, path in zip(source.names, source.paths, strict=True):
                yield self._file(oci.MODEL_TYPE, path, title=name if several else None)

    def _kept(self, replaced: Sequence[str]) -> Iterator[Layer]:
        """What the base has besides weights, and the recipe says nothing of."""
        recipe = self._recipe
        gone = {
            oci.MODEL_TYPE,
            oci.PARAMS_TYPE,  # which are merged
            *replaced,
            *([oci.TEMPLATE_TYPE, oci.PROMPT_TYPE] if recipe.template else []),
            *([oci.SYSTEM_TYPE] if recipe.system else []),
            *([oci.MESSAGES_TYPE] if recipe.messages else []),
        }
        for layer in () if self._base is None else self._base.layers:
            if layer.media_type not in gone:
                yield layer

    def _texts(self) -> Iterator[Layer]:
        """What the recipe says, and what it adds to what the base says."""
        recipe, base = self._recipe, self._base
        package = None if base is None else base.stored.package
        if recipe.template:
            yield self._text(oci.TEMPLATE_TYPE, recipe.template)
        if recipe.system:
            yield self._text(oci.SYSTEM_TYPE, recipe.system)
        for licence in dict.fromkeys(recipe.licences):
            if licence and (package is None or licence not in package.licences):
                yield self._text(oci.LICENSE_TYPE, licence)
        parameters = {**(package.parameters if package else {}), **recipe.parameters}
        if parameters:
            yield self._text(oci.PARAMS_TYPE, params_layer(parameters))
        if recipe.messages:
            yield self._text(oci.MESSAGES_TYPE, messages_layer(recipe.messages))

    def _config(self, source: StoredModel, converted: Path | None) -> ImageConfig:
        recipe = self._recipe
        before = None if self._base is None else self._base.stored.config
        if converted is None and before is not None:
            config = before
        else:
            names = dict(zip(source.names, source.paths, strict=True))
            config = config_of({_WEIGHTS: converted} if converted else names)
            if before is not None:
                config = replace(
                    before,
                    model_format=config.model_format,
                    model_family=config.model_family,
                    model_families=config.model_families,
                    model_type=config.model_type,
                    file_type=config.file_type,
                )
        return replace(
            config,
            renderer=recipe.renderer or config.renderer,
            parser=recipe.parser or config.parser,
            requires=recipe.requires or config.requires,
        )

    def _file(
        self, media_type: str, path: Path, *, title: str | None = None, move: bool = False
    ) -> Layer:
        words = f"hashing {path.name}" if move else f"copying {title or path.name}"
        report = self._count(words, path.stat().st_size)
        blob = self._held(path) or self._store.add_blob(path, move=move, report=report)
        if title is None:
            return Layer(media_type, blob.digest, blob.size)
        return Layer.of_file(media_type, blob.digest, blob.size, title)

    def _count(self, words: str, total: int) -> Count:
        self._counts += 1
        return Count(self._progress, words, self._counts, total)

    def _held(self, path: Path) -> BlobInfo | None:
        """The blob that a file is already; None where it isn't one."""
        digest = path.name.replace("-", ":", 1)
        with contextlib.suppress(StoreError):  # it isn't called as a blob is
            if self._store.blob(digest) == path.absolute():
                return BlobInfo(digest, path.stat().st_size)
        return None

    def _text(self, media_type: str, text: str | bytes) -> Layer:
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        blob = self._store.add_blob([raw])
        return Layer(media_type, blob.digest, blob.size)
