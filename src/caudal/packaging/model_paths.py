"""Which files make up the model, or the adapter, that somebody points to."""

from __future__ import annotations

from pathlib import Path

from caudal.errors import ModelLoadError
from caudal.formats.lora.peft import WEIGHTS as ADAPTER_WEIGHTS
from caudal.formats.lora.peft_config import CONFIG as ADAPTER_CONFIG
from caudal.formats.model_folder import CONFIG, ModelFolder
from caudal.formats.split_names import SplitName


def model_files_at(path: Path) -> dict[str, Path]:
    """The files of what lies at a path, by their names within the model.

    Args:
        path: A GGUF file, of a split model any of them; a folder as Hugging Face lays it out, or
            PEFT, or with GGUF files; or the safetensors file in such a folder.

    Raises:
        ModelLoadError: There is no model there, or not all of it.
        OSError: It can't be looked into.
    """
    if path.suffix == ".safetensors" and path.is_file():
        path = path.parent
    if not path.is_dir():
        return _gguf_files(path)
    if (path / ADAPTER_CONFIG).exists():
        if not (path / ADAPTER_WEIGHTS).exists():
            raise ModelLoadError(
                str(path), f"it has no {ADAPTER_WEIGHTS}; save the adapter as safetensors"
            )
        return {name: path / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)}
    if (path / CONFIG).exists():
        return dict(ModelFolder.scan(path).files)
    files = sorted(path.glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            str(path),
            f"it has neither {CONFIG} with a model, nor {ADAPTER_CONFIG} with an adapter, nor GGUF "
            "files",
        )
    return {file.name: file for file in files}


def _gguf_files(path: Path) -> dict[str, Path]:
    name = SplitName.parse(path.name)
    if name is None or name.count == 0:
        return {path.name: path}
    files = {each: path.with_name(each) for each in name.names}
    missing = [each for each, file in files.items() if not file.is_file()]
    if missing:
        raise ModelLoadError(
            str(path), f"it is part of a split model, and beside it {missing[0]} is missing"
        )
    return files
