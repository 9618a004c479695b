"""Transformers' side: makes a model of numpy's weights, and asks it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import transformers

from references.reference import TOKENS, Recorded, Reference
from references.weights import random_weight, tokenizer_json

Tensors = dict[str, tuple[list[int], float, float]]


def ask(reference: Reference, path: Path) -> Recorded:
    """Make the model, save its folder, and say what it gives.

    Args:
        reference: The model.
        path: Where the folder goes.
    """
    model, tensors = make(reference, path)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].double()
    scores = torch.log_softmax(logits, -1)[torch.arange(len(TOKENS) - 1), torch.tensor(TOKENS[1:])]
    return Recorded(
        config=json.loads((path / "config.json").read_text()),
        tensors=tensors,
        logprobs=scores.tolist(),
        tolerance=reference.tolerance,
    )


def make(reference: Reference, path: Path) -> tuple[Any, Tensors]:
    """Make a model, and save its folder.

    Returns:
        The model, and the shape, mean and deviation of each tensor.
    """
    settings = dict(reference.config)
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    auto = getattr(transformers, reference.auto)
    model = auto.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    tensors = {}
    # The names that are saved, which may be others than those of the modules.
    model.save_pretrained(path)
    saved = _saved_tensors(path)
    for name, initial in saved.items():
        mean, deviation = _spread(reference, name, initial)
        tensors[name] = (list(initial.shape), mean, deviation)
    weights = {
        name: torch.from_numpy(random_weight(name, *spread)) for name, spread in tensors.items()
    }
    _save(path, weights)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    model = auto.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    return model, tensors


def _saved_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(sorted(load_file(path / "model.safetensors").items()))


def _save(path: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def _spread(reference: Reference, name: str, initial: Any) -> tuple[float, float]:
    """Mean and deviation of a tensor's values: vectors vary around what they begin as."""
    for part, spread in reference.spread.items():
        if part in name:
            return spread
    if initial.ndim > 1:
        return 0.0, 1 / math.sqrt(initial.shape[-1])
    return round(float(initial.double().mean()), 3), 0.1
