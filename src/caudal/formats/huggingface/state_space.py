"""Layers that are a Mamba-2 state space, as several families' checkpoints have them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from caudal.formats.huggingface.rows import Rows, mapped, reshaped
from caudal.formats.huggingface.tensor_rules import Found, Rule, squeezed

UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])
"""What `time_step_limit` is where steps have no limit, as transformers has written it so far."""


def mamba2(module: str, *, groups_key: str | None = None) -> dict[str, str | Rule]:
    """The table of a layer's tensors.

    Args:
        module: What their names begin with.
        groups_key: How many groups the norm has, in config.json; None: one.
    """

    def norm(found: Found) -> Mapping[str, Rows]:
        groups = 1 if groups_key is None else found.config.positive(groups_key)
        channels = found.rows.shape[0]
        if channels % groups != 0:
            raise ValueError(f"{channels} channels aren't {groups} groups")
        return {found.named("ssm_norm"): reshaped(found.rows, (groups, channels // groups))}

    return {
        f"{module}.in_proj": "ssm_in",
        f"{module}.conv1d": squeezed("ssm_conv1d"),
        f"{module}.dt_bias": "ssm_dt.bias",
        f"{module}.A_log": _column("ssm_a", decay=True),
        f"{module}.D": _column("ssm_d"),
        f"{module}.norm": norm,
        f"{module}.out_proj": "ssm_out",
    }


def _column(name: str, *, decay: bool = False) -> Rule:
    """A number for each head, as converters write it; `decay`: -exp of it."""

    def rule(found: Found) -> Mapping[str, Rows]:
        rows = mapped(found.rows, lambda values: -np.exp(values)) if decay else found.rows
        return {name: reshaped(rows, (rows.shape[0], 1))}

    return rule
