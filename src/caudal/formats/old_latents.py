"""DeepSeek's GGUF files of before April 2025, read as those of since then.

Keys and values of a latent were one matrix then, `attn_kv_b`, and the keys of sizes those of heads.
Since then they are `attn_k_b`, with rows and columns exchanged, and `attn_v_b`, and there is one
head of keys: the latent itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caudal.errors import ModelLoadError
from caudal.formats.huggingface.rows import Bytes, Reordered, Rows, dequantised, transposed
from caudal.formats.model_file import ModelFile

_ARCHITECTURE = "deepseek2"
_JOINED = ".attn_kv_b.weight"


def with_latents(file: ModelFile) -> ModelFile:
    """The file, or what one of before April 2025 comes to.

    Raises:
        ModelLoadError: Its keys are missing, or don't fit its matrices.
    """
    prefix = f"{_ARCHITECTURE}.attention"
    is_old = (
        file.metadata.get("general.architecture") == _ARCHITECTURE
        and f"{prefix}.key_length_mla" not in file.metadata
        and any(name.endswith(_JOINED) for name in file.tensors)
    )
    return _SplitLatents(file) if is_old else file


def split_latents(
    rows: Rows, *, heads: int, plain: int, values: int, rank: int
) -> tuple[Rows, Rows]:
    """Keys and values out of the one matrix: (heads, rank, plain) and (heads, values, rank).

    Keys that are quantised become float32, as their blocks are rows of what is exchanged.

    Raises:
        ValueError: The matrix has another shape.
    """
    if rows.shape != (heads * (plain + values), rank):
        raise ValueError(f"has shape {list(rows.shape)}, not {[heads * (plain + values), rank]}")
    numbers = np.arange(rows.shape[0]).reshape(heads, plain + values)
    keys = Reordered(rows, numbers[:, :plain].ravel(), (heads, plain, rank))
    return (
        transposed(dequantised(keys)),
        Reordered(rows, numbers[:, plain:].ravel(), (heads, values, rank)),
    )


class _SplitLatents(ModelFile):
    """A file whose `attn_kv_b` are read as `attn_k_b` and `attn_v_b`."""

    def __init__(self, file: ModelFile) -> None:
        prefix = f"{_ARCHITECTURE}.attention"
        heads = file.get_int(f"{prefix}.head_count")
        channels = file.get_int(f"{prefix}.key_length")
        values = file.get_int(f"{prefix}.value_length")
        rank = file.get_int(f"{prefix}.kv_lora_rank")
        rotated = file.get_int(f"{_ARCHITECTURE}.rope.dimension_count")
        if not all(0 < size < 2**31 for size in (heads, values, rank, rotated, channels - rotated)):
            raise ModelLoadError(
                str(file.path),
                f"{prefix}: {heads} heads (head_count) of {channels} key channels (key_length), "
                f"of which {rotated} are rotated, and {values} value channels (value_length), of a "
                f"latent of {rank} (kv_lora_rank)",
            )
        sizes = {
            f"{prefix}.head_count_kv": 1,
            f"{prefix}.key_length": rank + rotated,
            f"{prefix}.value_length": rank,
            f"{prefix}.key_length_mla": channels,
            f"{prefix}.value_length_mla": values,
        }
        self._file = file
        self._made: dict[str, Rows] = {}
        for name in (name for name in file.tensors if name.endswith(_JOINED)):
            layer = name.removesuffix(_JOINED)
            try:
                keys, of_values = split_latents(
                    _Stored(file, name),
                    heads=heads,
                    plain=channels - rotated,
                    values=values,
                    rank=rank,
                )
            except ValueError as error:
                raise ModelLoadError(str(file.path), f"tensor {name} {error}") from error
            self._made[f"{layer}.attn_k_b.weight"] = keys
            self._made[f"{layer}.attn_v_b.weight"] = of_values
        kept = {name: info for name, info in file.tensors.items() if not name.endswith(_JOINED)}
        made = {name: rows.info_as(name) for name, rows in self._made.items()}
        metadata = {**file.metadata, **sizes}
        types = {key: type(value).__name__ for key, value in metadata.items()}
        super().__init__(file.path, metadata, types, {**kept, **made})

    def tensor_rows(self, name: str, first: int, count: int) -> npt.NDArray[np.uint8]:
        """See `ModelFile.tensor_rows`."""
        self.tensor(name)
        if name in self._made:
            return np.ascontiguousarray(self._made[name].read(first, count)).reshape(-1)
        return self._file.tensor_rows(name, first, count)

    def tensor_place(self, name: str) -> tuple[int, int] | None:
        """See `ModelFile.tensor_place`."""
        self.tensor(name)
        return None if name in self._made else self._file.tensor_place(name)


class _Stored(Rows):
    """A file's tensor."""

    def __init__(self, file: ModelFile, name: str) -> None:
        info = file.tensor(name)
        super().__init__(name, info.type, info.shape)
        self._file = file

    def read(self, first: int, count: int) -> Bytes:
        """See `Rows.read`."""
        return self._file.tensor_rows(self.name, first, count).reshape(count, -1)
