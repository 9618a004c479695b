"""Prompts and answers in the log, for whoever wants to see them there (`--log-prompts`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from caudal.chat.events import Answer
from caudal.service.answers import ChatDelta, CompleteAnswer, Delta
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork

logger = logging.getLogger("caudal.prompts")


def log_prompt(work: ChatWork | CompletionWork | EmbedWork | ScoreWork) -> None:
    """Write what is asked."""
    logger.info("prompt: %s", _json(work))


class AnswerLog:
    """What is answered, put together until it can be written."""

    def __init__(self) -> None:
        self._answers: dict[int, Answer | str] = {}

    def add(self, delta: Delta | ChatDelta) -> None:
        """Take what is new."""
        if isinstance(delta, Delta):
            self._answers[delta.index] = f"{self._answers.get(delta.index, '')}{delta.text}"
            return
        answer = self._answers.setdefault(delta.index, Answer())
        assert isinstance(answer, Answer)
        answer.add(delta.events)

    def set(self, answers: Sequence[CompleteAnswer]) -> None:
        """Take whole answers."""
        self._answers = dict(enumerate(each.answer for each in answers))

    def write(self) -> None:
        """Write what has been answered, complete or not."""
        for answer in self._answers.values():
            logger.info("answer: %s", _json(answer))


def _json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
