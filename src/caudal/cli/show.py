"""`caudal show`: what a model is and what it costs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli.formatting import format_bytes, format_count

if TYPE_CHECKING:
    from caudal.cli.model_description import ModelDescription
    from caudal.store.package import Package

_LINE = 72
"""Characters of a text that are shown among facts."""


def show(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name from `caudal list`, or the path of a .gguf file or a model's folder.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all facts as one JSON object.")
    ] = False,
    modelfile: Annotated[
        bool, typer.Option("--modelfile", help="Print a Modelfile that makes the same model.")
    ] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Print the template of its prompts.")
    ] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Print its parameters.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Print its system prompt.")] = False,
    license_: Annotated[
        bool, typer.Option("--license", help="Print the texts of its licences.")
    ] = False,
) -> None:
    """Show what a model is and what serving it takes, without loading it.

    Says which architecture, tokenizer and tensor types its file has, what travels with it, how much
    memory each token of a conversation needs, and how many conversations have room on this machine.

    For example:

        caudal show smollm2
        caudal show ./model.gguf --json
        caudal show smollm2 --modelfile > Modelfile
    """
    from caudal.store import Store

    parts = {
        "modelfile": modelfile,
        "template": template,
        "parameters": parameters,
        "system": system,
        "licence": license_,
    }
    asked = [name for name, wanted in {**parts, "json": as_json}.items() if wanted]
    if len(asked) > 1:
        raise typer.BadParameter(
            "only one of --json, --modelfile, --template, --parameters, --system and --license "
            "can be asked for"
        )
    stored = Store().resolve(model)
    if asked and not as_json:
        from caudal.packaging.description import describe_package

        text = str(getattr(describe_package(stored), asked[0]))
        typer.echo(text, nl=not text.endswith("\n"))
        return
    from caudal.cli.model_description import describe_model  # loads much more

    description = describe_model(stored)
    if as_json:
        import dataclasses
        import json

        facts = dataclasses.asdict(description) | {"package": dataclasses.asdict(stored.package)}
        typer.echo(json.dumps(facts, indent=2, default=str))
        return
    typer.echo(description.name)
    if description.description:
        typer.echo(f"  {description.description}")
    for heading, lines in (
        ("Model", list(_model_facts(description))),
        ("Package", list(_package_facts(stored.package))),
        ("Memory", list(_memory_facts(description))),
    ):
        if not lines:
            continue
        typer.echo(f"\n{heading}")
        width = max(len(name) for name, _ in lines)
        for name, value in lines:
            typer.echo(f"  {name:<{width}}  {value}")
    if description.obstacle is not None:
        typer.echo(f"\nCaudal cannot serve it: {description.obstacle}")


def _model_facts(model: ModelDescription) -> Iterator[tuple[str, str]]:
    yield "architecture", model.architecture
    yield "parameters", format_count(model.parameters)
    if model.context_length is not None:
        yield "context length", f"{model.context_length:,} tokens"
    whole = sum(share.bytes for share in model.tensor_types.values()) or 1
    for number, (name, share) in enumerate(model.tensor_types.items()):
        percent = 100 * share.bytes / whole
        tensors = "tensor" if share.tensors == 1 else "tensors"
        yield (
            "" if number else "tensor types",
            f"{name:<6} {percent:5.1f} % of the bytes, {share.tensors} {tensors}",
        )
    yield "quantisation", model.quantisation
    if model.capabilities:
        yield "capabilities", ", ".join(model.capabilities)
    if model.tokenizer:
        size = "" if model.vocabulary is None else f", {model.vocabulary:,} tokens"
        yield "tokenizer", model.tokenizer + size
    if model.generates:
        yield "chat template", "yes" if model.chat_template else "no"
    if model.embedding:
        yield "embeddings", model.embedding
    if model.left_out:
        yield "left out", f"{', '.join(model.left_out)} (text is what is loaded)"
    yield "licence", model.licence or "unknown"
    if model.sources:
        yield "from", ", ".join(model.sources)
    for number, path in enumerate(model.paths):
        yield "" if number else "file", path


def _package_facts(package: Package) -> Iterator[tuple[str, str]]:
    """What travels with the weights, each in a line."""
    from caudal.packaging.parameters import parameter_lines, without_effect

    idle = without_effect(package.parameters)
    for name, text in (("template", package.template), ("system", package.system)):
        if text is not None:
            yield name, _in_a_line(text)
    for number, (name, value) in enumerate(parameter_lines(package.parameters)):
        effect = "  (has no effect here)" if name in idle else ""
        yield "" if number else "parameters", f"{name} {_in_a_line(value)}{effect}"
    for number, message in enumerate(package.messages):
        yield "" if number else "messages", f"{message.role}: {_in_a_line(message.content)}"
    for name, paths in (("adapter", package.adapters), ("projector", package.projectors)):
        for path in paths:
            yield name, str(path)
    for number, licence in enumerate(package.licences):
        yield "" if number else "licences", _in_a_line(licence)


def _in_a_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LINE else f"{words[:_LINE]}…"


def _memory_facts(model: ModelDescription) -> Iterator[tuple[str, str]]:
    yield "file", format_bytes(model.size)
    if model.weights is not None:
        where = "mapped from the disk, as memory is short" if model.weights.mapped else "in memory"
        yield "weights", f"{format_bytes(model.weights.bytes)} {where}"
    memory = model.kv_memory
    if memory is None:
        return
    kinds, length = memory.kinds, memory.usual_length
    yield "keys and values", f"{format_bytes(memory.bytes_per_token)} per token"
    for pool in kinds.windows:
        yield (
            f"window of {pool.window:,}",
            f"{format_bytes(pool.bytes_per_token)} per token in it; "
            f"{format_bytes(pool.sequence_bytes(length))} at most",
        )
    if kinds.states is not None:
        yield "recurrent states", f"{format_bytes(kinds.states.bytes_per_slot)} per sequence"
    yield "a sequence", f"{format_bytes(memory.sequence_bytes)} for {length:,} tokens"
    yield (
        "KV pool",
        f"{format_bytes(memory.bytes)} by default here: {memory.tokens:,} tokens, or "
        f"{memory.sequences:,.1f} sequences of {memory.max_model_len:,}",
    )
    for pool in kinds.windows:
        yield (
            f"windows of {pool.window:,}",
            f"{format_bytes(pool.bytes)} by default here: {pool.sequences(length):,.1f} of them",
        )
    if kinds.states is not None:
        yield (
            "slots for states",
            f"{format_bytes(kinds.states.bytes)} by default here: {kinds.states.num_slots:,}, "
            "for sequences and snapshots",
        )
