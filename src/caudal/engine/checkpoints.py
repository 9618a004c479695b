"""Where on a prompt's way what recurrent layers remember is kept, for others to go on from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoints:
    r"""Lengths at which prompts can be taken up again, besides the ends of answers.

    Keys and values of all tokens can be gone on from at any of them. A recurrent state is that
    after one token, and a window's blocks are forgotten behind it; hence they are kept where
    conversations branch: near the prompt's end, and every so often on a long one's way.

    Attributes:
        interval: Tokens from one checkpoint of a long prompt to the next, at absolute positions, so
            that prompts that start the same have the same ones. A multiple of the block size.
        margin: Tokens at the prompt's end that come behind its last checkpoint at least: what asks
            for an answer (`<|im_start|>assistant\n<think>\n`) is often not in the history of the
            next turn.
        worth: Tokens that the one near the end must save, beyond the one before it: computing a
            recurrent model's prompt stops there, which costs an iteration.
    """

    interval: int = 2048
    margin: int = 8
    worth: int = 64

    def after(self, length: int, prompt: int, *, kept: int, block_size: int) -> int | None:
        """The next checkpoint of a prompt.

        Args:
            length: Tokens that are computed already.
            prompt: The prompt's tokens.
            kept: The latest length at which the sequence can be taken up again.
            block_size: Checkpoints are ends of blocks.
        """
        last = (prompt - self.margin) // block_size * block_size
        if last <= length:
            return None
        regular = (length // self.interval + 1) * self.interval
        if regular <= last:
            return regular
        return last if last - kept >= self.worth else None


CHECKPOINTS = Checkpoints()
"""Those that engines have unless they are told otherwise."""
