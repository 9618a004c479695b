"""All fuzz targets."""

from __future__ import annotations

from fuzz import adapter_targets, model_targets, request_targets
from fuzz.json_mutations import mutate_json, mutate_request
from fuzz.target import Target

TARGETS = {
    target.name: target
    for target in (
        Target("gguf", model_targets.gguf),
        Target("hyperparameters", model_targets.hyperparameters, mutate_json),
        Target("safetensors", model_targets.safetensors),
        Target("tokenizer", model_targets.tokenizer, mutate_json),
        Target("encoder", model_targets.encoder, mutate_json),
        Target("decoder", model_targets.decoder, mutate_json),
        Target("plan", model_targets.plan, mutate_json),
        Target("adapter", adapter_targets.gguf_adapter),
        Target("peft", adapter_targets.peft_adapter, mutate_json),
        Target("template", request_targets.template),
        Target("go_template", request_targets.go_template),
        Target("modelfile", model_targets.modelfile),
        Target("schema", request_targets.schema, mutate_json),
        Target("regex", request_targets.regex),
        Target("grammar", request_targets.grammar),
        Target("http", request_targets.http, mutate_request),
    )
}
