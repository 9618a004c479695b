"""Engines on tiny models, of random configurations, that are given random requests at random times.

What each request gets must be what it gets alone of an engine without anything that makes it
faster: a prefix cache, guesses, company.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from msgspec import structs

from caudal.backends.backend import BackendOptions, MemoryPlan, RunLimits
from caudal.backends.native.backend import NativeBackend
from caudal.backends.native.executor import NativeExecutor
from caudal.backends.native.options import KVType
from caudal.engine.checkpoints import Checkpoints
from caudal.engine.config import Batching, EngineConfig, ScheduleOrder
from caudal.engine.drafting.ahead import AheadModel
from caudal.engine.drafting.draft_model import DraftModel
from caudal.engine.drafting.proposer import Proposer
from caudal.engine.drafting.speculation import Speculation
from caudal.engine.engine import Engine
from caudal.engine.request import (
    BACKGROUND,
    FinishReason,
    Generate,
    Pool,
    Request,
    SequenceUpdate,
)
from caudal.engine.tiers.figures import SpaceChoice
from caudal.engine.tiers.second_tier import SecondTier
from caudal.formats.gguf import GGUFFile
from caudal.formats.lora.adapter import Adapter
from caudal.formats.tensor_types import TensorType
from caudal.models import build_ahead, build_program
from caudal.models.pooling import PoolingKind
from caudal.models.program import Program
from caudal.sampling_params import SamplingParams
from support import attention_model
from support.adapter_writer import random_adapter
from support.attention_model import AttentionModel
from support.fake_grammar import FakeGrammars, SlotGrammar
from support.reference_hybrids import TinyLFM2, TinyQwen35, TinyQwen35Ahead
from support.reference_model import TinyExperts, TinyModel

LENGTH = 128
"""Most tokens of a sequence."""
VOCABULARY = 320
EOS = 7
MOST_ITERATIONS = 3000

MODELS: Mapping[str, tuple[TinyModel | AttentionModel, TensorType | None]] = {
    "dense": (TinyModel(architecture="llama", layers=2), None),
    "dense Q4_0": (TinyModel(architecture="qwen3", layers=2), TensorType.Q4_0),
    "windows": (
        TinyModel(architecture="gemma3", layers=7, window=20, kv_heads=1, head_dim=24),
        None,
    ),
    "delta net": (TinyQwen35(), None),
    "convolutions Q8_0": (TinyLFM2(), TensorType.Q8_0),
    "ahead": (TinyQwen35Ahead(), None),
    "windows, sinks and latents": (AttentionModel(), None),
    "experts": (
        TinyModel(architecture="qwen3moe", layers=2, experts=TinyExperts(count=8, used=2)),
        None,
    ),
}

KV_TYPES: tuple[KVType, ...] = get_args(KVType)


@dataclass
class Answer:
    """What a sequence got, or all sequences of a request.

    Attributes:
        tokens: Each with its log-probability, where it was asked for.
        end: How it ended, and by which token.
        pooled: The sum of states.
        prompt: Log-probabilities of the prompt.
        error: What went wrong.
    """

    tokens: list[Any] = field(default_factory=list)
    end: FinishReason | None = None
    stop_token: int | None = None
    pooled: list[list[float]] | None = None
    prompt: list[Any] | None = None
    error: str | None = None

    def add(self, update: SequenceUpdate) -> None:
        assert self.end is None, "an update behind the end"
        self.tokens += update.tokens
        self.end, self.stop_token = update.finish_reason, update.stop_token
        self.error = update.error
        if update.pooled is not None:
            self.pooled = update.pooled.tolist()
        if update.prompt_logprobs is not None:
            assert self.prompt is None, "the prompt's scores came twice"
            self.prompt = list(update.prompt_logprobs)


@dataclass(frozen=True)
class Asked:
    """A request as a test makes it.

    Attributes:
        request: All but its id and adapter.
        adapter: Which adapter, by place.
        grammar: What its answer is held to.
        ends_after: Tokens behind which it is ended from outside: cancelled, or as by a stop string.
        reason: How.
    """

    request: Request
    adapter: int | None
    grammar: SlotGrammar | None
    ends_after: int | None
    reason: FinishReason


class Model:
    """A tiny model's file, with adapters, and what requests get of it alone.

    Args:
        name: One of `MODELS`.
        path: A directory for it.
    """

    def __init__(self, name: str, path: Path) -> None:
        model, quantised = MODELS[name]
        self.name = name
        self.is_made_up = isinstance(model, AttentionModel)
        self.has_ahead = isinstance(model, TinyQwen35Ahead)
        self.path = model.write(path / f"{name}.gguf", quantised)
        with GGUFFile.open(self.path) as file:
            shapes = {
                name: tensor.shape
                for name, tensor in file.tensors.items()
                if len(tensor.shape) == 2 and ("attn_q" in name or "ffn_down" in name)
                if not name.startswith("blk.4")  # that which predicts ahead has none
            }
        queries = {name: shape for name, shape in shapes.items() if "attn_q" in name}
        self.adapters: list[Adapter] = (
            []
            if self.is_made_up
            else [random_adapter("one", shapes, 5), random_adapter("two", queries, 3)]
        )
        self._plain: dict[KVType, Made] = {}

    def program(self, file: GGUFFile) -> Program:
        return attention_model.build(file) if self.is_made_up else build_program(file)

    def alone(self, asked: Asked, kv_type: KVType) -> dict[int, Answer]:
        """What a request gets by itself, by sequence."""
        if kv_type not in self._plain:
            config = {"max_num_batched_tokens": LENGTH, "max_num_seqs": 8, "prefix_cache": False}
            self._plain[kv_type] = Made(self, config | {"jump_ahead": False}, kv_type=kv_type)
        made = self._plain[kv_type]
        made.submit("alone", asked)
        answers: dict[int, Answer] = {}
        while made.engine.has_work:
            for update in made.engine.step():
                answers.setdefault(update.index, Answer()).add(update)
        return answers

    def close(self) -> None:
        for made in self._plain.values():
            made.engine.close()


class Made:
    """An engine on a model.

    Args:
        model: The model.
        config: Fields of `EngineConfig`.
        kv_type: Of keys and values.
        threads: The model's.
        sequences: Memory for so many of the longest; None: plenty.
        draft: What guesses where the configuration says that something does: a model, whose
            pools have room for so many sequences.
    """

    def __init__(
        self,
        model: Model,
        config: Mapping[str, Any],
        *,
        kv_type: KVType,
        threads: int = 1,
        sequences: float | None = None,
        draft: tuple[Model, float] | None = None,
    ) -> None:
        backend = NativeBackend()
        options = BackendOptions(threads=threads, kv_type=kv_type)
        speculation = config.get("speculative")
        proposer: Proposer | None = None

        def limits(program: Program, room: float | None) -> RunLimits:
            plenty = RunLimits(
                max_model_len=LENGTH,
                max_num_seqs=config["max_num_seqs"],
                max_num_batched_tokens=config["max_num_batched_tokens"],
                kv_memory=16 << 20,
            )
            if room is None:
                return plenty
            one: MemoryPlan = backend.plan(file, program, options, plenty)
            bytes_ = int(one.kinds.sequence_bytes(LENGTH) * room)
            return replace(plenty, kv_memory=max(bytes_, one.least))

        with GGUFFile.open(model.path) as file:
            program = model.program(file)
            guesses_itself = speculation is not None and speculation.method == "mtp"
            ahead = build_ahead(file) if guesses_itself else None
            planned = program if ahead is None else program.with_weights_of(ahead)
            plan = backend.plan(file, planned, options, limits(planned, sequences))
            executor = backend.open(file, program, plan, more=ahead)
            if ahead is not None:
                own = backend.plan(file, ahead, options, limits(ahead, draft and draft[1]))
                layer = backend.open(file, ahead, own, beside=executor)
                # Less than some mixtures have waiting, so that states are given up as well.
                proposer = AheadModel(
                    layer, max_tokens=config["max_num_batched_tokens"], max_states=2 * LENGTH
                )
        if speculation is not None and speculation.method == "draft":
            assert draft is not None
            with GGUFFile.open(draft[0].path) as file:
                program = draft[0].program(file)
                other = backend.plan(file, program, options, limits(program, draft[1]))
                smaller = backend.open(file, program, other, beside=executor)
            proposer = DraftModel(
                smaller,
                max_model_len=LENGTH,
                max_tokens=config["max_num_batched_tokens"],
                eos_token_ids=frozenset({EOS}),
            )
        self.executor: NativeExecutor = executor
        self.grammars = FakeGrammars()
        config = {"embedding_queue_delay": 0.0} | dict(config)
        self.engine = Engine(
            executor,
            EngineConfig(max_model_len=LENGTH, **config),
            frozenset({EOS}),
            self.grammars,
            proposer=proposer,
        )
        self._model = model
        self.numbers = [
            self.engine.adapters.load(adapter.source, adapter).number for adapter in model.adapters
        ]

    def submit(self, name: str, asked: Asked) -> None:
        """Submit a request."""
        work = asked.request.work
        if asked.grammar is not None:
            assert isinstance(work, Generate)
            form = self.grammars.form(asked.grammar)
            params = replace(work.params, structured_outputs=form)
            work = Generate(params, prediction=work.prediction)
        adapter = None if asked.adapter is None else self.numbers[asked.adapter]
        self.engine.submit(
            structs.replace(asked.request, request_id=name, work=work, adapter=adapter)
        )

    def reload(self, place: int) -> None:
        """Unload an adapter and load it again, as another one of the same content."""
        self.engine.adapters.unload(self.numbers[place])
        adapter = self._model.adapters[place]
        self.numbers[place] = self.engine.adapters.load(adapter.source, adapter).number


class Requests:
    """Random requests, that share beginnings and repeat themselves and each other."""

    def __init__(self, rng: random.Random, model: Model, most: int) -> None:
        self._rng = rng
        self._model = model
        self._most = most
        self._texts: list[list[int]] = [[rng.randrange(1, VOCABULARY) for _ in range(40)]]

    def make(self) -> Asked:
        """The next."""
        rng = self._rng
        text = rng.choice(self._texts)
        prompt = text[: rng.randrange(1, len(text) + 1)]
        for _ in range(rng.randrange(3)):
            first = rng.randrange(len(prompt))
            prompt = prompt + prompt[first : first + rng.randrange(1, 20)]
            prompt = prompt + rng.choices(range(1, VOCABULARY), k=rng.randrange(12))
        prompt = prompt[: LENGTH - 5]
        pooling = rng.random() < 0.1
        adapter = None
        if self._model.adapters and rng.random() < 0.3:
            adapter = rng.randrange(len(self._model.adapters))
        grammar = None if pooling or rng.random() > 0.25 else self._grammar()
        request = Request(
            request_id="",
            prompt=prompt,
            work=Pool(rng.choice(get_args(PoolingKind))) if pooling else self._work(prompt),
            priority=rng.choice([0, 0, 0, -1, 3, BACKGROUND]),
            cache_salt=rng.choice([None, None, None, "salt", "salt\nmore"]),
            tenant=rng.choice([None, None, "one", "two"]),
        )
        ends_after = rng.randrange(20) if rng.random() < 0.2 else None
        reason = FinishReason.CANCELLED
        if not pooling and rng.random() < 0.5:
            reason = FinishReason.STOP
        return Asked(request, adapter, grammar, ends_after, reason)

    def said(self, asked: Asked, answers: Mapping[int, Answer]) -> None:
        """What was answered, which later prompts may go on from."""
        for answer in answers.values():
            tokens = [sampled.token for sampled in answer.tokens]
            text = [*asked.request.prompt, *tokens][: LENGTH - 20]
            self._texts = [*self._texts[-8:], text]

    def predicted(self, asked: Asked, answers: Mapping[int, Answer]) -> Asked:
        """The request with what its client thinks it gets: now and then that is nearly right."""
        rng, work = self._rng, asked.request.work
        if not isinstance(work, Generate) or rng.random() < 0.6:
            return asked
        guess = [sampled.token for sampled in rng.choice(list(answers.values())).tokens]
        for _ in range(rng.randrange(3)):
            place = rng.randrange(len(guess) + 1)
            guess[place : place + rng.randrange(3)] = [rng.randrange(VOCABULARY)]
        work = Generate(work.params, prediction=guess)
        return replace(asked, request=structs.replace(asked.request, work=work))

    def _work(self, prompt: list[int]) -> Generate:
        rng = self._rng
        params: dict[str, Any] = {
            "n": min(self._most, rng.choice([1, 1, 1, 2, 3])),
            "temperature": rng.choice([0.0, 0.0, 0.2, 1.0]),
            "seed": rng.randrange(5),
            "logprobs": rng.choice([None, 0, 0, 3]),
            "max_tokens": rng.choice([0, 1, 5, 20, 40, None]),
            "ignore_eos": rng.random() < 0.4,
        }
        if rng.random() < 0.15:
            params["prompt_logprobs"] = rng.randrange(3)
        if rng.random() < 0.3:
            params["stop_token_ids"] = rng.choices(range(VOCABULARY), k=8)
        if rng.random() < 0.2:
            params["min_tokens"] = min(3, params["max_tokens"] or 0)
        if rng.random() < 0.15:
            params["speculative"] = "off"
        for name, value in (
            ("top_k", 5),
            ("top_p", 0.8),
            ("min_p", 0.05),
            ("typical_p", 0.9),
            ("repetition_penalty", 1.3),
            ("presence_penalty", 0.7),
            ("frequency_penalty", 0.4),
            ("logit_bias", {rng.randrange(VOCABULARY): 5.0, rng.choice(prompt): -3.0}),
        ):
            if rng.random() < 0.2:
                params[name] = value
        return Generate(SamplingParams(**params))

    def _grammar(self) -> SlotGrammar:
        rng = self._rng
        slots: list[list[int]] = []
        while len(slots) < 25:
            many = rng.choice([1, 1, 3, 200])
            slots += [rng.sample(range(8, VOCABULARY), many)] * rng.randrange(1, 5)
        return SlotGrammar(slots, vocab_size=VOCABULARY)


def random_config(rng: random.Random, store: Path, *, has_ahead: bool) -> dict[str, Any]:
    """Fields of `EngineConfig`."""
    seqs = rng.randrange(1, 9)
    methods: list[str | None] = [None, "ngram", "ngram", "draft", "draft"]
    method = rng.choice([*methods, *(["mtp"] * 3 if has_ahead else [])])
    speculation = method and Speculation(
        method=method,  # type: ignore[arg-type]
        model="another" if method == "draft" else None,
        num_speculative_tokens=rng.choice([1, 3, 8, 32]),
        prompt_lookup_min=rng.choice([1, 3]),
        adaptive=rng.random() < 0.3,
    )
    config: dict[str, Any] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": seqs + rng.choice([1, 4, 15, 40, 120]),
        "jump_ahead": rng.random() < 0.7,
        "prefix_cache": rng.random() < 0.9,
        "schedule": rng.choice(get_args(ScheduleOrder)),
        "batching": rng.choice(["continuous", "continuous", *get_args(Batching)]),
        "max_queue_delay": 0.0,
        "checkpoints": Checkpoints(
            interval=rng.choice([16, 32, 2048]), margin=8, worth=rng.choice([1, 16, 64])
        ),
        "speculative": speculation,
        "prefix_memory": rng.choice([0, 0, 20_000, 1 << 20]),
    }
    if rng.random() < 0.5:
        config["prefix_store"] = str(store)
        config["prefix_store_size"] = rng.choice([None, 300_000])
    return config


@contextlib.contextmanager
def reading_always_pays() -> Iterator[None]:
    """What lies beyond the pools is taken whenever it is there: these models compute too fast."""
    with patch.object(SecondTier, "_is_worth_reading", lambda *_: True):
        yield


def damage(rng: random.Random, store: Path) -> None:
    """Do something to a file of the store that nobody should."""
    files = [
        Path(home, name) for home, _, names in os.walk(store) for name in names if name[0] != "."
    ]
    if not files:
        return
    path = rng.choice(files)
    with contextlib.suppress(FileNotFoundError):
        content = bytearray(path.read_bytes())
        match rng.randrange(5):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(content[: rng.randrange(len(content) + 1)])
            case 2:
                path.write_bytes(rng.choice(files).read_bytes())
            case _:
                if content:
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                path.write_bytes(content)


class Combination:
    """A configuration with requests, all of which a seed decides.

    Args:
        seed: The seed.
        models: Those there are, by name; the plain engines of each are made once.
        path: A directory for the store, empty.
    """

    def __init__(self, seed: int, models: Mapping[str, Model], path: Path) -> None:
        self.rng = rng = random.Random(seed)
        names = sorted(models)
        self.model = models[names[seed % len(names)]]
        self.kv_type: KVType = rng.choice(KV_TYPES)
        self.store = path
        self.config = random_config(rng, path, has_ahead=self.model.has_ahead)
        self.threads = rng.choice([1, 2])
        self.sequences = rng.choice([1.0, 1.3, 2.0, 4.0, None])
        others = [self.model, *(models[name] for name in names)]
        self.draft = (rng.choice(others[: 1 + len(others) // 2]), rng.choice([1.0, 2.0, 8.0]))
        self.requests = Requests(rng, self.model, self.config["max_num_seqs"])
        self.stats: list[Any] = []

    def __repr__(self) -> str:
        return (
            f"{self.model.name}, {self.kv_type}, {self.threads} threads, "
            f"{self.sequences} sequences, draft {self.draft[0].name}, {self.config}"
        )

    def open(self) -> Made:
        """Begin with an engine."""
        return Made(
            self.model,
            self.config,
            kv_type=self.kv_type,
            threads=self.threads,
            sequences=self.sequences,
            draft=self.draft,
        )

    def run(self, count: int) -> None:
        """Give the engine so many requests, and hold it to what each gets alone."""
        with reading_always_pays():
            made = self.open()
            try:
                first, second = count // 2, count - count // 2
                self._rounds(made, first)
                if "prefix_store" in self.config and self.rng.random() < 0.7:
                    self.stats.append(made.engine.stats())
                    made.engine.close()
                    made = self.open()
                self._rounds(made, second)
                self.stats.append(made.engine.stats())
            finally:
                made.engine.close()

    def _rounds(self, made: Made, count: int) -> None:
        rng = self.rng
        live: dict[str, tuple[Asked, dict[int, Answer], dict[int, Answer]]] = {}
        numbers = itertools.count()
        for iteration in range(MOST_ITERATIONS):
            while count and (not live or rng.random() < 0.4):
                asked = self.requests.make()
                alone = self.model.alone(asked, self.kv_type)
                asked = self.requests.predicted(asked, alone)
                self.requests.said(asked, alone)
                name = f"{next(numbers)}"
                made.submit(name, asked)
                live[name] = asked, alone, {index: Answer() for index in alone}
                count -= 1
            if not live:
                return
            for update in made.engine.step():
                live[update.request_id][2][update.index].add(update)
            for name, (asked, alone, answers) in list(live.items()):
                if all(answer.end is not None for answer in answers.values()):
                    for index, answer in answers.items():
                        self._check(asked, alone[index], answer, iteration)
                    del live[name]
                elif asked.ends_after is not None:
                    for index, answer in answers.items():
                        if answer.end is None and len(answer.tokens) >= asked.ends_after:
                            made.engine.cancel(name, index, asked.reason)
            self._meddle(made)
        raise AssertionError(f"{list(live)} live after {MOST_ITERATIONS} iterations")

    def _meddle(self, made: Made) -> None:
        rng = self.rng
        event = rng.random()
        if event < 0.1:
            damage(rng, self.store)
        elif event < 0.11:
            made.engine.reset_prefix_cache(SpaceChoice(salt=rng.choice([None, "", "salt"])))
        elif event < 0.12 and made.numbers:
            made.reload(rng.randrange(len(made.numbers)))
        elif event < 0.14:
            made.engine.rest()

    def _check(self, asked: Asked, alone: Answer, answer: Answer, iteration: int) -> None:
        where = f"{self}\n{asked}\nin iteration {iteration}"
        if (
            asked.ends_after is not None
            and answer.end is asked.reason
            and (len(answer.tokens) < len(alone.tokens) or answer.end is not alone.end)
        ):
            assert answer.tokens == alone.tokens[: len(answer.tokens)], where
        else:
            assert answer == alone, f"{where}\n{answer}\n{alone}"


def main(first: int, end: int) -> None:
    """Try the seeds from `first` up to `end`, and say which of them went."""
    with tempfile.TemporaryDirectory() as path:
        models = {name: Model(name, Path(path)) for name in MODELS}
        for seed in range(first, end):
            store = Path(path) / f"store {seed}"
            store.mkdir()
            Combination(seed, models, store).run(30)
            shutil.rmtree(store)
            print(f"seed {seed} went well", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
