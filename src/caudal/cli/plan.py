"""`caudal plan`: what a model takes for so many users, and what fits, before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caudal.cli import quantities
from caudal.cli.output_file import checked_output, write_output

if TYPE_CHECKING:
    from caudal.planning.figures import ModelFigures
    from caudal.planning.speed import Machine

_FIGURES = "Instead of a model: its figures"
_MACHINE = "How fast"


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name from `caudal list`, `hf:ORG/REPO[:FILE or quantisation]` (of which "
            "config.json or the file's header is fetched), a .gguf file, a model's folder, or a "
            "config.json.",
            show_default=False,
        ),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx",
            help="Tokens of each conversation, prompt and answer together.  [default: 8192, or "
            "what the model was trained for]",
            show_default=False,
        ),
    ] = None,
    users: Annotated[int, typer.Option(help="Conversations at once.")] = 1,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A smaller model that guesses for it, or `mtp` for a layer of its own "
            "(`caudal serve --speculative draft:MODEL`, `mtp`).",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            metavar="SIZE",
            help="Memory there is, e.g. 24GiB.  [default: this machine's]",
            show_default=False,
        ),
    ] = None,
    kv_type: Annotated[
        str,
        typer.Option(
            help="Number format of keys and values: f16, f32 or q8; for figures alone also bf16, "
            "fp8 and q4.",
        ),
    ] = "f16",
    shared_prefix: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", help="Tokens that all conversations begin with; they are kept once."
        ),
    ] = 0,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the weights would be quantised to, e.g. Q4_K_M.  [default: as they are]",
            show_default=False,
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of an iteration, as of `caudal serve`.  [default: 256]",
            show_default=False,
        ),
    ] = None,
    prefix_memory: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            metavar="SIZE",
            help="Memory for computed prefixes that had to be given up, as of `caudal serve`.",
            show_default=False,
        ),
    ] = None,
    prefix_store_size: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            metavar="SIZE",
            help="Space on a disk for those (`caudal serve --prefix-store DIR`).",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        bool,
        typer.Option("--table", help="Show how many users fit 24, 48 and 80 GiB, by context."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with plots and tables.",
            callback=checked_output,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as one JSON object.")
    ] = False,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            parser=quantities.rate,
            metavar="RATE",
            help="Bytes that the machine reads a second, e.g. 460GB/s.  [default: measured here, "
            "in about a second]",
            rich_help_panel=_MACHINE,
            show_default=False,
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(
            parser=quantities.operations,
            metavar="COUNT",
            help="Operations that it computes a second, e.g. 90T: then prompts have a figure, too.",
            rich_help_panel=_MACHINE,
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            help="Layers that keep keys and values.", rich_help_panel=_FIGURES, show_default=False
        ),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(help="KV heads of a layer.", rich_help_panel=_FIGURES, show_default=False),
    ] = None,
    head_dim: Annotated[
        int | None,
        typer.Option(help="Channels of a head.", rich_help_panel=_FIGURES, show_default=False),
    ] = None,
    value_dim: Annotated[
        int | None,
        typer.Option(
            help="Channels of a value's head.  [default: as of a key's]",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    latent: Annotated[
        int | None,
        typer.Option(
            help="Numbers that a layer keeps of a token instead, of a latent (MLA): 576 of "
            "DeepSeek V3.",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Tokens that layers with a window see.",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    window_layers: Annotated[
        int | None,
        typer.Option(
            help="How many of the layers have that window.",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    state_size: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            metavar="SIZE",
            help="What recurrent layers keep of a conversation, e.g. 19MiB.",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            parser=quantities.whole,
            metavar="COUNT",
            help="Weights, e.g. 8B.",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    active_parameters: Annotated[
        int | None,
        typer.Option(
            parser=quantities.whole,
            metavar="COUNT",
            help="Weights that a token goes through, where there are experts.  [default: all]",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(
            help="Bits of a weight.  [default: those of --quant, or 16]",
            rich_help_panel=_FIGURES,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say what a model takes for so many users, and what fits: nothing is loaded.

    The arithmetic is that of `caudal serve`, and is shown line by line: weights, keys and values
    of each kind of layer, windows, latents, recurrent states, workspace. Where something doesn't
    fit, it says what would; where it does, how to serve it.

    For example:

        caudal plan smollm2 --ctx 8192 --users 16
        caudal plan ./config.json --quant Q4_K_M --ctx 32768 --memory 24GiB
        caudal plan hf:Qwen/Qwen3-8B --users 8 --table
        caudal plan hf:Qwen/Qwen3-8B --draft hf:Qwen/Qwen3-0.6B
        caudal plan --layers 32 --kv-heads 8 --head-dim 128 --parameters 8B --quant Q4_K_M
    """
    from caudal.machine import total_memory
    from caudal.planning.kv_types import find_kv_type
    from caudal.planning.plan import Demand
    from caudal.planning.report import make_report

    given = {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
        "latent": latent,
        "window": window,
        "window_layers": window_layers,
        "parameters": parameters,
        "active": active_parameters,
        "bits": bits,
        "state_bytes": state_size,
    }
    figures = _figures(model, layers, given, ctx, quant, with_ahead=draft == "mtp")
    if figures.is_encoder:
        others = {
            "--shared-prefix": shared_prefix or None,
            "--max-num-batched-tokens": max_num_batched_tokens,
            "--prefix-memory": prefix_memory,
            "--prefix-store-size": prefix_store_size,
            "--bandwidth": bandwidth,
            "--flops": flops,
        }
        for option, value in others.items():
            if value is not None:
                raise typer.BadParameter(f"{model} is an encoder, of which {option} says nothing")
    if draft is not None and draft != "mtp":
        figures = replace(figures, draft=_draft_of(figures, draft))
    usual = min(8192, figures.context_length or 8192)
    demand = Demand(
        context=usual if ctx is None else ctx,
        users=users,
        shared_prefix=shared_prefix,
        kv_type=find_kv_type(kv_type),
        prefix_memory=prefix_memory or 0,
        prefix_store_size=prefix_store_size,
        **({} if max_num_batched_tokens is None else {"batch": max_num_batched_tokens}),
    )
    machine = None if figures.is_encoder else _machine(figures, bandwidth, flops)
    report = make_report(figures, demand, total_memory() if memory is None else memory, machine)
    if html is not None:
        from caudal.cli.plan_page import plan_page

        write_output(html, plan_page(report).encode())
    if as_json:
        import json

        typer.echo(json.dumps(report.to_json(), indent=2))
        return
    from caudal.cli.plan_text import plan_text

    for line in plan_text(report, table=table):
        typer.echo(line)
    if html is not None:
        typer.echo(f"\nA page with plots: {html}")


