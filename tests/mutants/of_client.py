"""Mutants of the client: leases and trust, requests, releases, the connection."""

from .mutant import mutant
from .of_scripts import CUT_OFF, SIMULATION

OF_CLIENT = (
    # -- trust
    mutant(
        "trust is counted from the reply",
        "lost comes before the server's expiry",
        SIMULATION,
        (
            "AcquireBatch.apply",
            "sent_at + terms.lease - terms.margin",
            "now + terms.lease - terms.margin",
        ),
    ),
    mutant(
        "no margin for clocks",
        "trust ends before the server lets go",
        SIMULATION,
        ("clock_margin", "", "return -0.01 * lease - 0.005"),
    ),
    mutant(
        "a message is trusted from its arrival",
        "a permit is trusted from before the server granted it",
        "a_grant_that_was_on_its_way_for_long_is_trusted_for_what_is_left",
        ("SemaphoreState.pushed", "-math.inf if fresh_at is None else fresh_at", "clock()"),
    ),
    mutant(
        "a late message is handed out unconfirmed",
        "a permit that came by message is trusted for the lease less a refresh interval",
        "a_caller_gets_a_lease_less_a_refresh_interval",
        ("SemaphoreState.granted", "lease.refresh_is_due(now)", "False"),
    ),
    mutant(
        "a grant by message is not confirmed",
        "a forged grant is found out by the refresh that follows it",
        "a_forged_grant_is_found_out",
        ("SemaphoreState.time_passed", "_ = self.refresh(lease)", "pass"),
    ),
    mutant(
        "no refreshes",
        "a held permit outlives its lease",
        "a_held_permit_outlives_its_lease",
        ("Refresher._refresh", "semaphore.refresh(lease).wakeups.append(wakeup)", "pass"),
    ),
    mutant(
        "trust does not end",
        "a permit that was not renewed in time is lost",
        SIMULATION,
        ("lose_unless_trusted", "clock() >= lease.trusted_until", "False"),
    ),
    mutant(
        "a refusal to renew is overlooked",
        "lost is set when the server says so",
        "refresh_finds_it_out_now",
        ("after_refresh", "outcome is Outcome.GONE", "False"),
    ),
    mutant(
        "check() says yes while it is held",
        "check() raises unless the permit may be trusted now",
        "loss_that_the_body_finds_itself",
        ("Permit._trusted", "lease.trusted_at(clock())", "lease.state is LeaseState.HELD"),
    ),
    mutant(
        "a clock that a suspended host stops",
        "a suspended host's permits are lost when it wakes",
        "a_suspended_host",
        (
            "_core.clock",
            "functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)",
            "time.monotonic",
        ),
    ),
    mutant(
        "a blocked loop is not why",
        "a loss because the event loop was blocked says so",
        "loss_that_the_body_finds_itself",
        ("Stalls.blocked_for", "self._ran_at < due < now", "False"),
    ),
    mutant(
        "a loss does not cancel the body",
        "loss cancels the body",
        "loss_cancels_the_body_once_and_leaves_as_permit_lost",
        ("BlockGuard.__init__", "lease.guard = self", "pass"),
    ),
    mutant(
        "a cancellation that is not taken back",
        "cancel and uncancel, as asyncio.timeout does",
        "loss_cancels_the_body_once_and_leaves_as_permit_lost",
        ("BlockGuard.disarm", "self._task.uncancel()", "self._task.cancelling() - 1"),
    ),
    mutant(
        "a loss hides the body's error",
        "an error of the body's own wins",
        "an_error_of_the_bodys_own_wins",
        ("Permit.__aexit__", "exc is None or cancelled_by_loss", "True"),
    ),
    mutant(
        "a swallowed cancellation swallows the loss",
        "PermitLost leaves the block, also when the body swallowed the cancellation",
        "a_body_that_swallows_the_cancellation_leaves_as_permit_lost",
        ("Permit.__aexit__", "exc is None or cancelled_by_loss", "cancelled_by_loss"),
    ),
    mutant(
        "max_hold does not bound trust",
        "a permit is not refreshed past its max_hold, by whomever",
        "it_ends_a_block_and_frees_the_permit",
        ("Lease.renew", "min(trusted_until, self.hold_ends)", "trusted_until"),
    ),
    mutant(
        "writing a detach leaves trust as it is",
        "from the moment a detach is sent, trust ends before the server may let go",
        "a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for",
        ("Lease.shorten", "self.trusted_until = min(self.trusted_until, trusted_until)", "pass"),
    ),
    # -- requests and releases
    mutant(
        "no abandon after a cancellation",
        "a cancelled acquire leaves nothing",
        "an_acquire_cancelled_after_it_was_sent_is_given_back",
        (
            "SemaphoreState.leave",
            "self.undo.append(request)",
            "self.requests.pop(request.number, None)",
        ),
    ),
    mutant(
        "a grant in the tick of the cancellation is kept",
        "grant and cancellation in the same tick: given back exactly once",
        "a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick",
        ("SemaphoreState.leave", "self.give_back(lease, clock(), trusted=False)", "pass"),
    ),
    mutant(
        "a timeout leaks its grant",
        "a grant that meets its deadline is a permit or a timeout, never a leak",
        SIMULATION,
        ("SemaphoreState.refuse", "self.leave(request)", "self.waiting.pop(request, None)"),
    ),
    mutant(
        "a grant that nobody waits for is kept",
        "a stray grant is given back",
        "a_stray_grant_is_given_back",
        ("SemaphoreState.granted", "self.give_back_unknown(self.identity.id, number)", "pass"),
    ),
    mutant(
        "an acquire sent again draws a new id",
        "a command that is sent again is one permit",
        "an_acquire_that_is_lost_is_sent_again_and_is_one_permit",
        (
            "AcquireBatch.write_again",
            "request.was_sent = True",
            "self.state.forget_number(request)",
        ),
    ),
    mutant(
        "who asks again does so without its age",
        "a process that was cut off keeps its place to a round trip",
        CUT_OFF,
        ("Request.options", "clock() - self.started if self.again else 0", "0"),
    ),
    mutant(
        "what was unanswered is not sent again",
        "a lost connection costs nobody an answer",
        "an_acquire_that_is_lost_is_sent_again_and_is_one_permit",
        ("Pipeline._write_again", "batch.write_again(arrived=True)", "pass"),
    ),
    mutant(
        "a foreign id releases one's own",
        "a foreign release changes nothing",
        "releases_that_are_not_due_change_nothing",
        ("RemoteSemaphore.revoke", "owner == self.identity.id", "True"),
    ),
    mutant(
        "a second release says true",
        "a double release is False",
        "releases_that_are_not_due_change_nothing",
        ("Permit.release", "return False", "return True"),
    ),
    mutant(
        "a release is kept when its lease has ended",
        "what leaving a block handed over is sent until the lease has ended",
        "a_release_is_dropped_when_the_lease_has_ended",
        ("SemaphoreState.give_back", "now + lease.terms.lease", "math.inf"),
    ),
    mutant(
        "a dropped permit is not released",
        "a permit that is dropped is released",
        "a_dropped_permit_warns_and_is_released",
        ("_release_dropped", "_give_back(bound, lease, since, clock())", "None"),
    ),
    mutant(
        "a third task leaves the newest block",
        "a block that is left never gives another task's permit away",
        "a_block_left_by_a_third_task_gives_no_permit_away",
        (
            "EnteredPermits._only_task",
            "if blocks == 1:\n    return here[0]",
            "if blocks:\n    return here[-1]",
        ),
    ),
    mutant(
        "a forked child keeps the permits",
        "a child's permit is unusable, and releases nothing of the parent's",
        "a_fork_leaves_the_permit_with_the_parent",
        ("_hub.hub", "hub.orphan()", "pass"),
    ),
    mutant(
        "full is what was ever said",
        "who could not ask is told so, and not that it is full",
        "a_waiter_that_is_cut_off_is_not_told_that_it_is_full",
        ("deadlines._come", "max(young, request.started) if waits else -math.inf", "-math.inf"),
    ),
    mutant(
        "a set limit is forgotten in retry_after",
        "`retry_after` is an estimate under the limit in force",
        "on_steady_work_it_is_what_the_next_request_waits",
        (
            "_hub.deadlines",
            "terms.limit if report.set_limit is None else report.set_limit",
            "terms.limit",
        ),
    ),
    mutant(
        "a hold is never told",
        "a cold process goes by how long the others hold permits",
        "a_cold_process_is_told_how_long_others_hold",
        ("lua.release", "if hold and state.mode then", "if false then"),
    ),
    mutant(
        "threads take each other's lane",
        "a semaphore that several threads use keeps to the loop of each",
        "threads_that_share_a_semaphore_keep_to_their_own_loops",
        (
            "AnySemaphore._bound",
            "bound if here else self._bind()",
            "(self._last_bound or bound) if here else self._bind()",
        ),
    ),
    # -- the connection
    mutant(
        "no heartbeats",
        "a waiter's process counts as alive, and finds what it was not told",
        SIMULATION,
        ("SemaphoreState.time_passed", "self.waiting and not heartbeats.in_flight", "False"),
    ),
    mutant(
        "a subscription that ends is not missed",
        "a waiter hears of its grant, or asks",
        "a_subscription_that_ends_unasked_is_made_anew",
        (
            "redsem_async._redis.connection",
            "raise connection_error('the server ended the subscription')",
            "pass",
        ),
    ),
    mutant(
        "whose reply it is is not looked at",
        "no reply is taken for another's",
        "a_reply_that_comes_in_anothers_place_is_noticed",
        ("Codec.reply_to", "raw[:1] == [b'%d' % command.tag]", "True"),
    ),
    mutant(
        "a silent connection is not noticed",
        "a half-open connection is noticed",
        "a_half_open_connection_is_noticed",
        (
            "Pipeline._check_reply",
            "self._drop(TimeoutError(f'no answer in {self.reply_timeout:.3g} s'))",
            "pass",
        ),
    ),
    mutant(
        "scripts are not loaded again",
        "a script flush costs nobody anything",
        "scripts_flushed_before_every_call",
        ("Connection._error_received", "dict.fromkeys(self._knows, False)", "self._knows"),
    ),
    mutant(
        "a release does not wait for a back-off's reply",
        "a refused back-off comes before the release",
        "a_back_off_that_was_not_taken_is_not_overtaken_by_its_release",
        ("Connection.send", "isinstance(command, Release)", "False"),
    ),
    mutant(
        "what waits is written behind a refused call",
        "a refused back-off comes before the release",
        "a_back_off_that_was_not_taken_is_not_overtaken_by_its_release",
        ("Connection._error_received", "bool(self._held)", "False"),
    ),
    mutant(
        "calls overtake one whose script is missing",
        "nothing overtakes a call that the server has no script for",
        "nothing_overtakes_a_call_that_the_server_has_no_script_for",
        (
            "Connection.send",
            "self._digest or isinstance(command, Release)",
            "isinstance(command.operation, Release)",
        ),
    ),
    mutant(
        "a demoted master is kept",
        "a demoted master is left for the new one",
        "a_demoted_master_is_left_for_the_new_one",
        ("Connection._error_received", "error.kind is ErrorKind.READ_ONLY", "False"),
    ),
    mutant(
        "MOVED is not followed",
        "slots may move to another server",
        "a_slot_that_moved_is_followed",
        ("Pipeline._error_received", "return self.redirects.redirected(semaphore, error)", "pass"),
    ),
    mutant(
        "an outage is an error for good",
        "a master that takes no writes now may take them later",
        "a_master_that_needs_a_replica_ends_the_trust_in_it",
        ("_hub.commands", "ErrorKind.BUSY", "ErrorKind.READ_ONLY"),
    ),
    mutant(
        "a number of any length",
        "a message that is not understood changes nothing",
        "numbers_of_messages_are_bounded",
        ("pushes._whole", "len(text) <= 16", "True"),
        ("pushes._whole", "not at_least <= number <= at_most", "number < at_least"),
    ),
    mutant(
        "a hub with work closes when its client does",
        "a hub with work outlives its client, and an idle one goes with it",
        "a_hub_with_work_outlives_its_client_until_it_is_idle",
        ("_hub.hub", "unused and not pipeline.has_work()", "unused"),
    ),
    mutant(
        "wrong credentials in RESP2 are an outage",
        "who is rejected is told so at once, also where the server has no RESP3",
        "wrong_credentials_are_refused_at_once_without_resp3",
        (
            "_redis.dial.dial",
            "raise ConnectionRejected(f'rejects this client: {reason}') from error",
            "raise",
        ),
    ),
)
