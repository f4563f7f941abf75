"""Which test shows what: every fault of the model, and every bad argument, with its tests.

`test_table.py` holds it to the tests that there are; the documentation shows it as `render`
writes it. Numbers are those of the fault model, so they stay what they are.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, or one mistake; and the tests, ``file::test`` below ``tests/``, that cause it."""

    title: str
    tests: tuple[str, ...]


def _case(title: str, tests: str) -> Case:
    """Tests of one file follow its name, which ends in a colon."""
    file, named = "", list[str]()
    for word in tests.split():
        if word.endswith(":"):
            file = word[:-1] + ".py"
        else:
            named.append(f"{file}::test_{word}")
    return Case(title, tuple(named))


FAULTS: Final[dict[int, Case]] = {
    # -- the holder
    1: _case(
        "Holder killed (kill -9): its permit is free when the lease ends",
        """faults/test_processes:
        a_killed_holder_is_in_the_way_for_a_lease_at_most
        waiters_of_a_killed_holder_wait_for_the_rest_of_its_lease
        faults/test_holders: a_newcomer_clears_up_after_who_has_expired""",
    ),
    2: _case(
        "Holder stopped (SIGSTOP) for less than lease and refresh leave: nothing is lost",
        "faults/test_processes: a_short_stop_costs_nothing",
    ),
    3: _case(
        "Holder stopped for longer than its lease: cancelled before it goes on",
        """faults/test_processes: a_long_stop_cancels_the_body_before_it_goes_on
        faults/test_holders: an_expired_permit_is_not_refreshed""",
    ),
    4: _case(
        "Event loop blocked for longer than the lease: cancelled before the body goes on",
        "faults/test_processes: a_blocked_loop_cancels_the_body_before_it_goes_on",
    ),
    5: _case(
        "Body computes and never awaits: `check()` raises in time",
        "faults/test_processes: a_body_that_never_awaits_can_ask",
    ),
    6: _case(
        "Body in a thread: the block is left as lost, the thread runs on",
        "faults/test_holders: a_body_in_a_thread",
    ),
    7: _case(
        "Host suspended: trust ends all the same (its clock is patched)",
        "faults/test_holders: a_suspended_host",
    ),
    8: _case(
        "Fork: the child can neither use nor spoil what is its parent's",
        """faults/test_processes:
        a_fork_leaves_the_permit_with_the_parent
        collecting_an_inherited_permit_does_not_release_it
        a_semaphore_at_module_level_survives_forks""",
    ),
    9: _case(
        "Program ends, is interrupted, or a task group fails: released",
        """faults/test_processes:
        a_program_that_ends_releases
        an_interrupted_waiter_leaves_the_line
        faults/test_server: closing_without_a_server_takes_a_moment
        behaviour/test_hub_life: a_program_that_just_ends_is_silent_and_releases""",
    ),
    10: _case(
        "Body swallows the cancellation: PermitLost leaves the block",
        """faults/test_holders:
        a_body_that_swallows_the_cancellation
        an_error_of_the_bodys_own_wins""",
    ),
    11: _case(
        "Block left in another task: releases, and tells of a loss",
        "faults/test_holders: a_block_that_is_left_in_another_task",
    ),
    12: _case(
        "Double, late and foreign releases: False, and nothing changes",
        """faults/test_holders: releases_that_are_not_due_change_nothing
        faults/test_lost_replies: a_lost_reply_of_release_does_not_free_twice
        faults/test_processes:
        a_permit_lost_elsewhere_raises_in_the_process_that_held_it""",
    ),
    # -- acquiring
    13: _case(
        "Cancelled before anything was sent: no trace",
        """faults/test_lost_replies:
        cancelled_before_anything_was_sent cancelled_while_connecting""",
    ),
    14: _case(
        "Cancelled after it was sent: given back within a round trip",
        """faults/test_lost_replies: cancelled_after_it_was_sent
        behaviour/test_cancellation:
        cancelled_at_every_await_nothing_is_left
        600_randomly_cancelled_acquires_leave_every_permit_free""",
    ),
    15: _case(
        "Granted and cancelled in the same tick: handed on, once",
        """faults/test_lost_replies:
        a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick""",
    ),
    16: _case(
        "Grant meets deadline: a permit or a timeout, never a leak",
        """faults/test_lost_replies:
        a_grant_that_meets_its_deadline_is_a_permit_or_a_timeout
        faults/test_quick_path: no_memory_for_an_acquire_sent_again""",
    ),
    17: _case(
        "Reply lost, command sent again: one permit, one release",
        """faults/test_lost_replies:
        a_lost_reply_of_acquire_is_one_permit
        a_lost_request_is_sent_again
        a_lost_reply_of_release_is_a_release
        faults/test_quick_path: no_memory_for_an_acquire_sent_again""",
    ),
    18: _case(
        "Duplicate run late, from a closed connection: brings nothing back",
        """faults/test_lost_replies:
        a_delayed_duplicate_brings_nothing_back
        duplicates_of_everything_change_nothing
        faults/test_quick_path: no_memory_and_a_delayed_first_copy""",
    ),
    19: _case(
        "Head of the line killed, or stopped: passed over",
        """faults/test_processes:
        the_head_of_the_line_is_passed_over_when_its_process_is_killed
        a_hint_to_a_killed_process_reaches_another
        a_stopped_head_costs_a_short_lease_only
        a_process_that_is_silent_for_long_is_passed_over
        who_waits_behind_a_silent_process_is_served_once_that_counts_as_dead
        nothing_is_handed_to_a_process_that_is_silent_for_long""",
    ),
    20: _case(
        "1,000 acquires at once on a default client: one connection",
        """faults/test_lost_replies: a_thousand_acquires_at_once_need_one_connection
        behaviour/test_hub_life: 1000_acquires_at_once_on_a_default_client""",
    ),
    21: _case(
        "Pool too small: the hub has a connection of its own, so there is no stall",
        """faults/test_lost_replies: a_pool_of_one_connection_is_no_stall
        behaviour/test_hub_life: a_pool_that_is_used_up_is_not_needed""",
    ),
    22: _case(
        "Short timeout beside a long socket timeout, and the reverse: the deadline is kept",
        """faults/test_server:
        the_deadline_is_the_callers a_host_that_does_not_answer""",
    ),
    # -- notification
    23: _case(
        "Connection killed during a release: served after a reconnection and a trip",
        """faults/test_messages:
        the_connection_is_killed_during_a_release
        all_subscribers_are_killed
        a_killed_connection_costs_a_holder_nothing
        a_grant_in_flight_when_the_connection_breaks
        faults/test_lost_replies: a_grant_whose_message_was_lost_is_found
        faults/test_quick_path: a_hint_survives_the_acquire_that_carries_it""",
    ),
    24: _case(
        "Connection half open, or slow: noticed by what stays unanswered",
        """faults/test_lost_replies:
        a_half_open_connection_is_noticed
        a_lost_reply_of_refresh_is_no_loss
        a_slow_network_shortens_trust_and_breaks_nothing""",
    ),
    25: _case(
        "Garbled, forged and stray messages, a subscription ended unasked",
        """faults/test_messages:
        garbled_messages_are_ignored
        a_forged_grant_is_found_out
        a_stray_grant_is_given_back
        faults/test_lost_replies:
        a_reply_that_belongs_to_another_command_is_noticed
        a_reply_that_comes_in_anothers_place_is_noticed
        a_subscription_that_ends_unasked_is_made_anew""",
    ),
    26: _case(
        "A grant before the subscription is confirmed: it listens before it asks",
        "faults/test_lost_replies: it_listens_before_it_asks",
    ),
    27: _case(
        "10,000 messages: coalesced",
        "faults/test_messages: ten_thousand_messages_are_coalesced",
    ),
    28: _case(
        "Subscriptions denied by ACL: heartbeats find the grants, one warning",
        """faults/test_messages: denied_subscriptions_are_warned_of_once
        faults/test_least_privilege: without_messages_heartbeats_find_the_grants""",
    ),
    # -- the server
    29: _case(
        "SCRIPT FLUSH before every call, and all the time",
        """faults/test_server:
        scripts_flushed_before_every_call scripts_flushed_all_the_time
        faults/test_quick_path: a_hint_survives_the_acquire_that_carries_it""",
    ),
    30: _case(
        "Restart without persistence, FLUSHALL, keys evicted or deleted: holders learn in time",
        """faults/test_server:
        holders_learn_that_the_keys_are_gone
        waiters_go_on_when_the_keys_are_gone
        a_single_key_is_gone
        faults/test_quick_path:
        release_after_the_holders_were_evicted
        adopt_when_a_key_was_evicted
        heartbeat_when_a_key_was_evicted
        faults/test_recovery:
        holders_come_back_before_anybody_new_is_admitted
        a_set_limit_is_not_put_back""",
    ),
    31: _case(
        "Server stalls: nothing is lost, or bodies are cancelled in time",
        """faults/test_server:
        a_short_stall_costs_nothing a_long_stall_cancels_bodies_in_time""",
    ),
    32: _case(
        "BUSY, LOADING, NOREPLICAS, MISCONF, CLUSTERDOWN, TRYAGAIN, MASTERDOWN: ridden out",
        """faults/test_server:
        a_busy_server_is_waited_for
        a_held_permit_outlives_a_busy_server
        a_server_that_is_busy_at_first_leaves_nobody_deaf
        a_server_that_takes_no_writes_is_waited_for
        passing_trouble_is_ridden_out
        no_server_at_start
        nobody_tries_to_connect_for_who_has_left
        faults/test_refusals:
        a_server_that_loads_its_data_is_waited_for
        a_replica_without_its_master_is_waited_for
        faults/test_cluster:
        a_cluster_that_is_down_is_waited_for
        a_slot_on_its_way_is_waited_for""",
    ),
    33: _case(
        "`maxmemory` reached: acquire fails with nothing written, refresh and release succeed",
        """faults/test_server: no_memory_left no_memory_left_while_waiting
        faults/test_quick_path:
        no_memory_for_an_acquire_sent_again
        a_hint_survives_the_acquire_that_carries_it
        faults/test_clocks: an_hour_back_at_maxmemory""",
    ),
    34: _case(
        "Evicting `maxmemory-policy`: one warning; what is evicted is lost in time",
        """faults/test_eviction:
        an_evicting_policy_is_warned_of_once
        a_policy_that_evicts_nothing_is_no_warning
        who_may_not_ask_goes_on_without
        what_is_evicted_is_lost_in_time""",
    ),
    35: _case(
        "Server's clock an hour forward: lost at the next refresh, tokens in order",
        """faults/test_clocks:
        an_hour_forward_is_a_loss_and_tokens_stay_in_order
        an_hour_forward_cancels_the_body
        back_and_forth_tokens_grow""",
    ),
    36: _case(
        "Server's clock an hour back: no lease lasts an hour, tokens in order",
        """faults/test_clocks:
        after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most
        after_an_hour_back_who_comes_late_waits_for_a_lease_at_most
        an_hour_back_costs_a_holder_nothing
        back_and_forth_tokens_grow
        an_hour_back_at_maxmemory
        stateful/test_model: memory_and_redis_agree""",
    ),
    37: _case(
        "A key of another type: BackendError, nothing written, no loop",
        """faults/test_server:
        a_key_of_another_type a_key_turns_into_another_type_meanwhile
        faults/test_quick_path: a_key_of_another_type_on_the_quick_path""",
    ),
    38: _case(
        "Master demoted: its READONLY sends clients to the new one",
        """faults/test_failover:
        a_demoted_master_is_left_for_the_new_one
        a_grant_that_nobody_heard_is_not_told_by_a_demoted_master
        whatever_a_demoted_master_refuses_is_done_by_the_new_one
        a_real_failover_is_ridden_out""",
    ),
    39: _case(
        "Failover that loses k writes: at most k holders more, for at most a lease",
        """faults/test_failover:
        a_failover_that_loses_grants_lets_as_many_in_and_for_a_lease_at_most
        a_failover_that_loses_releases_costs_a_lease_at_most
        a_failover_that_loses_the_line_loses_no_waiter
        a_failover_longer_than_the_lease_is_a_loss_in_time
        a_real_failover_is_ridden_out""",
    ),
    40: _case(
        "Cluster: MOVED, ASK, TRYAGAIN, a dead shard, a shard that fails over",
        """faults/test_cluster:
        semaphores_are_spread_over_the_shards
        a_slot_that_moved_is_followed
        a_slot_on_its_way_is_waited_for
        a_permit_whose_keys_have_all_moved_is_refreshed_there
        a_dead_shard_takes_none_of_the_others_along
        a_shard_that_fails_over_is_followed""",
    ),
    41: _case(
        "Limit lowered: nobody evicted. Raised: waiters served at once",
        """faults/test_holders:
        a_lowered_limit_evicts_nobody a_raised_limit_serves_at_once""",
    ),
    42: _case(
        "Different leases and limits on one name leave one another alone",
        """faults/test_holders:
        a_higher_limit_of_another_client_is_its_own
        short_and_long_leases_on_one_name""",
    ),
    43: _case(
        "10,000 expired holders, 10,000 waiters: no script over a few milliseconds",
        "faults/test_server: ten_thousand_expired_holders ten_thousand_waiters",
    ),
    44: _case(
        "Promoted replica's clock is ahead of its master's, or behind; no write is lost",
        """faults/test_promoted_clocks:
        a_clock_ahead_at_a_failover_lets_nobody_in_early_with_grace
        a_clock_ahead_at_a_failover_costs_no_permit_with_grace
        a_release_that_reaches_a_new_master_first_serves_nobody_early_with_grace
        a_clock_ahead_at_a_failover_lets_two_in_for_no_longer_than_that_without_grace
        a_clock_behind_at_a_failover_makes_leases_longer_and_no_more""",
    ),
    # -- found from outside
    45: _case(
        "A detach that is lost, late, cancelled, refused or repeated: trust ends before the server"
        " lets go",
        """faults/test_detach:
        a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for
        a_detach_that_is_cancelled_leaves_the_permit_held
        a_detach_that_is_cancelled_and_never_answered
        a_detach_that_nobody_asks_for_any_more_is_made_void
        a_detach_that_is_sent_again_counts_once_more
        a_detach_that_is_refused_leaves_the_permit_held
        a_permit_that_is_released_while_it_is_detached
        of_two_detaches_one_gives_the_id
        a_detach_after_one_that_was_cancelled""",
    ),
    46: _case(
        "Administrative calls that arrive late, or twice: they act once",
        """faults/test_once:
        a_limit_that_arrives_late_is_not_set_again
        a_limit_whose_reply_was_lost_is_not_set_again
        calls_that_are_sent_again_together_act_in_their_order
        a_clear_that_arrives_late_takes_nothing
        a_clear_whose_reply_was_lost_is_carried_out_once
        a_clear_leaves_acquires_that_are_late_void
        what_waits_in_a_process_is_told_by_its_latest_call""",
    ),
    47: _case(
        "An adoption that an abandon overtakes, or that was given up and arrives late",
        """faults/test_once:
        an_adoption_is_not_lost_to_the_abandon_of_a_later_acquire
        an_adoption_that_was_given_up_arrives_late""",
    ),
    48: _case(
        "A line longer than one scan, of requests that cannot be served: nobody is hidden behind",
        """faults/test_long_lines:
        a_light_request_is_not_hidden_behind_heavy_ones
        a_process_that_lives_is_not_hidden_behind_one_that_was_killed
        requests_of_a_process_that_is_dead_are_dropped_from_where_they_were_set_aside""",
    ),
    49: _case(
        "A hint for a process that cannot use it: others are told, and it does not go round",
        """faults/test_long_lines:
        a_hint_goes_to_who_can_use_it
        a_hint_that_came_too_late_for_its_process_is_passed_on
        a_hint_that_fits_nobody_does_not_go_round_for_ever""",
    ),
    50: _case(
        "Holders evicted, one of several permits killed: its permits end with its lease",
        """faults/test_quick_path:
        permits_of_the_dead_end_with_their_lease_in_a_grace_period_too
        phantom_weights_after_eviction_of_holders""",
    ),
}

