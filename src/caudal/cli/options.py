"""Options that several commands share: how a model is loaded and how its engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caudal.backends.native import options as native
from caudal.cli.serve_options import setting_option

Model = Annotated[
    str,
    typer.Argument(
        help="A name as for `caudal pull`, or the path of a GGUF file or of a model's "
        "folder. A named model that is not on this machine yet is fetched.",
        metavar="MODEL",
    ),
]
MaxModelLen = Annotated[int | None, setting_option("max_model_len")]
ChatTemplate = Annotated[Path | None, setting_option("chat_template")]
Threads = Annotated[int | None, setting_option("threads")]
PackedSize = Annotated[int | None, setting_option("packed_size", envvar="CAUDAL_PACKED_SIZE")]
KvType = Annotated[native.KVType, setting_option("kv_type")]
Activations = Annotated[native.Activations, setting_option("activations")]
