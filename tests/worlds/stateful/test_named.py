"""Orders of verbs that any order comes to seldom, each with what has to come of it."""

import math

import pytest

from redsem_async import BackendUnavailable
from redsem_async._hub.model import LeaseState
from redsem_async._protocol.errors import ErrorKind
from tests.worlds.world import Event

from .verbs import DETACHED, Verbs


def test_a_stray_grant_of_a_number_that_was_never_drawn_is_ignored() -> None:
    """Its release would tell the server that all numbers up to that one were used."""
    with Verbs() as verbs:
        verbs.ask()
        verbs.calm()
        verbs.forge(0, "granted", -1)
        verbs.ask()
        verbs.calm()
        assert len(verbs.holds) == 2


@pytest.mark.parametrize("refused", [[], [ErrorKind.BUSY], [ErrorKind.RETRY_NOW]])
def test_after_a_reconnect_every_waiter_is_asked_about(refused: list[ErrorKind]) -> None:
    """However many wait, messages to any of them may have been lost."""
    with Verbs() as verbs:
        verbs.ask(count=150)
        verbs.calm()
        verbs.cut(unnoticed=True)
        verbs.set_limit(1, "a", 150)
        verbs.calm(who=1)
        verbs.refuse(refused)
        verbs.pass_time(0.5)
        assert not verbs.asks


def test_without_messages_every_waiter_is_asked_about() -> None:
    with Verbs(no_push=True) as verbs:
        verbs.ask(count=150)
        verbs.calm()
        verbs.set_limit(1, "a", 150)
        verbs.pass_time(4)
        assert not verbs.asks


def test_one_waiter_that_is_gone_makes_all_others_doubtful() -> None:
    """With the queue went all of them, however many. They ask again in their order."""
    with Verbs() as verbs:
        verbs.ask(count=550)
        verbs.calm()
        verbs.server.lose(verbs.address("a"), "queue")
        verbs.pass_time(4)
        line = [waiter.request.number for waiter in verbs.looks["a"].line]
        assert line == [request.number for _, _, request in verbs.asks]
        assert len(line) == 548


def test_what_is_sent_again_keeps_its_number_beside_one_that_waits() -> None:
    """The heartbeat that comes first says which numbers are not sent any more."""
    with Verbs() as verbs:
        verbs.ask(count=3)
        verbs.calm()
        asked = verbs.ask() + verbs.ask()
        numbers = [request.number for request in asked]
        verbs.cut(lost=2)
        verbs.pass_time(1)
        assert [request.number for request in asked] == numbers


def test_a_release_behind_a_detach_outlasts_an_outage() -> None:
    """The detach may have made the lease longer than an outage lasts."""
    with Verbs() as verbs:
        verbs.ask()
        verbs.calm()
        verbs.detach(expires=DETACHED)
        verbs.arrive()
        verbs.cut()
        verbs.release(awaited=False)
        for _ in range(30):
            verbs.pass_time(0.5, calm=False)
            verbs.refuse_connections()
        verbs.calm()
        verbs.pass_time(10)
        assert not verbs.looks["a"].live


def test_a_refresh_that_is_answered_late_is_made_again_before_the_permit_is_used() -> None:
    """The caller would have a permit that ends soon."""
    with Verbs() as verbs:
        verbs.ask(lease=3)
        for _ in range(2):  # an acquire, and the refresh that follows it
            verbs.arrive()
            verbs.do(Event("stop", 0, 0, 12))
            verbs.arrive()
            verbs.now += 12
            verbs.do(Event("go on"))
        verbs.calm()
        [(_, _, lease)] = verbs.holds
        left = lease.terms.lease - lease.terms.refresh_interval - lease.terms.margin
        assert lease.trusted_until - verbs.now > left


