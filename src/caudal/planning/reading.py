"""From what somebody names to the figures of a model; weights are neither read nor fetched."""

from __future__ import annotations

from pathlib import Path

from caudal.errors import ModelLoadError, ParameterError
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.config import Config
from caudal.formats.huggingface.model import open_folder
from caudal.formats.huggingface.sketch import sketch_decoder
from caudal.formats.model_folder import CONFIG, WEIGHTS, WEIGHTS_INDEX, ModelFolder
from caudal.loading.files import open_model
from caudal.models import build_ahead, build_program, has_ahead
from caudal.planning.figures import ModelFigures
from caudal.planning.of_program import figures_of_program
from caudal.planning.plain import figures_of_foreign, layers_of_config, layers_of_gguf
from caudal.store import Store, StoredModel
from caudal.store.names import HubReference, parse_model_name


def read_figures(
    model: str,
    *,
    context: int | None = None,
    quantisation: str | None = None,
    with_ahead: bool = False,
    store: Store | None = None,
) -> ModelFigures:
    """The figures of a model.

    Args:
        model: A name that the store has, `hf:ORG/REPO`, a GGUF file, a folder, or a config.json.
        context: Tokens of a sequence that will be served; None: the model's own length.
        quantisation: What its weights would become; None: as they are.
        with_ahead: Also those of its own layer that predicts further ahead.
        store: Where models are kept; default: the user's store.

    Raises:
        ParameterError: There is no such layer, or no file of the model's that says what it is.
        ModelNotFoundError: There is no such model, or only its weights say what it is.
        ModelLoadError: A file can't be used.
        ConversionError: There is no such quantisation.
        StoreError: The Hub can't be asked.
    """
    reader = _Reader(model, context, quantisation, with_ahead=with_ahead)
    path = Path(model)
    if path.suffix == ".json" and path.is_file():
        return reader.of_folder(ModelFolder({CONFIG: path}))
    if path.is_dir() and CONFIG in (folder := ModelFolder.scan(path)) and not folder.is_complete:
        return reader.of_folder(folder)
    store = store or Store()
    stored = store.find(model)
    if stored is not None:
        return reader.of_stored(stored)
    reference = parse_model_name(model)
    if isinstance(reference, HubReference):
        from caudal.store.hub.configuration import hub_configuration

        with hub_configuration(reference) as found:
            if found.folder is not None:
                return reader.of_folder(found.folder, found.weights, served_as=reference.name)
            assert found.headers is not None
            return reader.of_stored(found.headers)
    return reader.of_stored(store.resolve(model))  # which says how to get it


class _Reader:
    def __init__(
        self, name: str, context: int | None, quantisation: str | None, *, with_ahead: bool
    ) -> None:
        self._name = name
        self._context = context
        self._quantisation = quantisation
        self._with_ahead = with_ahead

    def of_stored(self, stored: StoredModel) -> ModelFigures:
        """A model whose files are all here: of those only what describes them is read."""
        try:
            with open_model(
                stored, served_length=self._context, with_ahead=self._with_ahead
            ) as files:
                layer = None
                if self._with_ahead:
                    if not has_ahead(files.weights):
                        raise _no_layer("it has no layer that predicts tokens further ahead")
                    layer = build_ahead(files.weights)
                return figures_of_program(
                    files.weights,
                    files.program,
                    name=self._name,
                    source="its files' headers",
                    file_bytes=stored.size,
                    quantisation=self._quantisation,
                    served_as=self._name,
                    layer=layer,
                )
        except ModelLoadError as error:
            return self._of_foreign(stored, error)

    def of_folder(
        self, folder: ModelFolder, weights: int | None = None, *, served_as: str = ""
    ) -> ModelFigures:
        """A folder that needn't be complete: config.json will do.

        Args:
            folder: Its files.
            weights: Bytes of its weights' files, wherever they are; None: nobody says.
            served_as: What `caudal serve` has to be told to serve it; empty: it isn't all here.
        """
        if self._with_ahead:
            raise _no_layer("its own layer is known once its files are here")
        config = Config.of(folder)
        here = _bytes_here(folder)
        weights = here if weights is None else weights
        try:
            if here is not None:
                with open_folder(folder, any_column_order=True) as file:
                    program = build_program(file, served_length=self._context)
                    return figures_of_program(
                        file,
                        program,
                        name=self._name,
                        source="config.json and its files' headers",
                        file_bytes=here,
                        quantisation=self._quantisation,
                    )
            sketch = sketch_decoder(config)
            program = build_program(sketch, served_length=self._context)
            return figures_of_program(
                sketch,
                program,
                name=self._name,
                source=CONFIG,
                file_bytes=weights if weights is not None else _bytes_said(folder),
                quantisation=self._quantisation,
                served_as=served_as,
            )
        except ModelLoadError as error:
            weights = weights if weights is not None else _bytes_said(folder)
            return self._of_foreign_config(config, weights, error)

    def _of_foreign(self, stored: StoredModel, error: ModelLoadError) -> ModelFigures:
        if self._with_ahead:
            raise error
        folder = stored.folder
        if folder is not None:
            return self._of_foreign_config(Config.of(folder), _bytes_here(folder), error)
        with GGUFFile.open(stored.path, stored.paths) as file:
            if self._quantisation is not None:
                raise error
            return figures_of_foreign(
                layers_of_gguf(file),
                name=self._name,
                source="its files' headers",
                architecture=file.architecture,
                reason=error.reason,
                context_length=file.get_int(f"{file.architecture}.context_length", None),
                file_bytes=stored.size,
                parameters=sum(tensor.num_elements for tensor in file.tensors.values()),
            )

    def _of_foreign_config(
        self, config: Config, weights: int | None, error: ModelLoadError
    ) -> ModelFigures:
        if weights is None or self._quantisation is not None:
            raise error
        length = config.content.get("max_position_embeddings")
        return figures_of_foreign(
            layers_of_config(config),
            name=self._name,
            source=CONFIG,
            architecture=next(filter(None, config.model_types), ""),
            reason=error.reason,
            context_length=length if type(length) is int and length > 0 else None,
            file_bytes=weights,
        )


def _bytes_here(folder: ModelFolder) -> int | None:
    """Bytes of the weights' files; None where they aren't all here."""
    if WEIGHTS in folder:
        names = [WEIGHTS]
    elif WEIGHTS_INDEX in folder:
        index = folder.read_object(WEIGHTS_INDEX)
        names = sorted({str(each) for each in index.get("weight_map", dict).values()})
    else:
        return None
    if any(name not in folder for name in names):
        return None
    return sum(folder.path(name).stat().st_size for name in names)


def _bytes_said(folder: ModelFolder) -> int | None:
    """Bytes of weights that the index says there are; None where there is none."""
    if WEIGHTS_INDEX not in folder:
        return None
    total = folder.read_object(WEIGHTS_INDEX).get("metadata", dict, {}).get("total_size")
    return total if type(total) is int and total > 0 else None


def _no_layer(why: str) -> ParameterError:
    return ParameterError("draft", f"mtp can't guess for this model: {why}")
