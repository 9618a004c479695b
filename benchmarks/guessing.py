"""What guessing tokens brings on a server: the same prompts with guesses and without.

Prompts are computed ahead and come from the server's cache, and what a request costs besides is
taken off: a rate is of the tokens between an answer of one token and one of `OUTPUT_TOKENS`.
Answers aren't streamed, so that the client takes nothing. Prompts of each run are new, or a guess
could be what was answered in the run before.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from benchmarks.cases import GuessCase
from benchmarks.files import ModelFile
from benchmarks.peers.base import PeerError, ServerSession
from caudal.bench.speculation import OUTPUT_TOKENS, TEXTS
from caudal.formats.gguf import GGUFFile
from caudal.formats.tokenizer import Tokenizer

_SECONDS = 600
_PROMPTS_OF_A_RUN = 100
_COUNTERS = (
    "(?:caudal_speculative_proposed_tokens|vllm:spec_decode_num_draft_tokens)_total",
    "(?:caudal_speculative_accepted_tokens|vllm:spec_decode_num_accepted_tokens)_total",
)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens that were guessed, and how many of them were right."""

    proposed: int
    accepted: int

    def __add__(self, other: Drafts) -> Drafts:
        return Drafts(self.proposed + other.proposed, self.accepted + other.accepted)

    def __sub__(self, other: Drafts) -> Drafts:
        return Drafts(self.proposed - other.proposed, self.accepted - other.accepted)


@dataclass(frozen=True, slots=True)
class Answers:
    """How long a batch of answers took, and what the server says of its guesses, if it does."""

    seconds: float
    drafts: Drafts | None


class ServerPair:
    """A server that doesn't guess and one that does, with the same model. A context manager."""

    def __init__(self, alone: ServerSession, guessing: ServerSession) -> None:
        self.alone = alone
        self.guessing = guessing
        self.facts = guessing.facts

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep both stopped."""
        with self.alone.paused(), self.guessing.paused():
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.guessing.__exit__(*error)
        self.alone.__exit__(*error)


def prompts_of(model: ModelFile, case: GuessCase, run: int) -> list[list[int]]:
    """Prompts that no other run has."""
    first = run * _PROMPTS_OF_A_RUN
    with GGUFFile.open(model.path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        return [
            tokenizer.encode(TEXTS[case.text](first + number)) for number in range(case.sequences)
        ]


def measure_answers(
    url: str, model: str, prompts: Sequence[list[int]], temperature: float
) -> tuple[float, Drafts | None]:
    """Tokens per second of all answers together, and the guesses if the server counts them.

    Raises:
        PeerError: A request failed, or was answered at another length.
    """
    with httpx2.Client(base_url=url, timeout=_SECONDS, trust_env=False) as client:
        ask_all(client, model, prompts, temperature, 1)  # computes the prompts
        one = ask_all(client, model, prompts, temperature, 1)
        before = _counted(client)
        whole = ask_all(client, model, prompts, temperature, OUTPUT_TOKENS)
        after = _counted(client)
    seconds = whole.seconds - one.seconds
    if seconds <= 0:
        raise PeerError(f"{OUTPUT_TOKENS} tokens took no longer than one")
    drafts = whole.drafts
    if drafts is None and before is not None and after is not None:
        drafts = after - before
    return len(prompts) * (OUTPUT_TOKENS - 1) / seconds, drafts


def ask_all(
    client: httpx2.Client,
    model: str,
    prompts: Sequence[list[int]],
    temperature: float,
    tokens: int,
) -> Answers:
    """Ask for answers of a length, all at once.

    Raises:
        PeerError: A request failed, or was answered at another length.
    """

    def ask(prompt: list[int]) -> Drafts | None:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        # As drawn from all tokens, whatever a server does unless it is told.
        body |= {"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1}
        try:
            response = client.post("/v1/completions", json=body)
            answer = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise PeerError(f"a request failed: {error!r:.200}") from error
        if response.status_code != httpx2.codes.OK:
            raise PeerError(f"a request failed: status {response.status_code}: {answer!r:.200}")
        return _drafts_of(answer, tokens)

    with ThreadPoolExecutor(len(prompts)) as pool:
        start = time.perf_counter()
        told = list(pool.map(ask, prompts))
        seconds = time.perf_counter() - start
    known = [drafts for drafts in told if drafts is not None]
    return Answers(seconds, sum(known, Drafts(0, 0)) if known else None)


def _drafts_of(answer: dict[str, Any], tokens: int) -> Drafts | None:
    """What llama-server tells beside an answer, where it has guessed."""
    generated = answer.get("usage", {}).get("completion_tokens")
    if generated != tokens:
        raise PeerError(f"generated {generated} of {tokens} tokens")
    timings = answer.get("timings", {})
    if "draft_n" not in timings:
        return None
    return Drafts(timings["draft_n"], timings["draft_n_accepted"])


def _counted(client: httpx2.Client) -> Drafts | None:
    """What a server has guessed so far, by its counters."""
    try:
        page = client.get("/metrics").text
    except httpx2.HTTPError:
        return None
    sums = []
    for name in _COUNTERS:
        pattern = rf"^{name}(?:{{[^}}]*}})? (\S+)$"
        found = re.findall(pattern, page, re.MULTILINE)
        if not found:
            return None
        sums.append(int(sum(map(float, found))))
    return Drafts(*sums)