def test_a_permit_is_trusted_for_its_max_hold_less_a_margin() -> None:
    """The clocks differ. It is counted from the grant, and after a refresh as the server says."""
    with Verbs() as verbs:
        verbs.ask(lease=1)
        verbs.calm()
        [(_, _, lease)] = verbs.holds
        ends = verbs.now + 12 - lease.terms.margin
        assert lease.hold_ends == pytest.approx(ends)
        lease.hold_ends = math.inf
        verbs.refresh()
        verbs.calm()
        assert lease.hold_ends == pytest.approx(ends)


def test_permits_of_different_max_hold_are_refreshed_by_commands_of_their_own() -> None:
    with Verbs() as verbs:
        verbs.ask(lease=1)
        verbs.ask(lease=2)
        verbs.calm()
        for _ in range(5):
            verbs.refresh(count=2)
            verbs.pass_time(4)
        assert [hold.lease.state for hold in verbs.holds] == [LeaseState.LOST, LeaseState.HELD]


def test_no_semaphore_takes_the_whole_window() -> None:
    """Its neighbour would wait for as many round trips as it has commands."""
    with Verbs(small=True) as verbs:
        verbs.ask(name="a")
        verbs.ask(name="b")
        verbs.calm()
        link = verbs.processes[0].link
        assert link is not None
        verbs.do(link.event("press")._replace(seconds=0.1))
        verbs.ask(name="a", count=30)
        verbs.ask(name="b")
        verbs.pass_time(0.1, calm=False)
        verbs.do(link.event("relieve"))
        assert {sent.command.semaphore.address.name for sent in link.going} == {"a", "b"}


def test_a_deadline_that_comes_while_nothing_is_heard_says_so() -> None:
    with Verbs() as verbs:
        verbs.ask(count=2)
        verbs.calm()
        [request] = verbs.ask(timeout=0.5)
        verbs.calm()
        verbs.deafen()
        verbs.pass_time(0.7)
        assert isinstance(request.error, BackendUnavailable)


def test_a_shorter_lease_shortens_the_wait_for_a_reply_that_is_awaited() -> None:
    """Its holders would lose their permits before anybody notices that the server is silent."""
    with Verbs() as verbs:
        verbs.ask(lease=3)
        verbs.calm()
        verbs.deafen()
        for _ in range(4):  # more than may be in flight
            verbs.ask(lease=3)
        verbs.ask(lease=4)
        verbs.pass_time(1.1, calm=False)
        assert verbs.processes[0].link is None


@pytest.mark.parametrize("cancelled", [True, False])
def test_no_request_passes_one_whose_command_is_refused(cancelled: bool) -> None:
    """Not even behind an abandon, after which the server knows the refused command's number."""
    with Verbs() as verbs:
        verbs.ask()
        verbs.calm()
        verbs.ask(count=3)  # one, and behind it two
        if cancelled:
            verbs.arrive()
            verbs.cancel(2)
        verbs.ask()
        verbs.refuse([ErrorKind.RETRY_NOW])
        verbs.calm()
        line = [waiter.id for waiter in verbs.looks["a"].line]
        of_calls = [f"{request.hub_id}.{request.number}" for _, _, request in verbs.asks]
        assert line == of_calls


def test_no_request_passes_one_that_is_sent_again_behind_an_abandon() -> None:
    """The server knows its number as a used one then, and it asks for its place anew."""
    with Verbs() as verbs:
        verbs.ask()
        verbs.calm()
        [first] = verbs.ask()
        verbs.ask()
        verbs.cut(lost=2)
        verbs.cancel(1)
        verbs.ask()
        verbs.pass_time(1)
        [(_, remote, second)] = verbs.asks
        assert (first.lease is not None, second.lease) == (True, None)
        assert not remote.drains, "nothing that is new waits for a reply"


def test_a_release_that_is_sent_again_is_no_yes_unless_it_was_trusted() -> None:
    """The permit may have expired long before, and somebody else may have held it."""
    with Verbs() as verbs:
        verbs.ask()
        verbs.calm()
        verbs.pass_time(11)
        verbs.release()  # whoever is told that it was held is told wrongly
        verbs.arrive()
        verbs.cut()
        verbs.pass_time(1)