_CALLS = "behaviour/test_validation: bad_calls_send_nothing "
_OPTIONS = "behaviour/test_validation: bad_options "
_REQUESTS = "behaviour/test_validation: bad_acquires_are_refused_at_the_call bad_try_acquires "

MISTAKES: Final[tuple[Case, ...]] = (
    _case("limit not an int ≥ 0 (bool is no int)", _OPTIONS + _CALLS),
    _case("permits < 1, not an int, or above a declared limit", _REQUESTS + _CALLS),
    _case("lease not finite, or < 0.05", _OPTIONS + "a_mutex_is_as_strict"),
    _case("timeout negative or NaN", _OPTIONS + _REQUESTS + _CALLS),
    _case("name empty, over 512 bytes, or with a brace", _OPTIONS + "a_mutex_is_as_strict"),
    _case(
        "a synchronous Redis client, or none at all",
        """behaviour/test_validation:
        a_synchronous_client_is_refused
        what_is_no_client_is_refused
        what_is_no_client_cannot_be_closed""",
    ),
    _case("`release()` without an id", _CALLS + "release_of_a_permit_says_how"),
)


def render() -> str:
    """The table as Markdown, for the documentation."""
    rows = ["| | fault | tests |", "| --- | --- | --- |"]
    rows += [f"| {number} | {case.title} | {_list(case)} |" for number, case in FAULTS.items()]
    rows += ["", "| bad argument | tests |", "| --- | --- |"]
    rows += [f"| {case.title} | {_list(case)} |" for case in MISTAKES]
    return "\n".join(rows) + "\n"


def _list(case: Case) -> str:
    return "<br>".join(f"`{test.removeprefix('faults/')}`" for test in case.tests)


INTRODUCTION: Final = """\
# Faults, and the tests that cause them

Each is caused for real, on real servers and, where it says so, with real processes, and each test
proves that it happened. Tests are below `tests/faults/` unless another folder is named. This page
is written by `python -m tests.faults.table > docs/faults.md`, and a test compares the two.

"""

if __name__ == "__main__":
    print(INTRODUCTION + render(), end="")
