"""Decides whether the semaphore kept its promises. No I/O: tests pass manipulated records."""

import signal
from collections import Counter
from collections.abc import Iterator

from ._record import Record, Round


def faults_of(record: Record) -> list[str]:
    """The broken promises, one sentence each; empty if all were kept."""
    return [
        *_contrast_failures(record.bare),
        *_limit_failures(record.guarded, record.plan.limit),
        *_request_failures(record.bare),
        *_request_failures(record.guarded),
        *_kill_failures(record.bare, "without a semaphore"),
        *_kill_failures(record.guarded, "with the semaphore"),
        *_permit_failures(record),
    ]


def _contrast_failures(bare: Round) -> Iterator[str]:
    if not bare.refusals:
        yield "without a semaphore nothing was refused either: the comparison shows nothing"


def _limit_failures(guarded: Round, limit: int) -> Iterator[str]:
    if guarded.refusals:
        yield f"with the semaphore, the upstream refused {len(guarded.refusals)} times (429)"
    if guarded.most_inside > limit:
        inside = guarded.most_inside
        yield f"with the semaphore, {inside} requests were inside at once: limit {limit}"


def _request_failures(round_: Round) -> Iterator[str]:
    """The records of upstream and workers must agree and include every request."""
    excused = round_.kill.lost if round_.kill else ()
    for number in round_.unanswered:
        if number not in excused:
            why = round_.failures.get(number, "for an unknown reason")
            yield f"request {number} was lost: {why}"
    entered = Counter(event.number for event in round_.visits if event.kind == "entered")
    answered = Counter(answer.number for answer in round_.answers)
    for number, times in (entered | answered).items():
        if times > 1:
            yield f"request {number} was processed {times} times"
    for number in answered:
        if number not in entered:
            yield f"request {number} was answered, but the upstream never received it"


def _kill_failures(round_: Round, which: str) -> Iterator[str]:
    kill = round_.kill
    if kill is None:
        yield f"{which}, no worker was killed"
    elif kill.returncode != -signal.SIGKILL:
        yield f"{kill.worker} was not killed: it ended with {kill.returncode}"


def _permit_failures(record: Record) -> Iterator[str]:
    kill, lease = record.guarded.kill, record.plan.lease
    if kill is None:
        return
    if kill.held < 1:
        yield f"{kill.worker} held no permit when it was killed"
    if len(kill.lost) > kill.held:
        yield f"{len(kill.lost)} requests of {kill.worker} were lost: it held {kill.held} permits"
    if record.answered_meanwhile == 0:
        yield f"no request was answered while the permits of {kill.worker} were unavailable"
    if kill.unavailable is None:
        yield f"the permits of {kill.worker} never became free"
    elif kill.unavailable > 2 * lease:
        after = f"{kill.unavailable:.2f} s"
        yield f"the permits of {kill.worker} became free after {after}: lease {lease} s"
