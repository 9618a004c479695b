"""What `caudal serve` says once it is ready, so that no fallback goes unnoticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caudal.backends.facts import ExecutorFacts
    from caudal.configuration.running import Running
    from caudal.fleet.fleet import Fleet
    from caudal.models.program import Task
    from caudal.service.service import Service


def banner(running: Running) -> str:
    """All of it, in a few lines."""
    fleet, address = running.fleet, running.address
    if fleet.serves_one:
        [served] = fleet.services
        lines = _about_one(served)
        route, body = _question(served.names[0], served.tasks)
    else:
        lines = _about_many(fleet, running.home)
        names = [member.name for member in fleet.members]
        route, body = _question(names[0] if names else "smollm2", frozenset(("generate",)))
    for each in running.routes.definitions:
        lines[each.name] = f"leads to {', '.join(each.targets)}"
    lines["address"] = f"{address}/v1"
    if running.ollama is not None:
        lines["as Ollama"] = running.ollama
    width = max(map(len, lines))
    table = [f"  {name:<{width}}  {value}" for name, value in lines.items()]
    key = " -H 'Authorization: Bearer YOUR_KEY'" if running.needs_key else ""
    curl = f"curl {address}/v1/{route} -H 'Content-Type: application/json'{key} \\\n    -d '{body}'"
    return "\n".join(["", *table, "", "Try it:", "", f"  {curl}", ""])


def _question(name: str, tasks: frozenset[Task]) -> tuple[str, str]:
    """A route to try a model by, and what to ask."""
    route, rest = (
        "chat/completions",
        '"max_tokens": 100, "temperature": 0, '
        '"messages": [{"role": "user", "content": "What is gravity?"}]',
    )
    if "embed" in tasks and "generate" not in tasks:
        route, rest = "embeddings", '"input": "Who was Albert Einstein?"'
    elif "generate" not in tasks:
        route, rest = "score", '"text_1": "Who was Einstein?", "text_2": "A physicist."'
    return route, f'{{"model": "{name}", {rest}}}'


def _about_many(fleet: Fleet, home: Path) -> dict[str, str]:
    from caudal.cli.formatting import format_bytes
    from caudal.fleet.durations import FOREVER, duration_text

    names = ", ".join(member.name for member in fleet.members)
    loaded = ", ".join(member.name for member in fleet.members if member.stay is not None)
    keep = fleet.keep_alive
    return {
        "models": names or f"none yet in {home}; fetch one with: caudal pull smollm2",
        "loaded": loaded or "none; each when it is first asked for",
        "memory": f"{format_bytes(fleet.memory)} for all that are loaded at a time (--memory)",
        "stay": ("for ever" if keep == FOREVER else f"{duration_text(keep)} after the last request")
        + " (--keep-alive)",
    }


def _about_one(served: Service) -> dict[str, str]:
    from caudal.chat.dialect import NONE_KNOWN
    from caudal.cli.formatting import format_bytes

    facts, loaded, executor = served.facts, served.facts.loaded, served.facts.loaded.executor
    limits = served.info.limits
    lines = {
        "model": f"{loaded.model}: {loaded.architecture}, {loaded.tensors_text}",
        "served as": ", ".join(served.names),
        "tokenizer": loaded.tokenizer_text,
        "computes with": f"{executor.backend} ({executor.instruction_set}), {executor.threads} "
        f"threads, activations {executor.activations}, keys and values {executor.kv_type}",
        "embeddings": loaded.embedding_text,
    }
    if served.adapters:
        lines["adapters"] = ", ".join(
            f"{each.name} (rank {each.rank}, {format_bytes(each.bytes)})"
            for each in served.adapters
        )
    if executor.weights_mapped:
        lines["weights"] = _mapped_weights(executor)
    if loaded.left_out:
        lines["left out"] = f"{', '.join(loaded.left_out)} (text is what is loaded)"
    if loaded.chat_template is not None:
        calls = f"tool calls as {facts.tool_parser}"
        if facts.tool_parser == NONE_KNOWN:
            calls = "tool calls only where they are enforced (no parser known for this template)"
        lines |= {
            "chat template": loaded.chat_template,
            "reads": f"{calls}, reasoning as {facts.reasoning_parser}",
        }
    if str(loaded.sampling):
        lines["sampling"] = f"{loaded.sampling} (recommended, where a request doesn't say)"
    if loaded.package is not None:
        lines["its package has"] = str(loaded.package)
    memory = loaded.memory
    if memory is not None:
        sequences = memory.sequences(loaded.max_model_len)
        lines["KV memory"] = (
            f"{format_bytes(memory.kv.bytes)}: {memory.kv.tokens} tokens, or "
            f"{sequences:.1f} sequences of the longest, {loaded.max_model_len}"
        )
        for pool in memory.windows:
            lines[f"windows of {pool.window}"] = (
                f"{format_bytes(pool.bytes)}: {pool.sequences(loaded.max_model_len):.1f} of them"
            )
        if memory.states is not None:
            lines["recurrent states"] = (
                f"{format_bytes(memory.states.bytes)}: of {memory.states.num_slots} sequences "
                "and snapshots"
            )
        places = {"memory": limits.prefix_memory}
        if limits.prefix_store is not None:
            places[limits.prefix_store] = limits.prefix_store_size
        held = [
            f"{format_bytes(size)} of {place} for about {memory.kept_tokens(size)} tokens"
            for place, size in places.items()
            if size
        ]
        if held:
            lines["more prefixes"] = f"{', '.join(held)}, where that is faster than computing"
    else:
        lines["longest input"] = f"{loaded.max_model_len} tokens"
    at_once = f", up to {limits.num_speculative_tokens} tokens at once"
    if limits.speculative == "ngram":
        lines["guesses by"] = f"looking up what followed the same text before{at_once}"
    draft = loaded.draft
    if draft is not None:
        weights = ""
        if draft.weight_bytes:
            mapped = ", mapped" if draft.weights_mapped else ""
            weights = (
                f"{draft.tensors_text}; {format_bytes(draft.weight_bytes)} of weights{mapped}, "
            )
        kept_text = f"{format_bytes(draft.memory.bytes)} for sequences"
        if draft.state_bytes:
            kept_text += f", {format_bytes(draft.state_bytes)} for states that wait"
        lines["guesses by"] = f"{draft.model}: {weights}{kept_text}{at_once}"
    return lines


def _mapped_weights(executor: ExecutorFacts) -> str:
    """Where weights are that aren't in memory of our own, and what that costs."""
    from caudal.cli.formatting import format_bytes

    mapped = f"{format_bytes(executor.weight_bytes)}, mapped from the disk"
    if not executor.disk_bytes_per_token:
        return mapped
    missing = format_bytes(executor.disk_bytes_per_token)
    if not executor.disk_rate:
        return f"{mapped}; memory is short, so a token reads {missing} of them"
    most = executor.disk_rate / executor.disk_bytes_per_token
    return (
        f"{mapped}; memory is short, so a token reads {missing} of them: at most {most:.2g} "
        f"tokens/s, as the disk gives {format_bytes(round(executor.disk_rate))}/s"
    )