_PADDING = 2048
"""Rows that may fill up a matrix of embeddings: headers count them as tokens. Vocabularies that are
others differ by more."""


def _draft_of(figures: ModelFigures, name: str) -> ModelFigures:
    """The figures of a draft model.

    Raises:
        BadParameter: It can't guess for the model.
    """
    from caudal.planning.reading import read_figures

    draft = read_figures(name, context=None, quantisation=None)
    if draft.is_encoder or figures.is_encoder:
        raise typer.BadParameter("encoders generate nothing to guess", param_hint="--draft")
    tokens, others = draft.vocabulary, figures.vocabulary
    if tokens and others and abs(tokens - others) > _PADDING:
        raise typer.BadParameter(
            f"{name} can't guess for this model: it knows {tokens} tokens, and the model {others}",
            param_hint="--draft",
        )
    return draft


def _figures(
    model: str | None,
    layers: int | None,
    given: dict[str, int | float | None],
    ctx: int | None,
    quant: str | None,
    *,
    with_ahead: bool,
) -> ModelFigures:
    """The model's, or those on the command line."""
    from caudal.planning.plain import GivenFigures, bits_of, figures_given
    from caudal.planning.reading import read_figures

    said = {name: value for name, value in given.items() if value is not None}
    if model is not None:
        if layers is not None or said:
            raise typer.BadParameter("a MODEL says its figures itself; leave the others out")
        return read_figures(model, context=ctx, quantisation=quant, with_ahead=with_ahead)
    if layers is None:
        raise typer.BadParameter("name a MODEL, or give its figures: --layers, --kv-heads, …")
    if with_ahead:
        raise typer.BadParameter("only a MODEL has a layer that guesses", param_hint="--draft")
    if quant is not None:
        if "bits" in said:
            raise typer.BadParameter("--bits and --quant both say what a weight takes: give one")
        said["bits"] = bits_of(quant)
    return figures_given(
        GivenFigures(layers=layers, **said),  # type: ignore[arg-type]  # each is of its own type
        name=f"{layers} layers",
        quantisation=quant or "",
    )


def _machine(figures: ModelFigures, bandwidth: float | None, flops: float | None) -> Machine | None:
    """What the model would run on: as somebody says, or as it is measured."""
    from caudal.planning.speed import Machine

    if bandwidth is not None:
        return Machine(bandwidth=bandwidth, is_measured=False, operations=flops)
    from caudal.backends.native.bandwidth import read_bandwidth
    from caudal.errors import ModelLoadError
    from caudal.formats.tensor_types import TensorType
    from caudal.machine import usable_processors

    try:
        busy = os.getloadavg()[0] > usable_processors() / 2
        size = round(figures.passed.read(1))
        measured = read_bandwidth(figures.type or TensorType.F32, size, usable_processors())
    except ModelLoadError:  # there isn't the memory to measure in
        return None
    return Machine(bandwidth=measured, is_measured=True, is_busy=busy, operations=flops)
