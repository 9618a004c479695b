"""What is told of a model to those who want to know."""

from __future__ import annotations

import math

from caudal.fleet.member import Member
from caudal.fleet.policy import Stage
from caudal.service.models import ModelStatus, State

_STATES: dict[Stage, State] = {
    Stage.UNLOADED: "unloaded",
    Stage.READING: "loading",
    Stage.READ: "loading",
    Stage.OPENING: "loading",
    Stage.LOADED: "loaded",
    Stage.UNLOADING: "unloading",
    Stage.CLOSING: "unloading",
}


def status_of(member: Member, now: float) -> ModelStatus:
    """How a model is, at a time on the event loop's clock."""
    stay, plan, trouble = member.stay, member.plan, member.trouble
    state = _STATES[member.stage]
    service = None if stay is None else stay.running.service
    stages = {Stage.READING: "reading its file", Stage.READ: "waiting for memory"}
    stage, progress = stages.get(member.stage, ""), 0.0
    if member.stage is Stage.OPENING:
        stage = "weights" if member.progress is None else member.progress.stage
        progress = 0.0 if member.progress is None else member.progress.share
    keep_until = member.keep_until
    if service is not None:
        max_model_len: int | None = service.max_model_len
    else:
        max_model_len = None if plan is None else plan.max_model_len
    return ModelStatus(
        names=member.offer.names,
        state=state,
        adapters=tuple(member.current_adapters()),
        service=service,
        size=member.offer.size,
        created=member.offer.created,
        tasks=None if plan is None else plan.tasks,
        max_model_len=max_model_len,
        memory=member.held,
        sequences=member.granted if stay is None else stay.running.memory.sequences,
        running=member.running,
        waiting=member.waiting,
        expires_in=None if keep_until == math.inf else max(0.0, keep_until - now),
        stage=stage,
        progress=progress,
        process_id=None if stay is None else stay.running.process_id,
        trouble=trouble.reason if trouble is not None and state == "unloaded" else None,
        deleted=member.deleted,
        source=member.offer.source.name,
        history=member.history,
    )
