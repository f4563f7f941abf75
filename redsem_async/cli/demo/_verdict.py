"""Whether what happened is what was promised. Pure: tests hand it doctored records."""

import signal
from collections import Counter
from collections.abc import Iterator

from ._record import Kill, Record, Round


def faults_of(record: Record) -> list[str]:
    """What went otherwise than promised, a sentence each; nothing, if all went well."""
    return [
        *_contrast_failures(record.bare),
        *_limit_failures(record.guarded, record.plan.limit),
        *_request_failures(record.bare, excused=()),
        *_request_failures(record.guarded, excused=record.kill.lost if record.kill else ()),
        *_kill_failures(record),
    ]


def _contrast_failures(bare: Round) -> Iterator[str]:
    if not bare.refusals:
        yield "without a semaphore nothing was refused either: this shows nothing"


def _limit_failures(guarded: Round, limit: int) -> Iterator[str]:
    if guarded.refusals:
        yield f"with the semaphore, the upstream refused {len(guarded.refusals)} times (429)"
    if guarded.most_inside > limit:
        yield f"with the semaphore, {guarded.most_inside} were inside at once: limit {limit}"


def _request_failures(round_: Round, excused: tuple[int, ...]) -> Iterator[str]:
    """The upstream's book and the workers' must agree, and leave no request out."""
    for number in round_.unanswered:
        if number not in excused:
            why = round_.failures.get(number, "nobody knows why")
            yield f"request {number} was lost: {why}"
    entered = Counter(event.number for event in round_.visits if event.kind == "entered")
    answered = Counter(answer.number for answer in round_.answers)
    for number, times in (entered | answered).items():
        if times > 1:
            yield f"request {number} was done {times} times"
    for number in answered:
        if number not in entered:
            yield f"request {number} was answered, but the upstream never saw it"


def _kill_failures(record: Record) -> Iterator[str]:
    kill = record.kill
    if kill is None:
        yield "no worker was killed"
        return
    if kill.returncode != -signal.SIGKILL:
        yield f"{kill.worker} was not killed: it ended with {kill.returncode}"
    if kill.held < 1:
        yield f"{kill.worker} held no permit when it was killed"
    if len(kill.lost) > kill.held:
        yield f"{len(kill.lost)} requests of {kill.worker} were lost: it held {kill.held} permits"
    if record.answered_meanwhile == 0:
        yield f"nothing was answered while the places of {kill.worker} were missing"
    yield from _permit_failures(kill, record.plan.lease)


def _permit_failures(kill: Kill, lease: float) -> Iterator[str]:
    if kill.unavailable is None:
        yield f"the places of {kill.worker} never came back"
    elif kill.unavailable > 2 * lease:
        yield f"the places of {kill.worker} came back after {kill.unavailable:.2f} s: lease {lease} s"
