"""Mutants of leases that are used again, and of the right to it."""

from .mutant import mutant
from .of_scripts import SIMULATION

OF_REUSE = (
    mutant(
        "the right has no margin for clocks",
        "the right ends before the server's note of it",
        "the_right_ends_before_the_servers_note_of_it",
        ("ReuseRight.answered", "sent_at + lasts - clock_margin(lasts)", "sent_at + lasts"),
    ),
    mutant(
        "the right is counted from the reply",
        "the right ends before the server's note of it",
        "the_right_ends_before_the_servers_note_of_it",
        ("ReuseRight.answered", "sent_at + lasts", "now + lasts"),
    ),
    mutant(
        "a late answer revives the right",
        "a reply to a question from before a recall does not give the right",
        "without_push_messages_no_lease_is_kept",
        ("ReuseRight.answered", "asked is not self._asked", "False"),
    ),
    mutant(
        "a recall is not applied",
        "a kept lease is recalled when another process waits",
        "a_used_lease_goes_to_a_waiter_of_another_process",
        ("machine.pushed", "state.right.recalled(clock())", "False"),
    ),
    mutant(
        "the pause after a recall does not double",
        "the right is asked for ever less often while it is recalled",
        "the_right_is_asked_for_ever_less_often_while_it_is_recalled",
        (
            "ReuseRight.recalled",
            "min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE",
            "FIRST_PAUSE",
        ),
    ),
    mutant(
        "a lower limit is not noted",
        "no lease is used again above the lowest limit that is declared",
        "a_lower_limit_ends_the_right_under_a_higher_one",
        ("ReuseRight.want", "self._limit = min(self._limit, limit)", "self._limit = limit"),
    ),
    mutant(
        "the right outlives the connection",
        "the right to reuse ends with the connection",
        "a_lost_connection_ends_the_right",
        ("Pipeline.connection_lost", "remote.state.introduce_again()", "pass"),
    ),
    mutant(
        "a redirection or a batch that is written again leaves the right",
        "the right to reuse ends where the server may have forgotten the hub",
        "kept_leases_go_back_when_a_server_carries_a_command_not_out",
        (
            "Batch.settle_error",
            "self.state.introduce_again()",
            "self.state.introduction.sent = False",
        ),
    ),
    mutant(
        "ones own pause leaves the right",
        "a set limit ends the right to reuse",
        "a_lowered_limit_ends_the_right",
        ("ChangeBatch.apply", "state.end_right()", "pass"),
    ),
    mutant(
        "the right is asked for where no recall can come",
        "leases are reused only while push messages arrive",
        "without_push_messages_no_lease_is_kept",
        (
            "SemaphoreState.ask_for_right",
            "self.route.redirect or self.route.link.no_push",
            "self.route.redirect",
        ),
    ),
    mutant(
        "a process that reuses leases never yields",
        "a recall is read although leases are reused in a tight loop",
        "every_sixteenth_lets_the_loop_run",
        ("reuse.others_are_due", "state.uses_in_a_row >= IN_A_ROW", "False"),
    ),
    mutant(
        "a lease leaks where one is cancelled that yields",
        "a cancelled caller gives the lease back that it has taken",
        "cancelled_while_it_lets_the_loop_run_it_leaks_nothing",
        ("RemoteSemaphore.let_others_run", "self.give_back(lease)\nraise", "raise"),
    ),
    mutant(
        "a lease is passed over a waiter that it does not fit",
        "a waiter that needs more is not passed over",
        "a_waiter_that_does_not_fit_is_not_passed_over",
        (
            "reuse.leave",
            "if not _may_have(state, request, lease): return False",
            "if not _may_have(state, request, lease): request = next(reversed(state.waiting))",
        ),
    ),
    mutant(
        "a kept lease is taken past requests in flight",
        "the order within a process is the order of the calls",
        "a_request_in_flight_comes_before_those_after_it",
        ("reuse.take", "not state.idle or state.acquires_in_flight", "not state.idle"),
    ),
    mutant(
        "kept leases stay beside a request",
        "a request that cannot use a kept lease has it sent back",
        "a_request_that_cannot_use_a_kept_lease_has_it_sent_back",
        ("reuse.make_room", "state.give_all_idle_back()", "pass"),
    ),
    mutant(
        "a lease whose id was read is reused",
        "an id or a token that was read belongs to one permit",
        "what_was_read_is_never_shared",
        ("reuse._may_be_reused", "not lease.is_known", "True"),
    ),
    mutant(
        "a lease whose loss somebody awaits is reused",
        "wait_lost tells of the loss of its own permit",
        "whose_loss_is_awaited_is_not_shared",
        ("reuse._may_be_reused", "not lease.wakes_on_loss", "True"),
    ),
    mutant(
        "a kept lease that was taken away is used",
        "what was released by its id is used by nobody",
        "a_kept_lease_may_be_revoked",
        ("trust.gone", "LeaseState.IDLE", "LeaseState.ENDED"),
    ),
    mutant(
        "a lease that is due for a refresh is reused",
        "a lease is trusted by its last refresh, whoever uses it",
        SIMULATION.replace("0", "4"),
        ("Lease.refresh_is_due", "", "return False"),
    ),
    mutant(
        "a lease is kept for longer than linger",
        "an unused lease goes back after linger",
        "each_lease_goes_back_when_it_was_kept_for_as_long_as_linger",
        ("reuse._end_use", "now + lease.terms.linger", "now + 1.5 * lease.terms.linger"),
    ),
    mutant(
        "a paused lease keeps its refresh task",
        "a kept lease is not refreshed",
        "a_kept_lease_has_no_refresh_task",
        ("Refresher.pause", "lease.refreshed_at not in self._due", "False"),
    ),
    mutant(
        "a reused lease is refreshed an interval after its reuse",
        "a lease is refreshed in time, whoever uses it",
        "a_lease_is_refreshed_in_time_whoever_uses_it",
        (
            "Refresher.add",
            "refresh_due(since, terms.refresh_interval)",
            "refresh_due(now, terms.refresh_interval)",
        ),
    ),
    mutant(
        "a lease is reused to the end of its max_hold",
        "the next user of a lease has most of max_hold",
        "a_lease_is_reused_while_most_of_it_is_left",
        ("_hub.reuse", "HOLD_LEFT = 0.9", "HOLD_LEFT = 0.0"),
    ),
    mutant(
        "a kept lease is for any key",
        "a permit counts for the key that was asked for",
        "a_lease_that_is_kept_is_for_its_key[redis]",
        ("Lease.fits", "key is self.key or key == self.key", "True"),
    ),
    mutant(
        "leases are reused while the limit of a key is set",
        "no lease is reused past the limit that is set for its key",
        "a_lease_is_not_reused_past_the_limit_that_is_set_for_a_key[redis]",
        ("prelude.answer_right", "keyed.limits_set() > 0", "false"),
    ),
)
