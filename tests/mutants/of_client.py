"""Mutants of the client: the scripts and their specification are right."""

from .mutant import mutant
from .target import AGREEMENT, SIMULATION

OF_CLIENT = (
    mutant(
        "trust is counted from the reply",
        "lost comes before the server's expiry",
        SIMULATION,
        (
            "_hub/commands/acquire.py",
            "trusted_until(terms.lease, sent_at=sent_at, left=terms.lease)",
            "trusted_until(terms.lease, sent_at=now, left=terms.lease)",
        ),
    ),
    mutant(
        "a refresh is counted from its reply",
        "lost comes before the server's expiry",
        "core/test_rules.py::test_what_a_refresh_says_of_trust",
        (
            "_core/lease.py",
            "max(trusted, trusted_until(lease, sent_at=sent_at, left=lease))",
            "max(trusted, trusted_until(lease, sent_at=now, left=lease))",
        ),
    ),
    mutant(
        "a negative margin",
        "trust ends before the server lets go",
        SIMULATION,
        (
            "_core/lease.py",
            "    return 0.01 * lease + 0.005\n",
            "    return -0.01 * lease - 0.005\n",
        ),
    ),
    mutant(
        "a message is trusted from its arrival",
        "a permit is trusted from before the server granted it",
        (
            "faults/test_messages.py"
            "::test_a_grant_that_was_on_its_way_for_long_is_trusted_for_what_is_left"
        ),
        (
            "_hub/machine.py",
            "sent_at = -math.inf if fresh_at is None else fresh_at",
            "sent_at = clock()",
        ),
    ),
    mutant(
        "a late message is handed out unconfirmed",
        "a forged or old grant is found out before anybody works under it",
        SIMULATION,
        (
            "_hub/handout.py",
            "    if lease.trusted_until - now >= left / 2:\n",
            "    if left is not None:\n",
        ),
    ),
    mutant(
        "a permit that was handed over keeps its short lease",
        "a hand-over's lease is made whole soon",
        "promises/test_queue.py::test_a_permit_that_was_handed_over_has_a_whole_lease_soon",
        (
            "_hub/machine.py",
            "            _ = state.refresh(lease)\n    return short",
            "            pass\n    return short",
        ),
    ),
    mutant(
        "no abandon after a cancellation",
        "a cancelled acquire leaves nothing",
        "promises/test_given_up.py::test_cancelled_after_it_was_sent",
        (
            "_hub/state.py",
            "            self.leaving.append(request)\n            self.stirred = True\n",
            "            self.requests.pop(request.number, None)\n",
        ),
    ),
    mutant(
        "a grant in the tick of the cancellation is kept",
        "grant and cancellation in the same tick: given back exactly once",
        (
            "promises/test_given_up.py"
            "::test_a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick"
        ),
        (
            "_hub/state.py",
            "            self.overdue.pop(request, None)\n            self.give_back(lease, clock(), trusted=False)\n",
            "            self.overdue.pop(request, None)\n",
        ),
    ),
    mutant(
        "a timeout leaks its grant",
        "a grant that meets its deadline is a permit or a timeout, never a leak",
        SIMULATION,
        (
            "_hub/state.py",
            "        self.leave(request)\n        request.fail(error)\n",
            "        self.stop_waiting(request)\n        request.fail(error)\n",
        ),
    ),
    mutant(
        "a grant that nobody waits for is kept",
        "a stray grant is given back",
        "faults/test_messages.py::test_a_stray_grant_is_given_back",
        (
            "_hub/handout.py",
            "            state.give_back_unknown(state.identity.id, number)\n",
            "            pass\n",
        ),
    ),
    mutant(
        "an acquire sent again draws a new id",
        "a command that is sent again is one permit",
        "promises/test_duplicates.py::test_a_lost_reply_of_acquire_is_one_permit",
        (
            "_hub/commands/acquire.py",
            "                request.was_sent = True\n",
            "                self.state.forget_number(request)\n",
        ),
    ),
    mutant(
        "what was unanswered is not sent again",
        "a lost connection costs nobody an answer",
        "promises/test_duplicates.py::test_a_lost_request_is_sent_again",
        (
            "_hub/pipeline.py",
            "            batch.write_again(arrived=True)\n",
            "            pass\n",
        ),
    ),
    mutant(
        "a foreign id releases one's own",
        "a foreign release changes nothing",
        "promises/test_release.py::test_a_foreign_id_releases_nothing",
        (
            "_hub/trust.py",
            "state.leases.get(number) if owner == state.identity.id else None",
            "state.leases.get(number)",
        ),
    ),
    mutant(
        "a second release says true",
        "a double release is False",
        "promises/test_release.py::test_a_second_release_changes_nothing",
        (
            "_api/permit.py",
            "        if not self._ours or lease.state is LeaseState.ENDED:\n            return False\n",
            "        if not self._ours or lease.state is LeaseState.ENDED:\n            return True\n",
        ),
    ),
    mutant(
        "a lost permit's release says true",
        "a late release is False",
        "promises/test_loss_detection.py::test_a_permit_by_itself_cancels_nobody",
        ("_api/permit.py", "        return held and not lost\n", "        return True\n"),
    ),
    mutant(
        "a release is not waited for when cancelled",
        "release() is confirmed, also under cancellation",
        "promises/test_peers_bugs.py::test_bug_5_cancellation_of_a_release_is_not_swallowed",
        (
            "_api/permit.py",
            "                await finish(future, 2 * reply_timeout(lease.terms.lease))\n",
            "                pass\n",
        ),
    ),
    mutant(
        "a release is kept when its lease has ended",
        "what leaving a block handed over is sent until the lease has ended",
        "promises/test_leaving.py::test_a_release_is_dropped_when_the_lease_has_ended",
        ("_hub/state.py", "        ends = now + lease.terms.lease\n", "        ends = math.inf\n"),
    ),
    mutant(
        "a set limit is forgotten in retry_after",
        "`retry_after` is an estimate under the limit in force",
        "worlds/test_steady_work.py::test_on_steady_work_it_is_what_the_next_request_waits",
        (
            "_hub/estimates.py",
            "    limit = terms.limit if report.set_limit is None else report.set_limit\n",
            "    limit = terms.limit\n",
        ),
    ),
    mutant(
        "a cold process does not listen to how long others hold",
        "a cold process goes by how long the others hold permits",
        "promises/test_errors.py::test_a_cold_process_is_told_how_long_others_hold",
        ("_hub/estimates.py", "    if reply.hold_ms is not None:\n", "    if not reply:\n"),
    ),
    mutant(
        "a hold is never told",
        "a cold process goes by how long the others hold permits",
        "promises/test_errors.py::test_a_cold_process_is_told_how_long_others_hold",
        ("_hub/estimates.py", "    if state.own_hold is None or now", "    if True or now"),
    ),
    mutant(
        "every release tells a hold",
        "a hold is told every few seconds at most",
        "promises/test_errors.py::test_a_hold_is_told_seldom_and_smoothed",
        ("_hub/estimates.py", "TELL_HOLD = 5.0", "TELL_HOLD = 0.0"),
    ),
    mutant(
        "a hold that nobody has measured is a lease",
        "an unknown hold is never taken to be a whole lease",
        "promises/test_errors.py::test_a_hold_that_nobody_has_measured_is_not_a_lease",
        ("_core/lease.py", "longest = min(lease, UNKNOWN_HOLD)", "pass"),
    ),
    mutant(
        "a hub overlooks that its client was closed",
        "an idle hub goes with its client",
        "promises/test_lifecycle.py::test_a_hub_goes_with_its_client",
        ("_hub/reconnect.py", "pipeline.leaving or clock()", "clock()"),
    ),
    mutant(
        "a hub with work closes when its client does",
        "a hub with work outlives its client",
        "promises/test_lifecycle.py::test_a_hub_with_work_outlives_its_client_until_it_is_idle",
        ("_hub/reconnect.py", "if unused and not pipeline.has_work():", "if unused:"),
    ),
    mutant(
        "a hub whose client was closed looks for the end of its work once",
        "a hub with work closes as soon as it has none, once its client is closed",
        "promises/test_lifecycle.py::test_a_hub_with_work_outlives_its_client_until_it_is_idle",
        (
            "_hub/pipeline.py",
            "        if self.leaving:\n            self.stirred.set()",
            "        if not self:\n            self.stirred.set()",
        ),
    ),
    mutant(
        "a hub whose client was closed once keeps no idle connection any more",
        "a client that was closed may be used again, as before",
        "promises/test_lifecycle.py::test_a_hub_with_work_outlives_its_client_until_it_is_idle",
        (
            "_hub/pipeline.py",
            "        self.leaving = False\n        for timer in",
            "        for timer in",
        ),
    ),
    mutant(
        "many clients are not counted",
        "many clients of one server are warned of",
        "promises/test_lifecycle.py::test_many_clients_of_one_server_are_warned_of_once",
        ("_redis/backend.py", "    if hubs > MANY:\n", "    if not place:\n"),
    ),
    mutant(
        "a loss does not say that the loop was blocked",
        "a loss because the event loop was blocked says so",
        "promises/test_loss_detection.py::test_loss_that_the_body_finds_itself",
        (
            "_hub/stalls.py",
            "if self._ran_at < due < now:",
            "if not self:",
        ),
    ),
    mutant(
        "timers that run late are forgotten at once",
        "a loss because the event loop was blocked says so",
        "promises/test_loss_detection.py::test_all_permits_that_a_blocked_loop_loses_say_so",
        ("_hub/stalls.py", "        if due > self._ran_at:\n", "        if True:\n"),
    ),
    mutant(
        "an outage of Redis is told as a blocked loop",
        "a loss in an outage does not say that the loop was blocked",
        "promises/test_loss_detection.py"
        "::test_entering_what_is_lost_says_so_when_it_cannot_be_given_back",
        (
            "_hub/stalls.py",
            "if late and not failed and trusted <= gap.end and trusted < lease.hold_ends:",
            "if trusted < lease.hold_ends:",
        ),
    ),
    mutant(
        "a refresh that is answered too late does not say why",
        "a loss because the event loop was blocked says so",
        "promises/test_loss_detection.py::test_a_reply_that_lay_in_the_socket_of_a_blocked_loop",
        (
            "_hub/trust.py",
            "gone(state, lease, verdict.reason if known else doubt(state, lease))",
            "gone(state, lease, verdict.reason)",
        ),
    ),
    mutant(
        "a response that is left unread is not warned of",
        "a response that is left unread for a lease is named",
        "integrations/outbound/test_transport.py"
        "::test_a_response_that_is_left_unread_is_named_once",
        ("_integrations/outbound.py", "        if left > 0:\n", "        if True:\n"),
    ),
    mutant(
        "a response that the upstream is slow to send is taken to be left unread",
        "a response that is read is not warned of",
        "integrations/outbound/test_transport.py::test_a_response_that_is_read_is_not_warned_of",
        (
            "_integrations/outbound.py",
            "is_read = self._scope is not None  #",
            "is_read = False  #",
        ),
    ),
    mutant(
        "the timer of a response outlives it",
        "no timer is left of a response that was read",
        "integrations/outbound/test_transport.py::test_a_response_that_is_read_is_not_warned_of",
        (
            "_integrations/outbound.py",
            "                    self._timer.cancel()\n",
            "                    pass\n",
        ),
    ),
    mutant(
        "leaving a block sends the release by itself",
        "the release leaves in this turn of the loop, with what that turn asks",
        "promises/test_leaving.py::test_the_release_and_the_next_acquire_are_one_write",
        (
            "_hub/remote_semaphore.py",
            "self.writer.settle(self, asked=future is not None, size=len(state.releases[lease.hub_id]))",
            "self.writer.settle(self, asked=True, size=len(state.releases[lease.hub_id]))",
        ),
    ),
    mutant(
        "no heartbeats",
        "a waiter's process counts as alive, and finds what it was not told",
        SIMULATION,
        (
            "_hub/machine.py",
            "        if state.waiting and not heartbeats.in_flight:\n            state.beat()\n",
            "        pass\n",
        ),
    ),
    mutant(
        "nobody is asked about after a reconnect",
        "a waiter is served within a reconnect and a trip",
        "faults/test_network.py::test_a_subscription_that_ends_unasked_is_made_anew",
        (
            "_hub/machine.py",
            "    if state.waiting:\n        state.beat()\n    if state.recovers:",
            "    if state.recovers:",
        ),
    ),
    mutant(
        "the subscription is not renewed on a new connection",
        "a waiter hears of its grant after a reconnect",
        "faults/test_network.py::test_a_subscription_that_ends_unasked_is_made_anew",
        (
            "_redis/connection.py",
            "        self._subscriptions = Subscriptions(self._hub, sharded=opened.sharded)\n",
            "        made = Subscriptions(self._hub, sharded=opened.sharded)\n        self._subscriptions = vars(listener).setdefault('_subscriptions', made)\n",
        ),
    ),
    mutant(
        "a subscription that ends is not missed",
        "a waiter hears of its grant, or asks",
        "faults/test_network.py::test_a_subscription_that_ends_unasked_is_made_anew",
        (
            "_redis/connection.py",
            '                raise connection_error("the server ended the subscription")\n',
            "                pass\n",
        ),
    ),
    mutant(
        "whose reply it is is not looked at",
        "no reply is taken for another's",
        "faults/test_messages.py::test_a_reply_that_comes_in_anothers_place_is_noticed",
        (
            "_redis/connection.py",
            '            fits = reply[0] == b"%d" % slot.tag\n',
            "            fits = True\n",
        ),
    ),
    mutant(
        "a silent connection is not noticed",
        "a half-open connection is noticed",
        "faults/test_network.py::test_a_half_open_connection_is_noticed",
        (
            "_hub/pipeline.py",
            '            self._drop(TimeoutError("no answer came"))\n',
            "            pass\n",
        ),
    ),
    mutant(
        "scripts are not loaded again",
        "a script flush costs nobody anything",
        "faults/test_server.py::test_scripts_flushed_before_every_call",
        (
            "_redis/connection.py",
            "                self._loaded.clear()\n",
            "                pass\n",
        ),
    ),
    mutant(
        "a demoted master is kept",
        "a demoted master is left for the new one",
        "faults/test_failover.py::test_a_demoted_master_is_left_for_the_new_one",
        (
            "_redis/connection.py",
            "            if error.kind is ErrorKind.READ_ONLY:\n                self._fail(reply)\n",
            "",
        ),
    ),
    mutant(
        "MOVED is not followed",
        "slots may move to another server",
        "faults/test_cluster.py::test_a_slot_that_moved_is_followed",
        (
            "_hub/pipeline.py",
            "                return self.redirects.redirected(remote, error)\n",
            "                pass\n",
        ),
    ),
    mutant(
        "REORDERED is an error",
        "what has to be sent again is, unseen",
        f"{AGREEMENT}[fair-server]",
        ("_redis/faults.py", "(NOSCRIPT|REORDERED|UNKNOWNHUB|VOID)", "(NOSCRIPT|UNKNOWNHUB|VOID)"),
    ),
    mutant(
        "no refreshes",
        "a held permit outlives its lease",
        "promises/test_loss_detection.py::test_a_held_permit_outlives_its_lease",
        (
            "_keepalive/refresher.py",
            "            remote.refresh_in_background(lease, wakeup)\n",
            "",
        ),
    ),
    mutant(
        "a refusal to renew is overlooked",
        "lost is set when the server says so",
        "promises/test_loss_detection.py::test_refresh_finds_it_out_now",
        (
            "_core/lease.py",
            '    if outcome is Outcome.GONE:\n        return Lost("the server does not hold it any more")\n',
            "",
        ),
    ),
    mutant(
        "trust does not end",
        "a permit that was not renewed in time is lost",
        SIMULATION,
        (
            "_hub/trust.py",
            "clock() >= lease.trusted_until:\n        lose(",
            "clock() >= lease.trusted_until + 1e9:\n        lose(",
        ),
    ),
    mutant(
        "trust is not looked at when due",
        "after a stall the body is cancelled before it goes on",
        SIMULATION,
        (
            "_keepalive/refresher.py",
            "            if lose_unless_trusted(remote.state, lease):\n                continue\n",
            "",
        ),
        (
            "_keepalive/refresher.py",
            "            self._check_trust(lease, remote)\n\n    def _check_trust",
            "\n    def _check_trust",
        ),
    ),
    mutant(
        "check() says yes while it is held",
        "check() raises unless the permit may be trusted now",
        "promises/test_loss_detection.py::test_loss_that_the_body_finds_itself",
        (
            "_api/permit.py",
            "        if lease.trusted_at(clock()):\n            return True\n        loop, state =",
            "        if lease.state is LeaseState.HELD:\n            return True\n        loop, state =",
        ),
    ),
    mutant(
        "a clock that a suspended host stops",
        "a suspended host's permits are lost when it wakes",
        "promises/test_holders.py::test_a_suspended_host",
        (
            "_core/clock.py",
            "return max(time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())",
            "return time.monotonic()",
        ),
    ),
    mutant(
        "a loss does not cancel the body",
        "loss cancels the body",
        "promises/test_loss.py::test_loss_cancels_the_body_once_and_leaves_as_permit_lost",
        ("_hub/lease.py", "            lease.guard = self\n", "            pass\n"),
    ),
    mutant(
        "a swallowed cancellation swallows the loss",
        "PermitLost leaves the block, also when the body swallowed the cancellation",
        "promises/test_loss.py::test_a_body_that_swallows_the_cancellation_leaves_as_permit_lost",
        ("_api/permit.py", "(exc is None or cancelled_by_loss)", "cancelled_by_loss"),
    ),
    mutant(
        "a loss hides the body's error",
        "an error of the body's own wins",
        "promises/test_loss.py::test_an_error_of_the_bodys_own_wins",
        (
            "_api/permit.py",
            "if lost and self._cancel_on_loss and (exc is None or cancelled_by_loss):",
            "if lost and self._cancel_on_loss:",
        ),
    ),
    mutant(
        "a cancellation that is not taken back",
        "cancel and uncancel, as asyncio.timeout does",
        "promises/test_loss.py::test_loss_cancels_the_body_once_and_leaves_as_permit_lost",
        (
            "_hub/lease.py",
            "self._task.uncancel() <= self._cancelling",
            "self._task.cancelling() - 1 <= self._cancelling",
        ),
    ),
    mutant(
        "a clear is not heard",
        "holders of a semaphore that is deleted lose their permits",
        "promises/test_loss.py::test_many_tasks_lose_their_permits_at_once",
        (
            "_hub/trust.py",
            '        gone(state, lease, "the semaphore was cleared")\n',
            "        pass\n",
        ),
    ),
    mutant(
        "a dropped permit is not released",
        "a permit that is dropped is released",
        "promises/test_loss_detection.py::test_a_dropped_permit_warns_and_is_released",
        (
            "_api/permit.py",
            "        loop.call_soon_threadsafe(\n            _release_dropped, self._bound, self._lease, self._since, self._acquired_at\n        )\n",
            "",
        ),
    ),
    mutant(
        "a third task leaves the newest block",
        "a block that is left never gives another task's permit away",
        "promises/test_acquire.py::test_a_block_left_by_a_third_task_gives_no_permit_away",
        (
            "_api/entered.py",
            "        if blocks == 1:\n            return here[0]\n",
            "        if blocks:\n            return here[-1]\n",
        ),
    ),
    mutant(
        "a lease that ended while its user yielded is handed out",
        "trust is checked before a permit is handed out",
        "worlds/test_linger.py"
        "::test_no_lease_is_handed_out_that_ended_while_its_user_let_others_run",
        (
            "_hub/remote_semaphore.py",
            "        if lease.state is LeaseState.LOST or not reuse.is_fresh(state, lease, clock()):\n",
            "        if False:\n",
        ),
    ),
    mutant(
        "a close of the user's own is passed over",
        "closing a client is what the client says it is",
        "promises/test_lifecycle.py::test_closing_is_what_the_client_says_it_is",
        (
            "_redis/dial.py",
            "    closes = untyped.aclose",
            "    closes = type(client).aclose.__get__(client)",
        ),
    ),
    mutant(
        "a dropped permit warns before its release",
        "a permit that is dropped is released, also where warnings are errors",
        "promises/test_loss_detection.py"
        "::test_a_dropped_permit_is_released_where_the_warning_is_an_error",
        (
            "_api/permit.py",
            "        # Collected in any thread, and in the middle of anything. The release comes first",
            (
                "        if held:\n"
                "            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)\n"
                "        # Collected in any thread, and in the middle of anything. The release"
                " comes first"
            ),
        ),
    ),
    mutant(
        "a forked child keeps the permits",
        "a child's permit is unusable, and releases nothing of the parent's",
        "faults/test_processes.py::test_a_fork_leaves_the_permit_with_the_parent",
        ("_hub/hub.py", "        hub.orphan()\n", "        pass\n"),
    ),
    mutant(
        "replicas are not waited for",
        "a grant is confirmed by so many replicas before it is handed out",
        "faults/test_replicas.py::test_a_grant_is_confirmed_before_it_is_handed_out",
        (
            "_hub/commands/acquire.py",
            "        at_once = now < trusted and not terms.min_replicas\n",
            "        at_once = now < trusted\n",
        ),
    ),
    mutant(
        "too few replicas are enough",
        "a grant is confirmed by so many replicas before it is handed out",
        "faults/test_replicas.py::test_too_few_replicas_are_waited_for",
        (
            "_redis/connection.py",
            "    if replicas >= operation.replicas:\n",
            "    if replicas >= 0:\n",
        ),
    ),
    mutant(
        "nothing is put back after a loss of state",
        "holders come back before anybody new is admitted",
        "promises/test_recovery.py::test_holders_come_back_before_anybody_new_is_admitted",
        (
            "_hub/commands/refresh.py",
            "            elif state.recovers and pending.lease.trusted_at(clock()):\n                state.restore(pending)\n",
            "",
        ),
    ),
    mutant(
        "the thread goes on for a loop that is stuck",
        "a loop that is stuck for ever loses its permits",
        "faults/test_blocked_loop.py::test_a_loop_that_is_stuck_for_too_long_loses_its_permit",
        (
            "_keepalive/watchdog.py",
            "            if silence <= (lease.terms.longest_stall or 0.0):\n",
            "            if silence >= 0:\n",
        ),
    ),
    mutant(
        "a permit goes on to name the lease that another uses",
        "an id or a token that was read is never shared with another permit",
        "promises/test_linger.py"
        "::test_what_is_first_read_after_a_block_is_not_the_next_permits[zset-redis]",
        (
            "_api/permit.py",
            "            refresher.pause(lease)\n            self._ours = False\n",
            "            refresher.pause(lease)\n",
        ),
    ),
    mutant(
        "each attempt of the thread to connect gets a quarter of a lease",
        "the thread connects to a server that takes longer",
        "faults/test_blocked_loop.py::test_the_thread_takes_longer_to_connect_each_time[fair]",
        ("_keepalive/watchdog.py", "0.25, 2 * self._connecting)", "0.25)"),
    ),
    mutant(
        "the thread refreshes nothing",
        "a permit outlives a loop that is blocked for a while",
        "faults/test_blocked_loop.py::test_a_body_that_computes_for_three_leases_keeps_its_permit",
        (
            "_keepalive/watchdog.py",
            "                self._exchange(self._overdue())\n",
            "                self._overdue()\n",
        ),
    ),
    mutant(
        "writing a detach leaves trust as it is",
        "from the moment a detach is sent, trust ends before the server may let go",
        (
            "promises/test_detach.py"
            "::test_a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for"
        ),
        (
            "_hub/commands/call.py",
            "        lease.shorten(trusted_until(call.expires, sent_at=clock(), left=call.expires))\n",
            "        pass\n",
        ),
    ),
    mutant(
        "a refresh from before a detach renews trust",
        "from the moment a detach is sent, trust ends before the server may let go",
        "promises/test_detach.py::test_a_refresh_that_was_sent_before_a_detach_renews_no_trust",
        (
            "_hub/trust.py",
            "if outcome is Outcome.RENEWED and sent_at <= lease.renewable_after:\n",
            "if outcome is Outcome.RENEWED and sent_at < 0:\n",
        ),
    ),
    mutant(
        "a refresh of the thread's from before a detach renews trust",
        "from the moment a detach is sent, trust ends before the server may let go",
        (
            "promises/test_detach.py"
            "::test_a_refresh_of_the_threads_that_was_sent_before_a_detach_renews_no_trust"
        ),
        (
            "_keepalive/watchdog.py",
            "isinstance(verdict, Lost) and sent_at > lease.renewable_after:\n",
            "isinstance(verdict, Lost):\n",
        ),
    ),
    mutant(
        "a refresh renews trust while a detach may arrive late",
        "from the moment a detach is sent, trust ends before the server may let go",
        "promises/test_detach.py::test_no_refresh_renews_trust_while_a_detach_may_arrive_late",
        ("_hub/lease.py", "        self.renewable_after = math.inf\n", ""),
    ),
    mutant(
        "a cancelled detach is not made void",
        "a call that nobody asks for any more does not act",
        "promises/test_detach.py::test_a_detach_that_nobody_asks_for_any_more_is_made_void",
        (
            "_hub/calls.py",
            "    if call.numbered and call.was_sent and not",
            "    if call.numbered and call.was_sent < 0 and not",
        ),
    ),
    mutant(
        "no refresh follows a detach that was cancelled",
        "where a detach is cancelled, the permit is held on",
        "promises/test_detach.py::test_a_detach_that_is_cancelled_leaves_the_permit_held",
        ("_hub/calls.py", "            _ = state.refresh(lease)\n", "            pass\n"),
    ),
    mutant(
        "a detach keeps its number when it is void",
        "a detach whose reply was lost gives the job all of its time",
        "promises/test_detach.py::test_a_detach_that_is_sent_again_counts_once_more",
        (
            "_hub/commands/call.py",
            "        elif not call.alone:\n            call.renumber = True\n",
            "",
        ),
    ),
    mutant(
        "a limit is written beside other calls that act once",
        "a limit that was set is set",
        (
            "promises/test_duplicates.py"
            "::test_a_limit_that_was_not_taken_at_first_is_set_whatever_was_asked_beside_it"
        ),
        (
            "_hub/calls.py",
            "            state.alone_in_flight or (call.alone and state.numbered_in_flight)\n",
            "            state.numbered_in_flight < 0\n",
        ),
    ),
    mutant(
        "a limit that is sent again has a new number",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_a_limit_whose_reply_was_lost_is_not_set_again",
        (
            "_hub/commands/call.py",
            "            call.was_sent = True\n",
            "            call.was_sent = call.renumber = True\n",
        ),
    ),
    mutant(
        "an adoption keeps its number when it is void",
        "an adoption ends as PermitLost where the id holds nothing, and nowhere else",
        "promises/test_duplicates.py::test_an_adoption_is_not_lost_to_a_later_call_that_is_given_up",
        ("_hub/commands/call.py", "        call.renumber |= not arrived\n", ""),
    ),
    mutant(
        "VOID is an error",
        "what has to be sent again is, unseen",
        "promises/test_detach.py::test_a_detach_that_is_sent_again_counts_once_more",
        (
            "_redis/faults.py",
            "(NOSCRIPT|REORDERED|UNKNOWNHUB|VOID)",
            "(NOSCRIPT|REORDERED|UNKNOWNHUB)",
        ),
    ),
    mutant(
        "a message is trusted from the arrival of the reply before it",
        "a permit is trusted from before the server granted it",
        (
            "faults/test_messages.py"
            "::test_a_grant_that_was_on_its_way_for_long_is_trusted_for_what_is_left"
        ),
        (
            "_redis/connection.py",
            "from .dial import Opened\n",
            "from redsem_async._core.clock import now as clock\n\nfrom .dial import Opened\n",
        ),
        (
            "_redis/connection.py",
            "        self.fresh_at = slot.sent_at\n",
            "        self.fresh_at = clock()\n",
        ),
    ),
    mutant(
        "full is what was ever said",
        "who could not ask is told so, and not that it is full",
        "promises/test_deadlines.py::test_who_is_cut_off_is_not_told_that_it_is_full",
        (
            "_hub/deadlines.py",
            "request.replies_since = max(young, request.started) if waits else -math.inf",
            "request.replies_since = -math.inf",
        ),
    ),
    mutant(
        "a number of any length",
        "a message that is not understood changes nothing",
        "core/test_wire.py::test_numbers_of_messages_are_bounded",
        ("_redis/codec.py", " and len(text) <= 16)", ")"),
        (
            "_redis/codec.py",
            "    if not at_least <= number <= at_most:\n",
            "    if number < at_least:\n",
        ),
    ),
    mutant(
        "memory counts by the wall clock",
        "leases are counted by a clock that nobody sets",
        "promises/test_memory.py::test_a_step_of_the_wall_clock_changes_no_lease",
        (
            "testing/_memory.py",
            "        return self._epoch_us + _clock_us()\n",
            "        return time.time_ns() // 1000\n",
        ),
    ),
    mutant(
        "memory lets a permit outlast its max_hold",
        "MemoryBackend.advance ends what the clock ends",
        "promises/test_memory.py::test_max_hold_ends_where_the_clock_is_moved",
        ("testing/_memory.py", "                lease.hold_ends -= slept\n", ""),
    ),
    mutant(
        "items that end as cancelled end a map as if they were all",
        "a map whose items fail raises",
        "integrations/background/test_map.py::test_items_that_end_as_cancelled_are_a_failure",
        ("throttle/_map.py", "if cancelled_here and not _is_being_cancelled():", "if False:"),
    ),
    mutant(
        "a key that a request has may be refused",
        "any text is a valid key where keys come from requests",
        "integrations/background/test_throttled.py::test_any_text_is_a_key",
        ("_integrations/selector.py", "self._source, _fitting(key)", "self._source, key"),
    ),
    mutant(
        "threads take each other's lane",
        "a semaphore that several threads use keeps to the loop of each",
        "promises/test_threads.py::test_threads_that_share_a_semaphore_keep_to_their_own_loops",
        (
            "_api/semaphore.py",
            "        return bound if here else self._bind()\n",
            "        return (self._last_bound or bound) if here else self._bind()\n",
        ),
    ),
    mutant(
        "the right to reuse has no end",
        "a lost recall delays others for a refresh interval at most",
        "faults/test_linger.py::test_a_lost_recall_delays_others_for_a_refresh_interval_at_most",
        (
            "_hub/right.py",
            "        until = sent_at + lasts - clock_margin(lasts)\n",
            "        until = math.inf\n",
        ),
    ),
    mutant(
        "a recall is not applied",
        "a kept lease is recalled when another process waits",
        "promises/test_linger.py::test_a_used_lease_goes_to_who_waits_elsewhere",
        (
            "_hub/machine.py",
            "            if state.right.recalled(clock()):\n                state.give_all_idle_back()\n",
            "            pass\n",
        ),
    ),
    mutant(
        "a lease is passed over a waiter that it does not fit",
        "a waiter that needs more is not passed over",
        "promises/test_linger.py::test_a_waiter_that_does_not_fit_is_not_passed_over",
        (
            "_hub/reuse.py",
            "        if not _may_have(state, request, lease):\n            return False\n",
            "        if not _may_have(state, request, lease):\n            request = next(reversed(state.waiting))\n",
        ),
    ),
    mutant(
        "a lease whose id was read is reused",
        "an id or a token that was read belongs to one permit",
        "promises/test_linger.py::test_what_was_read_is_never_shared",
        ("_hub/reuse.py", " and not lease.is_known", ""),
    ),
    mutant(
        "the right outlives the connection",
        "the right to reuse ends with the connection",
        "faults/test_linger.py::test_a_lost_connection_ends_the_right",
        (
            "_hub/pipeline.py",
            "            remote.state.introduce_again()\n        self._write_again()\n",
            "            pass\n        self._write_again()\n",
        ),
    ),
    mutant(
        "ones own pause leaves the right",
        "a set limit ends the right to reuse",
        "promises/test_linger.py::test_ones_own_pause_ends_the_right",
        ("_hub/commands/call.py", "            state.end_right()\n", "            pass\n"),
    ),
    mutant(
        "kept leases stay beside a request",
        "a request that cannot use a kept lease has it sent back",
        "promises/test_linger.py::test_a_request_that_cannot_use_a_kept_lease_has_it_sent_back",
        (
            "_hub/reuse.py",
            "    state.give_all_idle_back()\n\n\ndef take",
            "    pass\n\n\ndef take",
        ),
    ),
    mutant(
        "a recall does not keep the right away",
        "the right to reuse is not asked for soon after a recall",
        "promises/test_linger.py::test_the_right_is_not_asked_for_soon_after_a_recall",
        (
            "_hub/right.py",
            "        self._recalled_at, self._paused_until = now, now + self._pause\n",
            "        self._recalled_at, self._paused_until = now, now\n",
        ),
    ),
    mutant(
        "the right is asked for where no recall can come",
        "leases are reused only while push messages arrive",
        "faults/test_linger.py::test_without_push_messages_no_lease_is_kept",
        ("_hub/state.py", " or self.route.link.no_push:\n", ":\n"),
    ),
    mutant(
        "a process that reuses leases never yields",
        "a recall is read although leases are reused in a tight loop",
        "promises/test_linger.py::test_every_sixteenth_lets_the_loop_run",
        (
            "_hub/reuse.py",
            "IN_A_ROW = 16 ",
            "IN_A_ROW = 1600 ",
        ),
    ),
    mutant(
        "a kept lease that was taken away is used",
        "what was released by its id is used by nobody",
        "promises/test_linger.py::test_a_kept_lease_may_be_kicked",
        (
            "_hub/trust.py",
            "            state.leases.pop(lease.number, None)\n            state.idle.remove(lease)\n            lease.end()\n",
            "            pass\n",
        ),
    ),
    mutant(
        "a detached lease is kept",
        "what was detached or adopted is not reused",
        "promises/test_linger.py::test_a_detach_that_was_cancelled_leaves_nothing_to_reuse",
        (
            "_api/permit.py",
            "        lease.is_known = True\n        remote, refresher, _ = self._bound\n        # A",
            "        remote, refresher, _ = self._bound\n        # A",
        ),
    ),
    mutant(
        "a lease that is due for a refresh is reused",
        "a lease is trusted by its last refresh, whoever uses it",
        "worlds/simulation/test_simulation.py::test_every_promise_is_kept_whatever_happens[4]",
        (
            "_hub/lease.py",
            "        return self.trusted_until - now <= self.terms.lease - self.terms.refresh_interval\n",
            "        return False\n",
        ),
    ),
    mutant(
        "what is kept meanwhile is not for who is told to wait",
        "a request and a kept lease of one process meet",
        "worlds/modelcheck/test_modelcheck.py::test_every_order_of_events[zset weights, and a kept lease]",
        (
            "_hub/commands/effects.py",
            "        reuse.serve_waiting(state, now)\n",
            "        pass\n",
        ),
    ),
    mutant(
        "a refresh that a master puts off renews trust",
        "trust in a master that takes no writes ends by itself",
        "faults/test_failover.py::test_a_master_that_needs_a_replica_ends_the_trust_in_it",
        (
            "_hub/commands/refresh.py",
            "            if pending.lease.holding:\n                self.state.refresh_again(pending)\n",
            "            if pending.lease.holding:\n                settle(self.state, pending, Outcome.RENEWED, clock(), clock())\n",
        ),
    ),
    mutant(
        "too few replicas are an error for good",
        "a master that takes no writes now may take them later",
        "faults/test_failover.py::test_a_master_that_needs_a_replica_ends_the_trust_in_it",
        ("_redis/faults.py", "BUSY|LOADING|NOREPLICAS|MISCONF", "BUSY|LOADING|MISCONF"),
    ),
    mutant(
        "doctor finds nothing where a master needs no replica",
        "doctor looks for what bounds the time of two masters",
        "integrations/cli/test_doctor.py::test_a_master_that_needs_no_replica_is_a_note",
        (
            "cli/doctor/_server.py",
            "    needed = max(1, (replicas + 1) // 2)",
            "    count, needed = count or 1, max(1, (replicas + 1) // 2)",
        ),
    ),
    mutant(
        "doctor does not look where the replicas are gone",
        "doctor looks for what bounds the time of two masters",
        "integrations/cli/test_doctor.py::test_a_master_that_sentinels_watch_may_be_replaced",
        ("cli/doctor/_server.py", "not (replicas or watched)", "not replicas"),
    ),
    mutant(
        "a semaphore with keys is taken without a key",
        "no limit of a key is passed in silence",
        "integrations/web/test_web.py::test_a_group_needs_a_key",
        (
            "_integrations/selector.py",
            "            if key is ...:\n",
            "            if not source.limit:\n",
        ),
    ),
    mutant(
        "a task without a key passes the limits of keys",
        "no limit of a key is passed in silence",
        "integrations/background/test_task_group.py"
        "::test_tasks_have_no_key_only_where_that_is_said",
        (
            "throttle/_task_group.py",
            "needs_key = in_group or (keyed and key is not None)",
            "needs_key = in_group",
        ),
    ),
    mutant(
        "a key function that gives none takes the request past the limits of keys",
        "no limit of a key is passed in silence",
        "integrations/background/test_throttled.py"
        "::test_a_key_function_that_gives_none_is_an_error",
        (
            "_integrations/selector.py",
            "            return Choice(self._source, _fitting(key), self._options)\n",
            "            return Choice(self._source, key and _fitting(key), self._options)\n",
        ),
    ),
    mutant(
        "what rounding puts beyond a bound is refused",
        "a bound is met as it is written",
        "promises/test_validation.py::test_a_bound_is_met_as_it_is_written",
        (
            "_core/config.py",
            "if not math.isclose(given, nearest, rel_tol=TOLERANCE, abs_tol=TOLERANCE):",
            "if given != nearest:",
        ),
    ),
    mutant(
        "what rounding puts beyond a bound is kept",
        "no part sees a duration beyond its bound",
        "promises/test_validation.py::test_a_bound_is_met_as_it_is_written",
        ("_core/config.py", "    return nearest\n", "    return given\n"),
    ),
    mutant(
        "the right outlives the hub's id",
        "what ends the connection or the hub's id ends the right to reuse",
        "worlds/test_linger.py::test_another_process_is_served_after_an_idle_close",
        (
            "_hub/state.py",
            "        self.introduction.sent = False\n        self.end_right()\n",
            "        self.introduction.sent = False\n",
        ),
    ),
    mutant(
        "the right outlives the subscription",
        "the right to reuse ends with the subscription",
        "worlds/test_linger.py::test_another_process_is_served_after_a_subscription_has_ended",
        (
            "_hub/pipeline.py",
            "            remote.state.introduce_again()\n            if remote.active:\n",
            "            if remote.active:\n",
        ),
    ),
    mutant(
        "the right outlives a command that is written again",
        "the right to reuse ends where the server may have forgotten the hub",
        "worlds/test_linger.py::test_kept_leases_go_back_when_a_server_carries_a_command_not_out",
        (
            "_hub/commands/base.py",
            "            self.state.introduce_again()\n",
            "            self.state.introduction.sent = False\n",
        ),
    ),
    mutant(
        "a late answer revives the right",
        "a reply to a question from before does not give the right",
        "faults/test_linger.py::test_without_push_messages_no_lease_is_kept",
        ("_hub/right.py", "        if asked is not self._asked:\n", "        if not asked:\n"),
    ),
    mutant(
        "the right is counted from the reply",
        "the right ends before the server's note of it",
        "worlds/test_linger.py::test_the_right_ends_before_the_servers_note_of_it",
        (
            "_hub/right.py",
            "        until = sent_at + lasts - clock_margin(lasts)\n",
            "        until = clock() + lasts - clock_margin(lasts)\n",
        ),
    ),
    mutant(
        "the right has no margin for clocks",
        "the right ends before the server's note of it",
        "worlds/test_linger.py::test_the_right_ends_before_the_servers_note_of_it",
        (
            "_hub/right.py",
            "        until = sent_at + lasts - clock_margin(lasts)\n",
            "        until = sent_at + lasts\n",
        ),
    ),
    mutant(
        "the pause after a recall does not double",
        "the right is asked for ever less often while it is recalled",
        "worlds/test_linger.py::test_the_right_is_asked_for_ever_less_often_while_it_is_recalled",
        ("_hub/right.py", "min(2 * self._pause, LONGEST_PAUSE) if again", "FIRST_PAUSE if again"),
    ),
    mutant(
        "the pause after a recall stays long",
        "after a quiet time the right is asked for soon",
        "worlds/test_linger.py::test_the_right_is_asked_for_ever_less_often_while_it_is_recalled",
        (
            "_hub/right.py",
            "LONGEST_PAUSE) if again else FIRST_PAUSE",
            "LONGEST_PAUSE) if again else self._pause",
        ),
    ),
    mutant(
        "a lower limit is not noted",
        "no lease is used again above the lowest limit that is declared",
        "worlds/test_linger.py::test_a_lower_limit_ends_the_right_under_a_higher_one",
        (
            "_hub/right.py",
            "            self._limit = min(self._limit, limit)\n",
            "            self._limit = max(0 if self._limit == sys.maxsize else self._limit, limit)\n",
        ),
    ),
    mutant(
        "a request under another limit leaves the right",
        "no lease is used again above the lowest limit that is declared",
        "worlds/test_linger.py::test_a_lower_limit_ends_the_right_under_a_higher_one",
        (
            "_hub/right.py",
            "            self._limit = min(self._limit, limit)\n            return self.end()\n",
            "            self._limit = min(self._limit, limit)\n",
        ),
    ),
    mutant(
        "one yields before it has taken its lease",
        "the order within a process is the order of the calls",
        "promises/test_linger.py::test_tasks_are_served_in_the_order_of_their_calls",
        (
            "_api/acquiring.py",
            "        lease, now = reuse.take(remote.state, terms, permits, key, started), started\n        if lease is not None and reuse.others_are_due(remote.state):\n            lease, now = await remote.let_others_run(lease), clock()\n",
            "        if reuse.others_are_due(remote.state):\n            remote.state.uses_in_a_row = 0\n            await __import__('asyncio').sleep(0)\n        lease, now = reuse.take(remote.state, terms, permits, key, started), started\n",
        ),
    ),
    mutant(
        "those that come while others yield pass them",
        "the order within a process is the order of the calls",
        "promises/test_linger.py::test_those_that_come_while_others_let_the_loop_run_do_not_pass_them",
        (
            "_hub/reuse.py",
            "state.uses_in_a_row >= IN_A_ROW or state.yielding > 0",
            "state.uses_in_a_row >= IN_A_ROW",
        ),
    ),
    mutant(
        "a lease leaks where one is cancelled that yields",
        "a cancelled caller gives the lease back that it has taken",
        "promises/test_linger.py::test_cancelled_while_it_lets_the_loop_run_it_leaks_nothing",
        (
            "_hub/remote_semaphore.py",
            "            self.give_back(lease)\n            raise\n",
            "            raise\n",
        ),
    ),
    mutant(
        "a lease is passed to a later request than one in flight",
        "the order within a process is the order of the calls",
        "worlds/test_linger.py::test_a_request_in_flight_comes_before_one_that_is_not_written",
        (
            "_hub/reuse.py",
            "    return None if state.acquires_in_flight else state.first_new()\n",
            "    return state.first_new()\n",
        ),
    ),
    mutant(
        "a kept lease is taken past requests in flight",
        "the order within a process is the order of the calls",
        "worlds/test_linger.py::test_a_request_in_flight_comes_before_those_after_it",
        ("_hub/reuse.py", "if not state.idle or state.acquires_in_flight:", "if not state.idle:"),
    ),
    mutant(
        "a lease whose loss somebody awaits is reused",
        "wait_lost tells of the loss of its own permit",
        "promises/test_linger.py::test_whose_loss_is_awaited_is_not_shared",
        ("_hub/reuse.py", " and not lease.wakes_on_loss", ""),
    ),
    mutant(
        "a stale lease is passed to who is told to wait",
        "no lease is passed on when its refresh is due, or the right is over",
        "worlds/test_linger.py::test_after_a_stall_no_lease_is_passed_to_a_request_that_was_told_to_wait",
        (
            "_hub/reuse.py",
            "        if not (is_fresh(state, lease, now) and _may_have(state, oldest, lease)):\n",
            "        if not (now and _may_have(state, oldest, lease)):\n",
        ),
    ),
    mutant(
        "a lease is kept for longer than linger",
        "an unused lease goes back after linger",
        "worlds/test_linger.py::test_each_lease_goes_back_when_it_was_kept_for_as_long_as_linger",
        (
            "_hub/reuse.py",
            "    lease.rest(now + lease.terms.linger)\n",
            "    lease.rest(now + 1.5 * lease.terms.linger)\n",
        ),
    ),
    mutant(
        "only the first kept lease goes back in time",
        "an unused lease goes back after linger",
        "worlds/test_linger.py::test_each_lease_goes_back_when_it_was_kept_for_as_long_as_linger",
        (
            "_hub/reuse.py",
            "    return min((lease.idle_until for lease in state.idle), default=math.inf)\n",
            "    return math.inf\n",
        ),
    ),
    mutant(
        "a dropped lease leaves its number",
        "a hub without work closes its connection",
        "worlds/test_linger.py::test_a_hub_whose_kept_lease_was_taken_away_goes",
        (
            "_hub/trust.py",
            "            state.leases.pop(lease.number, None)\n            state.idle.remove(lease)\n",
            "            state.idle.remove(lease)\n",
        ),
    ),
    mutant(
        "a kept lease has its refresh task still",
        "a kept lease is not refreshed",
        "worlds/test_linger.py::test_a_kept_lease_has_no_refresh_task",
        (
            "_keepalive/refresher.py",
            "        if self._watchdog is not None or lease.refreshed_at not in self._due:\n            self.remove(lease)\n",
            "        if self._watchdog is not None:\n            self.remove(lease)\n",
        ),
    ),
    mutant(
        "a reused lease is refreshed an interval after its reuse",
        "a lease is refreshed in time, whoever uses it",
        "worlds/test_linger.py::test_a_lease_is_refreshed_in_time_whoever_uses_it",
        ("_keepalive/refresher.py", "        if lease.reused:", "        if not lease:"),
    ),
    mutant(
        "timers of ended uses stay",
        "a lease has one timer for the end of its trust",
        "worlds/test_linger.py::test_long_uses_of_the_same_leases_leave_no_timers",
        ("_keepalive/refresher.py", "                timer.cancel()\n", "                pass\n"),
    ),
    mutant(
        "a hub does not say that nobody counts its messages",
        "the order is kept where PUBLISH does not count who receives a message",
        "faults/test_lacking.py::test_permits_are_handed_over_in_order[fair-count]",
        ("_redis/codec.py", "else 2 * hub_info.uncounted", "else 0"),
    ),
    mutant(
        "what a server lacks is forgotten with the connection",
        "the order is kept where PUBLISH does not count, also after a lost connection",
        "faults/test_lacking.py::test_after_a_lost_connection_it_is_known_that_nobody_counts",
        (
            "_redis/backend.py",
            "        return _linked(self.place, opened._replace(met=self._known), listener)\n\n    def",
            "        return _linked(self.place, opened, listener)\n\n    def",
        ),
    ),
    mutant(
        "wrong credentials in RESP2 are an outage",
        "who is rejected is told so at once, also where the server has no RESP3",
        "faults/test_lacking.py::test_wrong_credentials_are_refused_at_once_without_resp3",
        (
            "_redis/dial.py",
            "    except errors.AuthenticationError as error:\n        raise ConnectionRejected(str(error)) from error\n",
            "",
        ),
    ),
)
