"""Mutants of the scripts: the specification beside them is right."""

from .mutant import mutant
from .target import AGREEMENT, JOURNAL

OF_SCRIPTS = (
    mutant(
        "no id check (fair)",
        "a delayed duplicate of an acquire brings nothing back",
        "promises/test_duplicates.py::test_a_delayed_duplicate_brings_nothing_back[fair-released]",
        ("lua/acquire.lua", "local old_mark = mark\n", "local old_mark = 0\n"),
        (
            "lua/quick/acquire.lua",
            "  local highest = mark\n",
            "  local highest = 0\n",
        ),
    ),
    mutant(
        "an abandon does not raise the mark",
        "an acquire that is run after its abandon is not granted",
        "promises/test_duplicates.py::test_a_delayed_duplicate_brings_nothing_back[fair-abandoned]",
        ("lua/abandon.lua", "raise_mark(highest)\n", ""),
    ),
    mutant(
        "order of batches ignored",
        "a batch is not run before the one that was sent before it",
        f"{AGREEMENT}[fair-server]",
        (
            "lua/acquire.lua",
            "if mark < after then return redis.error_reply('REORDERED') end\n",
            "",
        ),
    ),
    mutant(
        "expired holders stay",
        "a crashed holder is in the way for a lease at most",
        "faults/test_processes.py::test_a_killed_holder_is_in_the_way_for_a_lease_at_most",
        ("lua/prelude.lua", "  if #expired > 0 then remove_holders(expired) end\n", ""),
    ),
    mutant(
        "the quick path overlooks a hold that is told",
        "a cold process goes by how long the others hold permits",
        "promises/test_errors.py::test_a_cold_process_is_told_how_long_others_hold",
        ("lua/quick/release.lua", " or ARGV[6] ~= ''", ""),
    ),
    mutant(
        "a late release that tells a hold keeps the name",
        "no key is left for ever of a name that is not in use",
        "promises/test_errors.py::test_a_late_release_does_not_keep_a_name",
        ("lua/release.lua", "if hold and fields[1] then", "if hold then"),
    ),
    mutant(
        "the quick path leaves the expired",
        "nothing is left of a permit but while somebody holds it",
        "promises/test_quick_path.py::test_a_newcomer_clears_up_after_who_has_expired",
        ("lua/quick/acquire.lua", "    if next_expiry <= now then return end\n", ""),
    ),
    mutant(
        "tokens are the time",
        "fencing tokens grow with every grant, and are never used again",
        f"{AGREEMENT}[fair-server]",
        ("lua/prelude.lua", "  last = math.max(last + 1, stamp_us)\n", "  last = stamp_us\n"),
    ),
    mutant(
        "tokens are the time, on the quick path",
        "fencing tokens grow with every grant, and are never used again",
        f"{AGREEMENT}[fair-server]",
        (
            "lua/quick/acquire.lua",
            "  local token = math.max(last + 1, stamp_us)\n",
            "  local token = stamp_us\n",
        ),
    ),
    mutant(
        "counter not saved",
        "fencing tokens grow with every grant, and are never used again",
        f"{AGREEMENT}[fair-server]",
        (
            "lua/prelude.lua",
            "  if keyed then keyed.granted(grants, longest) end\n  save_counter(longest)\n",
            "  if keyed then keyed.granted(grants, longest) end\n",
        ),
    ),
    mutant(
        "a release serves nobody",
        "a free permit and a live waiter find each other soon",
        "promises/test_queue.py::test_a_release_reaches_a_waiter_elsewhere_at_once",
        ("lua/release.lua", "  serve()\n", ""),
    ),
    mutant(
        "an abandon serves nobody",
        "a waiter who leaves does not take the wake-up along",
        "promises/test_queue.py::test_the_heavy_head_leaves_and_the_next_is_served_at_once",
        ("lua/abandon.lua", "  purge()\n  serve()\n", "  purge()\n"),
    ),
    mutant(
        "a raised limit serves nobody",
        "a raised limit serves waiters at once",
        "promises/test_limit.py::test_raising_the_limit_serves_waiters_at_once",
        ("lua/set_limit.lua", "serve()\n", ""),
    ),
    mutant(
        "a release of the caller's own number",
        "release touches the ids that it names, and no others",
        "promises/test_release.py::test_release_by_id_from_another_process",
        (
            "lua/release.lua",
            "parse_ids(owner, NUMBERS)",
            "parse_ids(hub, NUMBERS)",
        ),
    ),
    mutant(
        "a release is always held",
        "release says whether the permit was held until then",
        "promises/test_quick_path.py::test_release_after_the_holders_were_evicted",
        (
            "lua/release.lua",
            "held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0",
            "held[i] = 1",
        ),
    ),
    mutant(
        "a permit released twice in a call was held twice",
        "a double release is False",
        "promises/test_quick_path.py::test_released_twice_in_one_turn",
        ("lua/release.lua", " and not seen[ids[i]] and 1 or 0", " and 1 or 0"),
    ),
    mutant(
        "a refresh brings back",
        "a refresh never brings back what is gone",
        "faults/test_server.py::test_holders_learn_that_the_keys_are_gone",
        (
            "lua/refresh.lua",
            "  expiry = tonumber(expiry)\n  held[i] = expiry and expiry > now and 1 or 0\n",
            "  expiry = tonumber(expiry) or 0\n  held[i] = 1\n",
        ),
    ),
    mutant(
        "a refresh of the expired",
        "a refresh never brings back what is gone",
        "promises/test_quick_path.py::test_an_expired_permit_is_not_refreshed",
        (
            "lua/refresh.lua",
            "held[i] = expiry and expiry > now and 1 or 0",
            "held[i] = expiry and 1 or 0",
        ),
    ),
    mutant(
        "a refresh lowers the expiry",
        "a short lease does not cut a long one",
        "promises/test_release.py::test_a_refresh_does_not_lower_an_expiry",
        ("lua/refresh.lua", "math.max(expiry, now + asked)", "now + asked"),
    ),
    mutant(
        "adopt does not exchange the id",
        "a job that is delivered twice does not run twice under one permit",
        "promises/test_release.py::test_the_second_adopter_gets_permit_lost",
        ("lua/adopt.lua", "  remove_holders({ old_id })\n", ""),
    ),
    mutant(
        "weights are not counted",
        "never more permits than the limit",
        "promises/test_acquire.py::test_weights_are_counted",
        (
            "lua/prelude.lua",
            "    used = holder_count + extra_permits()\n",
            "    used = holder_count\n",
        ),
    ),
    mutant(
        "the quick path overlooks weights",
        "never more permits than the limit",
        "promises/test_quick_path.py::test_nobody_is_one_too_many",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', limit, line)",
        ),
    ),
    mutant(
        "the quick path grants one too many",
        "never more permits than the limit",
        "promises/test_quick_path.py::test_nobody_is_one_too_many",
        (
            "lua/quick/acquire.lua",
            "waiting == 0 and count <= room then",
            "waiting == 0 and count <= room + 1 then",
        ),
    ),
    mutant(
        "a heavy head is overtaken",
        "a heavy request at the head of the line does not starve",
        "promises/test_queue.py::test_fair_lets_nobody_pass_a_heavy_head",
        (
            "lua/serve.lua",
            "        found.blocked_until = state.alive_until\n        return found\n",
            "        found.blocked_until = state.alive_until\n",
        ),
    ),
    mutant(
        "newcomers overtake the line",
        "permits are granted strictly in ticket order",
        "promises/test_queue.py::test_fair_lets_nobody_pass_a_heavy_head",
        ("lua/serve.lua", "if not open or grace > now or", "if grace > now or"),
    ),
    mutant(
        "the quick path overtakes the line",
        "permits are granted strictly in ticket order",
        "promises/test_quick_path.py::test_nobody_overtakes_the_line",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', extra, limit)",
        ),
    ),
    mutant(
        "the line is served by its head's limit",
        "each client's own limit rules its requests",
        "promises/test_limit.py::test_whoever_stands_in_line_goes_by_its_own_limit",
        (
            "lua/serve.lua",
            "      local effective_limit = limit_for(declared)\n",
            (
                "      hub_states.limit = hub_states.limit or declared\n"
                "      local effective_limit = set_limit or hub_states.limit\n"
            ),
        ),
    ),
    mutant(
        "a set limit of 0 is none",
        "a limit of 0 pauses",
        "promises/test_limit.py::test_a_limit_of_zero_pauses",
        (
            "lua/prelude.lua",
            "  set_limit = limit_in(call('GET', limit))\n",
            "  set_limit = limit_in(call('GET', limit))\n  if set_limit == 0 then set_limit = nil end\n",
        ),
    ),
    mutant(
        "the quick path overlooks a set limit",
        "a set limit wins over every client's own",
        "promises/test_quick_path.py::test_nobody_is_one_too_many",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', extra, line)",
        ),
    ),
    mutant(
        "the line overlooks a set limit",
        "a set limit wins over every client's own",
        "promises/test_limit.py::test_lowering_the_limit_evicts_nobody",
        (
            "lua/serve.lua",
            "      local effective_limit = limit_for(declared)\n",
            "      local effective_limit = declared\n",
        ),
    ),
    mutant(
        "a pause forgets the limit that it finds",
        "resume gives back the limit that pause found",
        "promises/test_limit.py::test_resume_gives_back_the_limit_that_pause_found[zset-redis-5]",
        (
            "lua/set_limit.lua",
            "return paused and before or before and '0 ' .. before or '0'",
            "return '0'",
        ),
    ),
    mutant(
        "the bound of the line is overlooked",
        "max_waiters bounds the queue",
        "promises/test_acquire.py::test_the_queue_is_bounded",
        (
            "lua/serve.lua",
            "return max_waiters >= 0 and count_living() >= max_waiters and -3",
            "return max_waiters >= 0 and count_living() > max_waiters and -3",
        ),
    ),
    mutant(
        "a grant that nobody heard counts (fair)",
        "a waiter whose process is gone is passed over",
        (
            "faults/test_processes.py"
            "::test_the_head_of_the_line_is_passed_over_when_its_process_is_killed"
        ),
        (
            "lua/queue.lua",
            "table.concat(parts, ',')) ~= 0",
            "table.concat(parts, ',')) or true",
        ),
    ),
    mutant(
        "the dead stay in line (fair)",
        "a waiter whose process is silent is passed over",
        "scripts/test_spec.py"
        "::test_nothing_is_granted_to_who_died_since_the_queue_was_looked_through",
        (
            "lua/serve.lua",
            "      elseif state.alive_until <= now then\n",
            "      elseif state.alive_until < 0 then\n",
        ),
    ),
    mutant(
        "a whole lease for whoever is handed a permit",
        "handing a permit to a stopped process costs less than a lease",
        "scripts/test_spec.py::test_whoever_is_handed_a_permit_has_a_part_of_its_lease_at_first",
        (
            "lua/queue.lua",
            "    grant[3] = math.min(grant[3], math.max(2 * heartbeat_interval(grant[3]), 1000))\n",
            "",
        ),
    ),
    mutant(
        "no next moment (fair)",
        "when a holder expires the next is served, though nobody does anything",
        "promises/test_queue.py::test_an_expired_holder_gives_way",
        (
            "lua/queue.lua",
            "return { tag, next_change(), count_living(),",
            "return { tag, -1, count_living(),",
        ),
    ),
    mutant(
        "the head's end is no moment",
        "when the process of the head is given up, the next is served",
        (
            "faults/test_processes.py"
            "::test_who_waits_behind_a_silent_process_is_served_once_that_counts_as_dead"
        ),
        (
            "lua/serve.lua",
            "      open, head_alive_until = false, found.blocked_until\n",
            "      open = false\n",
        ),
    ),
    mutant(
        "a nearer expiry is not told of",
        "a permit that is detached for a short while is missed in time",
        "promises/test_detach.py::test_a_waiter_is_told_of_a_nearer_expiry",
        ("lua/detach.lua", "if expires < held[2] and waiting > 0 then notify_head() end\n", ""),
    ),
    mutant(
        "the holders have no expiry",
        "all keys are gone after idling",
        JOURNAL,
        ("lua/prelude.lua", "  keep(holders, longest)\n", ""),
        ("lua/quick/acquire.lua", "    call('PEXPIRE', holders, 3 * lease)\n", ""),
    ),
    mutant(
        "the tokens have no expiry, on the quick path",
        "all keys are gone after idling",
        JOURNAL,
        ("lua/quick/acquire.lua", "    call('PEXPIRE', tokens, 3 * lease)\n", ""),
    ),
    mutant(
        "expiries are brought nearer",
        "keys live as long as the longest lease",
        JOURNAL,
        (
            "lua/head.lua",
            (
                "  if left ~= -2 and left < 2 * need then\n"
                "    call('PEXPIRE', key, math.ceil(3 * need))\n"
            ),
            "  if left ~= -2 then\n    call('PEXPIRE', key, math.ceil(3 * need))\n",
        ),
    ),
    mutant(
        "tokens are not removed",
        "nothing is left of a permit but while somebody holds it",
        JOURNAL,
        ("lua/prelude.lua", "  call('HDEL', tokens, unpack(ids))\n  for power", "  for power"),
    ),
    mutant(
        "tokens are not removed, on the quick path",
        "nothing is left of a permit but while somebody holds it",
        JOURNAL,
        (
            "lua/quick/release.lua",
            "  call('HDEL', tokens, unpack(ids))\n",
            "",
        ),
    ),
    mutant(
        "hubs are not forgotten",
        "nothing is left of processes that are long gone",
        "scripts/test_spec.py::test_nothing_is_left_of_a_hub_that_is_silent_for_long",
        ("lua/prelude.lua", "hubs, '-inf', now - SLACK,", "hubs, '-inf', 0,"),
    ),
    mutant(
        "a clear tells nobody",
        "holders of a semaphore that is deleted lose their permits",
        "promises/test_status.py::test_clear_takes_permits_from_their_holders",
        ("lua/clear.lua", "  if owner ~= hub then publish_to(owner, 'cleared', '-') end\n", ""),
    ),
    mutant(
        "a clear forgets the counter",
        "fencing tokens grow with every grant, and are never used again",
        f"{AGREEMENT}[zset-server]",
        (
            "lua/clear.lua",
            "if last < wall_us then\n  call('HDEL', meta, 'counter')\n",
            "if last then\n  call('HDEL', meta, 'counter')\n",
        ),
    ),
    mutant(
        "the clock goes back",
        "a server clock that is set back does not lengthen leases",
        (
            "faults/test_clocks.py"
            "::test_after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most"
        ),
        ("lua/head.lua", "if wall_us + ahead + offset < last - STEP and", "if false and"),
    ),
    mutant(
        "a grace period admits newcomers (fair)",
        "holders come back before anybody new is admitted",
        "promises/test_recovery.py::test_waiters_are_served_when_the_grace_period_ends[fair]",
        ("lua/serve.lua", "if not open or grace > now or", "if not open or"),
    ),
    mutant(
        "a restart is no loss",
        "a restarted server is seen to have lost state",
        "promises/test_recovery.py::test_another_server_is_a_loss",
        (
            "lua/prelude.lua",
            "  if marker_server ~= server then\n",
            "  if not marker_server then\n",
        ),
    ),
    mutant(
        "a restored permit gets a new token",
        "a holder's token stays what it was told",
        "promises/test_recovery.py::test_holders_come_back_before_anybody_new_is_admitted",
        (
            "lua/restore.lua",
            "id, token, math.max(asked, left)",
            "id, next_token(), math.max(asked, left)",
        ),
    ),
    mutant(
        "a released permit is put back",
        "what was released in a grace period stays released",
        "promises/test_recovery.py::test_what_was_released_is_not_put_back",
        (
            "lua/prelude.lua",
            "  for _, id in ipairs(ids) do call('ZADD', released, now, id) end\n",
            "",
        ),
    ),
    mutant(
        "replicas repeat what is told",
        "a grant that nobody heard is held by nobody",
        "faults/test_failover.py::test_a_grant_that_nobody_heard_is_not_told_by_a_demoted_master",
        ("lua/tell/hub.lua", "  pcall(redis.set_repl, redis.REPL_NONE)", "  "),
    ),
    mutant(
        "a detach acts each time it arrives",
        "calls that change something act once, however late they arrive",
        "promises/test_detach.py::test_a_detach_that_nobody_asks_for_any_more_is_made_void",
        (
            "lua/detach.lua",
            "if already_ran(number) then return redis.error_reply('VOID') end\n",
            "",
        ),
    ),
    mutant(
        "a limit is set each time it arrives",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_a_limit_that_arrives_late_is_not_set_again",
        ("lua/set_limit.lua", "if not already_ran(number) then\n", "if number then\n"),
    ),
    mutant(
        "a clear clears each time it arrives",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_a_clear_that_arrives_late_takes_nothing",
        ("lua/clear.lua", "if already_ran(number) then return { tag } end\n", ""),
    ),
    mutant(
        "an adoption that was given up adopts",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_an_adoption_that_was_given_up_arrives_late",
        (
            "lua/adopt.lua",
            "if not grant and already_ran(number) then return redis.error_reply('VOID') end\n",
            "",
        ),
    ),
    mutant(
        "a repeated adoption finds nothing",
        "whatever is sent again because its reply was lost answers the same",
        (
            "promises/test_duplicates.py"
            "::test_an_adoption_that_was_answered_late_is_trusted_for_what_is_left"
        ),
        ("lua/adopt.lua", "local grant = current_grant(new_id)\n", "local grant = nil\n"),
    ),
    mutant(
        "an adoption is void where a later acquire was given up",
        "an adoption ends as PermitLost where the id holds nothing, and nowhere else",
        "promises/test_duplicates.py::test_an_adoption_is_not_lost_to_a_later_call_that_is_given_up",
        (
            "lua/adopt.lua",
            "local grant = current_grant(new_id)\n",
            (
                "local grant = current_grant(new_id)\n"
                "if not grant and tonumber(new) <= mark then return { tag, -1 } end\n"
            ),
        ),
    ),
    mutant(
        "an abandon makes no call void",
        "a call that nobody asks for any more does not act",
        "promises/test_detach.py::test_a_detach_that_nobody_asks_for_any_more_is_made_void",
        ("lua/abandon.lua", "  note_call(void)\n", ""),
    ),
    mutant(
        "a clear forgets which numbers were used",
        "what was released before a clear does not come back after it",
        "promises/test_duplicates.py::test_a_clear_leaves_acquires_that_are_late_void",
        ("lua/clear.lua", "call('HDEL', meta, owner .. ':client',", "call('HDEL', meta, owner,"),
    ),
    mutant(
        "a clear forgets which calls have acted",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_a_clear_leaves_limits_that_are_late_void",
        (
            "lua/clear.lua",
            "call('HDEL', meta, owner .. ':client',",
            "call('HDEL', meta, owner .. ':calls', owner .. ':client',",
        ),
    ),
    mutant(
        "heavy requests stay in the way",
        "nobody is hidden behind those who cannot be served",
        "promises/test_long_queue.py::test_a_light_request_is_not_hidden_behind_heavy_ones",
        ("lua/serve.lua", "    park(found.unservable)\n", ""),
    ),
    mutant(
        "a raised limit brings nobody back",
        "what was set aside is served once the limit allows it",
        "promises/test_long_queue.py::test_a_light_request_is_not_hidden_behind_heavy_ones",
        (
            "lua/set_limit.lua",
            "  if waiting > 0 then return_parked() end",
            "",
        ),
    ),
    mutant(
        "a scan that stopped early does not say so",
        "a call that stopped early says so, and its caller goes on",
        "promises/test_long_queue.py::test_newcomers_overtake_nobody_who_was_not_looked_at",
        (
            "lua/serve.lua",
            "  if not all_passed or #undelivered > 0 then open, more = false, true end\n",
            "  if not all_passed or #undelivered > 0 then open = false end\n",
        ),
    ),
    mutant(
        "bringing back in part does not say so",
        "a call that stopped early says so, and its caller goes on",
        "promises/test_long_queue.py::test_a_light_request_is_not_hidden_behind_heavy_ones",
        (
            "lua/serve.lua",
            "    open, more = false, true\n    return\n",
            "    open = false\n    return\n",
        ),
    ),
    mutant(
        "what was passed over is not looked at when more is free",
        "the oldest request that fits is next (Semaphore)",
        "promises/test_queue.py::test_semaphore_serves_the_oldest_that_fits",
        ("lua/serve.lua", "pair[1] > position and pair[2] <= used", "pair[1] > position"),
    ),
    mutant(
        "what was passed over stays so when the limit is raised",
        "a raised limit serves waiters at once",
        "promises/test_queue.py::test_semaphore_serves_a_heavy_request_once_the_limit_is_raised",
        ("lua/serve.lua", "  if returns then forget_passed() end", "  "),
    ),
    mutant(
        "what was passed over for a grant that nobody received stays so",
        "the oldest request that fits is next (Semaphore)",
        "scripts/test_spec.py::test_what_was_passed_over_for_a_lost_grant_is_looked_at_again",
        ("lua/serve.lua", "      position, needed, pairs_before = 0, 0, {}  --", "      --"),
    ),
    mutant(
        "a process that is gone holds up the keys that it was not served for",
        "a waiter whose process is gone is passed over",
        "scripts/test_spec.py::test_who_is_gone_holds_up_no_other_key",
        ("lua/keyed/prelude.lua", "    if #undelivered > 0 then drop_and_park() end", "    "),
    ),
    mutant(
        "a request that does not fit holds up those that came with it (Semaphore)",
        "a request that fits is granted at once (Semaphore)",
        "scripts/test_spec.py::test_in_zset_mode_what_fits_is_granted_beside_what_does_not",
        ("lua/acquire.lua", "if fair and blocked_by == 'limit'", "if blocked_by == 'limit'"),
    ),
    mutant(
        "Semaphore serves the head alone",
        "a request that fits is granted at once (Semaphore)",
        "scripts/test_spec.py::test_in_zset_mode_what_fits_is_granted_beside_what_does_not",
        ("lua/serve.lua", "local state = (fits or not passes) and", "local state ="),
    ),
    mutant(
        "a newcomer overtakes who was not looked at",
        "permits are granted strictly in ticket order",
        "promises/test_long_queue.py::test_newcomers_overtake_nobody_who_was_not_looked_at",
        (
            "lua/serve.lua",
            "  if not all_passed or #undelivered > 0 then open, more = false, true end\n",
            "  if not all_passed or #undelivered > 0 then more = true end\n",
        ),
    ),
    mutant(
        "nobody comes back who is heard from",
        "a process that was cut off comes back to its place",
        "promises/test_long_queue.py::test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed",
        (
            "lua/prelude.lua",
            "    unreachable = nil\n    return_parked()\n",
            "    unreachable = nil\n",
        ),
    ),
    mutant(
        "nobody notes who does not hear",
        "a process that was cut off comes back to its place",
        "promises/test_long_queue.py::test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed",
        (
            "lua/queue.lua",
            "      call('HSET', meta, recipient.owner .. ':unreachable', '1')\n",
            "",
        ),
    ),
    mutant(
        "who does not hear is never heard of again",
        "a process that was cut off comes back to its place",
        "promises/test_long_queue.py::test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed",
        ("lua/prelude.lua", "    call('HDEL', meta, hub .. ':unreachable')\n", ""),
    ),
    mutant(
        "a request that was set aside gets a new ticket",
        "a process that was cut off comes back to its place",
        "promises/test_long_queue.py::test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed",
        (
            "lua/queue.lua",
            "entries[#entries + 1], scores[#scores + 1] = request, exact(ticket_of(score))",
            "entries[#entries + 1], scores[#scores + 1] = request, exact(next_token())",
        ),
    ),
    mutant(
        "a request of who was not heard is dropped",
        "a process that was cut off comes back to its place",
        "promises/test_long_queue.py::test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed",
        (
            "lua/serve.lua",
            "    park(undelivered)\n",
            (
                "    if #undelivered > 0 then\n"
                "      waiting = waiting - call('ZREM', queue, unpack(undelivered))\n"
                "    end\n"
            ),
        ),
    ),
    mutant(
        "requests of a process that is gone count as waiting",
        "who is known to be gone counts no more",
        "scripts/test_spec.py::test_no_request_of_a_process_that_is_gone_counts[fair]",
        (
            "lua/queue.lua",
            ".unreachable and 2 * PARKED or PARKED",
            ".unreachable and PARKED or PARKED",
        ),
    ),
    mutant(
        "only the head of a process that is gone counts no more",
        "who is known to be gone counts no more",
        "scripts/test_spec.py::test_no_request_of_a_process_that_is_gone_counts[fair]",
        ("lua/queue.lua", "      call('HDEL', meta, 'looked')", "      "),
    ),
    mutant(
        "a long line of the dead is full",
        "nobody is refused because of who is dead",
        "faults/test_processes.py::test_nobody_is_refused_because_of_who_was_killed[options0-key0]",
        ("_hub/commands/acquire.py", "answer in _ANY_FULL", "answer in (FULL, FULL_FOR_KEY)"),
    ),
    mutant(
        "the dead are listed by status",
        "status() leaves out who is dead",
        "scripts/test_spec.py::test_status_leaves_out_requests_of_the_dead[fair]",
        (
            "lua/queue.lua",
            "if hub_state(string.sub(part[i], 1, #hub)).alive_until <= now then",
            "if false then",
        ),
    ),
    mutant(
        "nobody looks for the dead behind the head",
        "nobody is refused because of who is dead",
        (
            "faults/test_processes.py"
            "::test_who_was_killed_counts_until_its_process_counts_as_dead[FairSemaphore-options1-key1]"
        ),
        (
            "lua/serve.lua",
            "local dead, unreached = look_through()",
            "local dead, unreached = {}, {}",
        ),
    ),
    mutant(
        "the dead stay where they were set aside",
        "max_waiters goes by those who live",
        (
            "promises/test_long_queue.py"
            "::test_requests_of_a_process_that_is_dead_are_dropped_although_they_were_parked"
        ),
        ("lua/serve.lua", "  if #dead > 0 then leave_queue(dead) end\n", ""),
    ),
    mutant(
        "permits beyond the first stay when their holder is lost",
        "permits of holders that are gone are free when their lease would have ended",
        "faults/test_memory.py::test_permits_of_the_dead_end_with_their_lease_in_a_grace_period_too",
        (
            "lua/prelude.lua",
            "      if #ended > 0 then call",
            "      if false then call",
        ),
    ),
    mutant(
        "permits beyond the first are counted when they have expired",
        "status tells how many permits are in use",
        "promises/test_quick_path.py::test_heavy_permits_that_have_expired_are_not_counted",
        (
            "lua/prelude.lua",
            "call('ZCOUNT', extra, '(' .. exact(from + now), '(' .. exact(from + BAND))",
            "call('ZCOUNT', extra, exact(from), '(' .. exact(from + BAND))",
        ),
    ),
    mutant(
        "a refresh renews the first permit alone",
        "never more permits than the limit",
        "promises/test_quick_path.py::test_a_heavy_permit_stays_whole_for_as_long_as_it_is_refreshed",
        (
            "lua/refresh.lua",
            "      list_extra(entries, ids[i], tonumber(string.match(permit, ':(%d+)$')), expiry)\n",
            "",
        ),
    ),
    mutant(
        "the quick path admits newcomers in a grace period (fair)",
        "holders come back before anybody new is admitted",
        "promises/test_recovery.py::test_nobody_slips_in_by_asking_again[fair]",
        (
            "lua/quick/acquire.lua",
            " or grace > now then\n",
            " or grace > now and mode ~= 'fair server' then\n",
        ),
    ),
    mutant(
        "the quick path admits newcomers in a grace period (zset)",
        "holders come back before anybody new is admitted",
        "promises/test_recovery.py::test_nobody_slips_in_by_asking_again[zset]",
        (
            "lua/quick/acquire.lua",
            " or grace > now then\n",
            " or grace > now and mode ~= 'zset server' then\n",
        ),
    ),
    mutant(
        "a release on the quick path is forgotten in a grace period",
        "what was released in a grace period stays released",
        "promises/test_recovery.py::test_what_was_put_back_and_released_does_not_come_back_late",
        (
            "lua/quick/release.lua",
            "if ARGV[5] ~= hub or ARGV[6] ~= '' or grace > now then",
            "if ARGV[5] ~= hub or ARGV[6] ~= '' then",
        ),
    ),
    mutant(
        "who was gone stays so where meta was lost",
        "a process that comes back is served",
        "promises/test_long_queue.py"
        "::test_who_comes_back_is_served_although_it_is_not_known_any_more_who_was_gone",
        (
            "lua/prelude.lua",
            "    if unknown_hub and waiting > 0 then return_parked() end\n",
            "",
        ),
    ),
    mutant(
        "the head of the line alone is told of a nearer expiry",
        "a permit that is detached for a short while is missed in time",
        "promises/test_detach.py::test_a_nearer_expiry_is_told_past_who_does_not_hear",
        (
            "lua/queue.lua",
            "    told[owner] = true\n",
            "    if told then return end\n",
        ),
    ),
    mutant(
        "no recall for an attempt that does not wait (fair)",
        "an attempt that does not wait recalls kept leases",
        "promises/test_linger.py::test_an_attempt_that_does_not_wait_recalls[fair-redis]",
        (
            "lua/acquire.lua",
            "        served = served and answers[i] > 0\n",
            "",
        ),
    ),
    mutant(
        "the right is given beside waiters of others",
        "no other process waits where leases are reused",
        "scripts/test_spec.py::test_memory_and_redis_agree",
        (
            "lua/prelude.lua",
            "  local given = not others_wait and grace <= now",
            "  local given = grace <= now",
        ),
    ),
    mutant(
        "the right is given above the limit",
        "the right is given within the limit in force",
        "scripts/test_spec.py::test_memory_and_redis_agree",
        (
            "lua/prelude.lua",
            "    and used <= effective_limit and #noted",
            "    and #noted",
        ),
    ),
    mutant(
        "a recall leaves its note",
        "a process that was told of a recall has no right any more",
        "scripts/test_spec.py::test_memory_and_redis_agree",
        (
            "lua/prelude.lua",
            "  if own == rights then return end\n  rights = own\n",
            "  if own ~= rights then return end\n  rights = own\n",
        ),
    ),
    mutant(
        "messages are not to be replicated, whatever the server",
        "a hand-over is not left half done where there is no redis.set_repl",
        "faults/test_lacking.py::test_permits_are_handed_over_in_order[fair-set_repl]",
        (
            "lua/tell/hub.lua",
            "pcall(redis.set_repl, redis.REPL_NONE)",
            "redis.set_repl(redis.REPL_NONE)",
        ),
    ),
    mutant(
        "no clock but TIME",
        "semaphores work where scripts cannot call TIME",
        "faults/test_lacking.py::test_permits_are_handed_over_in_order[fair-time]",
        ("lua/head.lua", "  if not time.err then\n    wall_us =", "  if true then\n    wall_us ="),
    ),
    mutant(
        "the error MODE counts by the caller's clock, without TIME",
        "who has a wrong clock is told who holds by the server's",
        "faults/test_lacking.py::test_who_keeps_another_clock_is_told_who_holds",
        ("lua/head.lua", "time.err and redis.pcall('PEXPIRETIME', meta)", "time.err"),
    ),
    mutant(
        "what is stored to read the clock stays",
        "looking at a name that is not in use leaves nothing",
        "faults/test_lacking.py::test_looking_at_nothing_leaves_nothing",
        ("lua/head.lua", "    if lent then call('HDEL', meta, '') end\n", ""),
    ),
    mutant(
        "reading the clock is the first write",
        "at maxmemory an acquire grants nothing, also where scripts cannot call TIME",
        "faults/test_lacking.py::test_a_full_server_grants_nothing_and_lets_go",
        (
            "lua/head.lua",
            "      if lent then call('PEXPIRE', meta, 60000) end\n",
            "      call('PEXPIRE', meta, 60000)\n",
        ),
    ),
    mutant(
        "nobody counted is nobody there",
        "the order is kept where PUBLISH does not count who receives a message",
        "faults/test_lacking.py::test_permits_are_handed_over_in_order[fair-count]",
        ("lua/tell/hub.lua", "owner .. ':no_push') == '2'", "owner .. ':no_push') == '3'"),
    ),
    mutant(
        "a reply has a float",
        "semaphores work in Lua 5.4, which tells 4.0 from 4",
        "faults/test_lacking.py::test_requests_for_many_are_counted[fair-lua51]",
        ("lua/prelude.lua", "count + math.floor(2 ^ power) * live", "count + 2 ^ power * live"),
    ),
)
