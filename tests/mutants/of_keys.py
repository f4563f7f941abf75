"""Mutants of what is new with keys: limits of keys, shares, head starts, longest holds."""

from .mutant import mutant
from .target import AGREEMENT

_KEYED = "lua/keyed/prelude.lua"
_TEST = "promises/test_keys.py::test_"
_LOST = "faults/test_keys.py::test_"
_BOUNDS = "scripts/test_bounds.py::test_"
_SHARED = (
    "worlds/test_steady_work.py::test_with_share_it_is_what_the_next_request_of_the_key_waits"
)
_STEADY = "worlds/test_steady_work.py::test_with_keys_it_is_what_the_next_request_of_the_key_waits"

OF_KEYS = (
    mutant(
        "what is set aside is not noted with its key",
        "a request that is set aside counts as waiting for its key",
        f"{_TEST}one_too_heavy_for_the_limit_in_all_counts_as_waiting[redis]",
        (_KEYED, "  add_texts(parked)\n", ""),
    ),
    mutant(
        "the line of a key leaves out what is set aside",
        "max_waiters_per_key and status() count every request of the key",
        f"{_TEST}one_too_heavy_for_the_limit_in_all_counts_as_waiting[redis]",
        (_KEYED, " + count_with('a:' .. key .. '!')", ""),
    ),
    mutant(
        "one that is too heavy for the overall limit holds up those of its batch",
        "a request that is passed over holds nobody up",
        f"{_TEST}one_too_heavy_for_the_limit_in_all_holds_nobody_up_in_the_same_batch[redis]",
        (_KEYED, "  if not too_heavy then keyed", "  if true then keyed"),
    ),
    mutant(
        "a key is listed although its permits have expired",
        "status() lists keys that hold or wait",
        f"{_TEST}status_leaves_out_a_key_whose_permits_have_expired[redis]",
        (_KEYED, "if use > 0 or waits > 0 or ended == MAX_ENDED then", "if true then"),
    ),
    mutant(
        "a full key locks the semaphore",
        "a request that only its own key holds up holds up no other key",
        f"{_TEST}a_full_key_does_not_lock_the_semaphore[redis]",
        ("lua/status.lua", "keyed.queue_is_blocked() and 1 or 0", "waits > 0 and 1 or 0"),
    ),
    mutant(
        "retry_after goes by the overall limit",
        "retry_after is an estimate of when a request of the key is served",
        f"{_TEST}retry_after_goes_by_the_line_of_the_key[redis]",
        ("_hub/estimates.py", "ahead, limit = of_key, min(limit, own)", "ahead = of_key"),
    ),
    mutant(
        "retry_after goes by the declared limit of a key",
        "retry_after goes by the limit of the key in force",
        f"{_TEST}retry_after_goes_by_the_limit_that_is_set_for_the_key[redis]",
        (_KEYED, "limit_of(key, -1) })", "-1 })"),
    ),
    mutant(
        "any reply says that a request with a key waits as it did",
        "blocked_by says which limit was full when the deadline came",
        f"{_TEST}a_timeout_says_what_is_full_at_the_end[redis]",
        ("_hub/deadlines.py", "if state.address.keyed:", "if False:"),
    ),
    mutant(
        "retry_after takes keys that share to be served in turn",
        "retry_after is an estimate of when a request of the key is served",
        f"{_STEADY}[small-share-None-constant-1]",
        ("_hub/estimates.py", 'elif hold and "+share" in state.address.mode:', "elif False:"),
    ),
    mutant(
        "retry_after does not know of patience",
        "a request goes by its age after its patience",
        f"{_TEST}without_patience_retry_after_goes_by_the_whole_queue[redis]",
        (
            "_hub/estimates.py",
            "min(ahead_in_turns(of_key, report.competing_keys, limit), impatient)",
            "ahead_in_turns(of_key, report.competing_keys, limit)",
        ),
    ),
    mutant(
        "retry_after takes a newcomer to be the next in any case",
        "retry_after is an estimate of when a request of the key is served",
        f"{_SHARED}[new-1]",
        ("_core/lease.py", " + max(0, keys - limit)", ""),
    ),
    mutant(
        "a key loses its virtual time with an adoption",
        "an adopted permit takes no turn from others",
        f"{_TEST}an_adopted_permit_takes_no_turn_from_others[redis-True]",
        ("lua/adopt.lua", "  remove_holders({ old_id })\n", ""),
        ("lua/adopt.lua", "  forbid_restore({ old_id })\n", "  remove_holders({ old_id })\n"),
    ),
    mutant(
        "full is believed of a script that stopped early",
        "try_acquire says full only if nothing has expired that makes room",
        "faults/test_keys.py::test_try_acquire_sees_what_has_expired",
        ("_hub/commands/acquire.py", "(reply.next_ms == 0 and ", "(False and "),
    ),
    mutant(
        "an acquire looks at no dead head of its key",
        "a dead head of a key is no reason to say full",
        "scripts/test_spec.py::test_who_died_since_then_holds_up_none_of_its_key[acquire]",
        ("lua/acquire.lua", "if keyed then keyed.look_at_heads(REQUESTS) end", ""),
    ),
    mutant(
        "share goes by turns alone",
        "with `share` the key with the fewest in use is served first",
        f"{_TEST}share_goes_by_what_is_held_before_whose_turn_it_is[redis]",
        (_KEYED, "use_of(key) / weight, (virtual_time_of(key))", "0, (virtual_time_of(key))"),
    ),
    mutant(
        "share goes by an old use",
        "with `share` the key with the fewest in use is served first",
        f"{_TEST}share_goes_by_what_is_held_before_whose_turn_it_is[redis]",
        (
            _KEYED,
            "local function look_at(key)\n",
            "local function look_at(key)\n  if keyed.shares and first_with('k:' .. key .. '!') then return end\n",
        ),
    ),
    mutant(
        "share goes by name between equals",
        "between keys of the same use and turn the oldest request is served first",
        f"{_TEST}share_between_equals_goes_by_age[redis]",
        (_KEYED, "(virtual_time_of(key))) .. place", "(virtual_time_of(key))) .. '0'"),
    ),
    mutant(
        "a permit is restored without its key",
        "a permit that is put back counts for its key",
        "faults/test_keys.py::test_a_permit_that_is_restored_counts_for_its_key",
        (
            "_hub/commands/refresh.py",
            "RestoredPermit(c.number, c.token, c.permits, c.key, c.slots)",
            "RestoredPermit(c.number, c.token, c.permits, None, c.slots)",
        ),
    ),
    mutant(
        "a refresh gives a whole lease although max_hold ends",
        "a permit is held for max_hold at most",
        "promises/test_max_hold.py::test_a_refresh_asks_for_no_more_than_is_left[fair-redis]",
        ("lua/refresh.lua", "math.min(lease, left)", "lease"),
    ),
    mutant(
        "a key's limit is not looked at behind many dead waiters",
        "never more of a key's permits than its limit",
        "scripts/test_spec.py::test_a_long_line_of_a_dead_process_ends_at_the_limit_of_its_key",
        (
            _KEYED,
            "use_of(key) + permits > limit_of(key, (parse_tail(request)))",
            "false",
        ),
    ),
    mutant(
        "a use is kept",
        "what a key has in use is what is held",
        f"{_TEST}an_adopted_permit_keeps_its_key[redis]",
        (
            _KEYED,
            (
                "        if left % 2 == 1 then call('ZREM', keys, "
                "string.format('u:%s!%02d:%s', key, power, id)) end\n"
            ),
            "",
        ),
    ),
    mutant(
        "the use of a key counts holders",
        "a holder of several permits has several in use",
        f"{_TEST}a_heavy_permit_counts_for_its_key_as_often[redis]",
        (_KEYED, "use = use + math.floor(2 ^ power) * count_with(", "use = use + count_with("),
    ),
    mutant(
        "a key is not put back after a kick or an expiry",
        "whatever ends a permit, the next request of its key is served",
        f"{_TEST}a_permit_that_is_revoked_or_expires_frees_its_key[redis]",
        (
            _KEYED,
            "  look_at_all(changed)\nend\n\ndo\n  local MAX_MENDED",
            "end\n\ndo\n  local MAX_MENDED",
        ),
    ),
    mutant(
        "a key is not put back after an abandon",
        "a waiter who leaves does not take the wake-up along",
        f"{_TEST}a_waiter_that_leaves_lets_the_next_of_its_key_in[redis]",
        (
            _KEYED,
            "  waiting = waiting - call('ZREM', queue, unpack(requests))\n  look_at_all(changed)\n",
            "  waiting = waiting - call('ZREM', queue, unpack(requests))\n",
        ),
    ),
    mutant(
        "a key is not put back after its limit was raised",
        "a raised limit serves waiters at once",
        f"{_TEST}the_limit_of_a_key_can_be_set[redis]",
        (_KEYED, "  keyed.limits[key] = nil\n  look_at(key)\n", "  keyed.limits[key] = nil\n"),
    ),
    mutant(
        "the set limit of a key is ignored",
        "a limit that is set overrides what clients declare",
        f"{_TEST}the_limit_of_a_key_can_be_set[redis]",
        (_KEYED, "return tonumber(keyed.limits[key]) or declared", "return declared"),
    ),
    mutant(
        "a newcomer passes a heavy head of its key",
        "within a key nobody passes, however light",
        f"{_TEST}within_a_key_nobody_passes[redis]",
        (
            _KEYED,
            (
                "    if waiting > 0 and head_of(key) and not first_with('k:' .. key .. '!')"
                " then return 'key' end\n"
            ),
            "",
        ),
    ),
    mutant(
        "who the overall limit holds up is passed",
        "a request that waits for the overall limit blocks those behind it",
        f"{_TEST}the_limit_in_all_blocks_those_behind[redis]",
        (_KEYED, "  if not open or grace > now or used", "  if grace > now or used"),
    ),
    mutant(
        "share without virtual time",
        "keys with the same use take turns",
        f"{_TEST}keys_take_turns_by_their_weights[redis-weights0-10]",
        (_KEYED, "use_of(key) / weight, (virtual_time_of(key)))", "use_of(key) / weight, 0)"),
    ),
    mutant(
        "a weight is not stored",
        "a key with a higher weight gets more",
        f"{_TEST}keys_take_turns_by_their_weights[redis-weights1-15]",
        ("_redis/codec.py", "{declared}:{weight:.6f}:", "{declared}:{1:.6f}:"),
    ),
    mutant(
        "a newcomer of a key with few waits for a heartbeat",
        "nobody waits whose turn it is while there is room",
        f"{_TEST}share_serves_a_newcomer_whose_turn_it_is_at_once[redis]",
        ("lua/acquire.lua", " or keyed and keyed.shares and blocked_by == 'limit'", ""),
    ),
    mutant(
        "a late patience",
        "a request that has waited for long goes by its age",
        f"{_TEST}patience_is_counted_by_the_server[redis]",
        (
            _KEYED,
            "place = padded(ticket + 1000 * patience)",
            "place = padded(ticket + 1e6 * patience)",
        ),
    ),
    mutant(
        "a late patience (memory)",
        "a request that has waited for long goes by its age",
        f"{_TEST}a_request_that_waits_for_long_goes_by_its_age",
        (
            "testing/_spec/keyed.py",
            "head.ticket + 1000 * (key.patience_ms",
            "head.ticket + 1_000_000 * (key.patience_ms",
        ),
    ),
    mutant(
        "an older request hides a patience that has ended",
        "of several that waited for long, the one whose patience ended first is next",
        f"{_TEST}the_patience_of_each_counts_for_itself",
        (
            "testing/_spec/keyed.py",
            'first = min(self.ready, key=lambda key: (self.ready[key][0], quote(key, safe="")))',
            'first = min(self.ready, key=lambda key: (self.ready[key][1][2], quote(key, safe="")))',
        ),
    ),
    mutant(
        "a request without a key has no patience",
        "what has no key does not go before all tenants",
        "scripts/test_spec.py::test_memory_and_redis_agree[fair+share-server]",
        (_KEYED, "    if key == '' then patience = lease end\n", ""),
    ),
    mutant(
        "a head start is stored as the counter",
        "tokens grow, whatever head start a request had",
        "scripts/test_spec.py::test_memory_and_redis_agree[fair-server]",
        (
            "lua/acquire.lua",
            "      queued[#queued + 1] = exact(math.max(1, next_token() - earlier))\n",
            "      last = math.max(1, next_token() - earlier)\n      queued[#queued + 1] = exact(last)\n",
        ),
    ),
    mutant(
        "a key that is full holds up all keys",
        "a request that only its own key holds up is in nobody else's way",
        f"{_TEST}a_blocked_key_holds_nobody_else_up[redis]",
        (
            _KEYED,
            "      if not key then break end\n      local request, ticket, text = head_of(key)",
            "      if not key then blocked = waiting > 0 break end\n      local request, ticket, text = head_of(key)",
        ),
    ),
    mutant(
        "a head start is served later",
        "who becomes the first in line is served at once",
        f"{_TEST}a_head_start_past_a_heavy_request_is_served_at_once[redis]",
        ("lua/acquire.lua", "if overtakes then serve() end", "if false then serve() end"),
    ),
    mutant(
        "an adopted permit has no key",
        "a permit that is handed over counts for its key",
        f"{_TEST}an_adopted_permit_keeps_its_key[redis]",
        (_KEYED, "  return NO_KEY .. keyed.key_of(id)\n", "  return NO_KEY\n"),
    ),
    mutant(
        "a clear leaves the keys",
        "a clear deletes the semaphore",
        f"{_TEST}clear_forgets_what_keys_had[redis]",
        (_KEYED, "  call('UNLINK', keys, key_limits)\n", "  call('UNLINK', key_limits)\n"),
    ),
    mutant(
        "the line of a key is longer than it may be",
        "max_waiters_per_key bounds the line of one key",
        f"{_TEST}the_queue_of_a_key_can_be_bounded[redis]",
        (
            _KEYED,
            "(keyed.added[key] or 0) >= most_of_key",
            "(keyed.added[key] or 0) > most_of_key",
        ),
    ),
    mutant(
        "a key is written as it is",
        "any text is a key",
        f"{_TEST}any_text_is_a_key[redis-a:b]",
        ("_redis/codec.py", '    return quote(key, safe="")\n', "    return key\n"),
    ),
    mutant(
        "a grant without a key leaves its virtual time",
        "nothing is left of a permit but while somebody holds it",
        f"{AGREEMENT}[fair+share-server]",
        (
            _KEYED,
            "  if key == '' then return end  -- which has no virtual time, because it does not wait\n",
            "",
        ),
    ),
    mutant(
        "a use that was not delivered counts",
        "a grant that nobody received is another's",
        "faults/test_keys.py::test_a_killed_head_of_a_key_is_passed_over",
        (_KEYED, "        if key ~= '' then uses[key] = uses[key] - permits end\n", ""),
    ),
    mutant(
        "a line that is made anew has no expiry",
        "every key expires but a set limit",
        "faults/test_keys.py::test_a_request_that_nobody_receives_the_grant_of_expires",
        (
            _KEYED,
            "      keep_queue(need)  -- it may have been empty, and then it is another key\n",
            "",
        ),
    ),
    mutant(
        "clients without keys are let in",
        "one name has one mode",
        f"{_TEST}clients_without_keys_are_refused[redis]",
        (
            "_core/keys.py",
            'return f"{self.mode} {self.clock}"',
            'return f"{self.mode[:4]} {self.clock}"',
        ),
    ),
    mutant(
        "a kept lease is for any key",
        "a permit counts for the key that was asked for",
        f"{_TEST}a_lease_that_is_kept_is_for_its_key[redis]",
        ("_hub/lease.py", "and same_terms and same_key", "and same_terms"),
    ),
    mutant(
        "a key is ready although its first request is too heavy for it",
        "many that are too heavy for their key hold nobody else up",
        f"{_TEST}many_that_are_too_heavy_for_their_key_hold_nobody_else_up[redis]",
        (
            _KEYED,
            "  if not fits and dropped < MAX_DROPPED then return end\n",
            "  if not fits and permits <= limit_of(key, declared) then return end\n",
        ),
    ),
    mutant(
        "a heartbeat looks at no dead head of a key",
        "a dead head of a key is passed over though nothing else happens to the key",
        "scripts/test_spec.py::test_who_died_since_then_holds_up_none_of_its_key[heartbeat]",
        ("lua/heartbeat.lua", "if keyed then keyed.look_at_heads(REQUESTS) end", ""),
    ),
    mutant(
        "leases are reused while the limit of a key is set",
        "no lease is reused past the limit that is set for its key",
        f"{_TEST}a_lease_is_not_reused_past_the_limit_that_is_set_for_a_key[redis]",
        ("lua/prelude.lua", "keyed.limits_set() > 0", "false"),
    ),
    mutant(
        "a lease is reused whatever the limit of its key is now",
        "no lease is reused past the limit that its key has now",
        f"{_TEST}a_lease_is_not_reused_past_the_limit_that_its_key_has_now[redis]",
        (
            "_hub/lease.py",
            "same_key = key is self.key or key == self.key",
            "same_key = (key and key.key) == (self.key and self.key.key)",
        ),
    ),
    mutant(
        "a lease is passed on past another key's turn",
        "a process passes no lease to a request of its own past another key's turn",
        f"{_TEST}share_is_kept_where_leases_are_reused[redis]",
        ("_hub/state.py", ' and "+share" not in self.address.mode', ""),
    ),
    mutant(
        "the list of keys goes on with the last of the kinds",
        "the list of keys has every key that holds or waits",
        f"{_TEST}status_shows_a_key_that_begins_like_another[redis]",
        (_KEYED, "precedes(found, key)", "precedes(key, found)"),
    ),
    mutant(
        "blocked_by is always the overall limit",
        "a timeout says which limit was full",
        f"{_TEST}a_timeout_says_which_limit_was_full[redis]",
        ("_hub/estimates.py", '"key" if request.waits_for_key else "limit"', '"limit"'),
    ),
    mutant(
        "max_hold: the heartbeat thread goes on",
        "a permit is not refreshed past its max_hold, by whomever",
        "promises/test_max_hold.py::test_it_ends_a_block_and_frees_the_permit",
        (
            "_hub/lease.py",
            "        self.trusted_until = min(trusted_until, self.hold_ends)\n\n    def hold_left",
            "        self.trusted_until = trusted_until\n\n    def hold_left",
        ),
    ),
    mutant(
        "max_hold: it begins anew",
        "adopting again and again does not make a permit last longer",
        "promises/test_max_hold.py::test_an_adopter_has_what_is_left",
        ("lua/prelude.lua", "math.max(0, math.floor((stamp_us - token) / 1000))", "0"),
    ),
    mutant(
        "max_hold: it counts from when the grant was read",
        "max_hold counts from the grant, although the loop is blocked when it comes",
        "faults/test_blocked_loop.py"
        "::test_max_hold_counts_from_the_grant_that_a_blocked_loop_reads_late[fair]",
        (
            "_hub/lease.py",
            "            self.hold_ends = min(self.hold_ends, ends)\n",
            "            _ = ends\n",
        ),
    ),
    mutant(
        "max_hold: a lease is reused to its end",
        "the next user of a lease has most of max_hold",
        "promises/test_max_hold.py::test_a_lease_is_reused_while_most_of_it_is_left",
        ("_hub/reuse.py", "HOLD_LEFT = 0.9 ", "HOLD_LEFT = 0.0 "),
    ),
    mutant(
        "max_hold: a restore puts back what has ended",
        "a permit is held for max_hold at most, also after a loss of state",
        "scripts/test_spec.py::test_nothing_is_put_back_whose_longest_hold_has_ended[zset]",
        ("lua/restore.lua", "  if math.max(asked, left) <= 0 then restorable = false end", "  "),
    ),
    mutant(
        "lost keys of holders count as none",
        "the limit of a key is kept although Redis evicted whose permits are in use",
        f"{_LOST}the_limit_of_a_key_is_kept_although_its_index_is_lost[options0]",
        (_KEYED, "known < holder_count and ALL_TAKEN or in_use", "in_use"),
    ),
    mutant(
        "a holder does not tell its lost key",
        "after the loss of a key of Redis others are served within a refresh interval",
        f"{_LOST}the_limit_of_a_key_is_kept_although_its_index_is_lost[options0]",
        (
            "_hub/commands/refresh.py",
            "                if held < 0:",
            "                if held == 0:",
        ),
    ),
    mutant(
        "the thread does not tell a lost key",
        "a blocked loop does not stop a semaphore after the loss of a key of Redis",
        f"{_LOST}the_thread_tells_what_was_lost_while_the_loop_is_blocked[keys-options0]",
        (
            "_keepalive/watchdog.py",
            "                if held < 0:",
            "                if held == 0:",
        ),
    ),
    mutant(
        "nobody says that lost slots are known again",
        "after the loss of a key of Redis others are served within a refresh interval",
        f"{_LOST}the_thread_tells_what_was_lost_while_the_loop_is_blocked[slots-options1]",
        ("lua/refresh.lua", " or slotted and slotted.lost(ids[i])", ""),
    ),
    mutant(
        "a lost index of the line is not written again",
        "who stands in line is served although Redis evicted the lines of the keys",
        f"{_LOST}who_stands_in_line_is_served_in_order_although_a_key_of_redis_is_lost[keys-False]",
        (_KEYED, "    mend_queue()\n", ""),
    ),
    mutant(
        "the line is served while its index is written again",
        "newcomers of a key pass nobody although Redis evicted the lines of the keys",
        f"{_BOUNDS}a_long_line_is_mended_in_short_steps[keys-fair+keys]",
        (_KEYED, "if keyed.mending or waiting == 0", "if waiting == 0"),
    ),
    mutant(
        "requests of a line that was lost are served",
        "nothing is granted to requests that Redis has evicted",
        f"{_BOUNDS}a_long_line_is_mended_in_short_steps[queue-fair+keys]",
        (_KEYED, "count_with('g:') == waiting", "count_with('g:') >= waiting"),
    ),
    mutant(
        "a permit whose key was lost is adopted",
        "the limit of a key is kept although Redis evicted whose permits are in use",
        f"{_LOST}a_detached_permit_whose_key_is_not_known_is_not_adopted",
        ("lua/adopt.lua", " or keyed and keyed.lost(old_id)", ""),
        ("lua/adopt.lua", "if keyed and keyed.lost(new_id) or", "if"),
    ),
)
