"""The fingerprint changes with what may change answers, and with nothing else."""

from __future__ import annotations

from dataclasses import replace

from caudal.backends.backend import MemoryKinds, PagedKV
from caudal.service.facts import ServedFacts
from support.fake_facts import EXECUTOR_FACTS, fake_facts


def test_the_fingerprint_changes_with_what_decides_answers():
    facts = ServedFacts(loaded=fake_facts(), tool_parser="hermes", reasoning_parser="none")
    deciding = [replace(facts, tool_parser="mistral"), replace(facts, reasoning_parser="think")]
    deciding += [
        replace(facts, loaded=replace(facts.loaded, **change))
        for change in (
            {"architecture": "llama"},
            {"matrices": {"Q4_0": 1}},
            {"tokenizer": "gpt2"},
            {"vocab_size": 258},
            {"chat_template": "from the model file"},
        )
    ]
    deciding += [
        replace(facts, loaded=fake_facts(executor=replace(EXECUTOR_FACTS, **change)))
        for change in (
            {"backend": "native"},
            {"instruction_set": "avx2"},
            {"activations": "f32"},
            {"kv_type": "f32"},
        )
    ]
    fingerprints = {each.fingerprint for each in (facts, *deciding)}
    assert len(fingerprints) == 1 + len(deciding)


def test_the_fingerprint_does_not_depend_on_threads_or_memory():
    facts = ServedFacts(loaded=fake_facts())
    pool = MemoryKinds(kv=PagedKV(num_blocks=9, block_size=16, bytes_per_token=8))
    threads = replace(EXECUTOR_FACTS, threads=8)
    for loaded in (
        fake_facts(memory=pool),
        fake_facts(executor=threads),
        fake_facts(model="other"),
    ):
        assert ServedFacts(loaded=loaded).fingerprint == facts.fingerprint
