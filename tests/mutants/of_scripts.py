"""Mutants of the scripts, which the simulation runs, too."""

from .mutant import mutant

SIMULATION = "every_promise_is_kept_whatever_happens[0]"
JOURNAL = "nothing_is_wrong_with_what_the_scripts_did"
CUT_OFF = "a_process_that_was_cut_off_keeps_its_place_to_a_round_trip[fair]"
SERVES_NOBODY = "return { waiting = call('ZCARD', queue), requests = {}, own = {} }"

OF_SCRIPTS = (
    mutant(
        "a late acquire acts",
        "a delayed duplicate of an acquire brings nothing back",
        "a_delayed_duplicate_brings_nothing_back[fair-released]",
        ("lua.acquire", "local old_mark, requests = state.mark", "local old_mark, requests = 0"),
        ("lua.quick.acquire.grant_or_queue_all", "not number or number <= mark", "not number"),
    ),
    mutant(
        "an abandon does not raise the mark",
        "an acquire that is run after its abandon is not granted",
        "a_delayed_duplicate_brings_nothing_back[fair-abandoned]",
        ("lua.abandon", "raise_mark(highest)", ""),
    ),
    mutant(
        "order of batches ignored",
        "a batch is not run before the one that was sent before it",
        "a_batch_is_not_run_before_the_one_that_was_sent_before_it",
        ("lua.acquire", "if state.mark < after then", "if false then"),
    ),
    mutant(
        "expired holders stay",
        "a crashed holder is in the way for a lease at most",
        "a_killed_holder_is_in_the_way_for_a_lease_at_most",
        ("holders.purge", "if #expired > 0 then", "if false then"),
    ),
    mutant(
        "tokens are the time",
        "fencing tokens grow with every grant, and are never used again",
        "tokens_grow_within_a_microsecond",
        ("holders.next_token", "math.max(state.counter + 1, now_us)", "now_us"),
    ),
    mutant(
        "a release serves nobody",
        "a free permit and a live waiter find each other soon",
        "a_release_reaches_a_waiter_elsewhere_at_once",
        ("lua.release", "serve(own_requests(own))", ""),
        ("lua.quick.release.hand_over", "", SERVES_NOBODY),
    ),
    mutant(
        "a raised limit serves nobody",
        "a raised limit serves waiters at once",
        "raising_the_limit_serves_waiters_at_once",
        ("lua.set_limit", "purge() serve()", "purge()"),
    ),
    mutant(
        "a release of the caller's own number",
        "release touches the ids that it names, and no others",
        "release_by_id_is_a_loss_to_the_holder",
        ("lua.release", "parse_ids(owner, NUMBERS)", "parse_ids(hub, NUMBERS)"),
    ),
    mutant(
        "a permit released twice in a call was held twice",
        "a double release is False",
        "released_twice_in_one_turn",
        ("lua.release", "> now and not seen[ids[i]]", "> now"),
    ),
    mutant(
        "a refresh brings back",
        "a refresh never brings back what is gone",
        "refresh_finds_it_out_now",
        ("lua.refresh", "known and expiry and expiry > now", "known and expiry"),
    ),
    mutant(
        "a refresh lowers the expiry",
        "a short lease does not cut a long one",
        "a_refresh_does_not_lower_an_expiry",
        ("lua.refresh", "math.max(expiry, now + asked)", "now + asked"),
    ),
    mutant(
        "adopt does not exchange the id",
        "a job that is delivered twice does not run twice under one permit",
        "the_second_adopter_gets_permit_lost",
        ("lua.adopt", "remove_holders({ old_id })", ""),
    ),
    mutant(
        "weights are not counted",
        "never more permits than the limit",
        "weights_are_counted",
        ("holders.purge", "state.holding + state.heavy", "state.holding"),
    ),
    mutant(
        "a heavy head is overtaken",
        "a heavy request at the head of the queue does not starve",
        "fair_no_request_passes_a_heavy_head",
        ("order.next_request", "scan.ended = true return nil", ""),
    ),
    mutant(
        "newcomers overtake the queue",
        "permits are granted strictly in ticket order",
        "fair_no_request_passes_a_heavy_head",
        ("order.held_up", "state.blocked_until or", ""),
    ),
    mutant(
        "the queue is served by its head's limit",
        "each client's own limit rules its requests",
        "a_waiter_goes_by_its_own_limit",
        (
            "queue.may_be_next",
            "local most = limit_for(request.declared)",
            "hub_states.limit = hub_states.limit or request.declared local most = hub_states.limit",
        ),
    ),
    mutant(
        "a set limit is ignored",
        "a set limit wins over every client's own",
        "lowering_the_limit_takes_no_permit",
        ("holders.limit_for", "", "return declared"),
    ),
    mutant(
        "a pause forgets the limit that it finds",
        "resume gives back the limit that pause found",
        "resume_gives_back_the_limit_that_pause_found[zset-redis-5]",
        (
            "lua.set_limit",
            "'0', paused and string.match(value, '^0:(%d*)') or limit_in(value) or ''",
            "'0', ''",
        ),
    ),
    mutant(
        "the bound of the queue is overlooked",
        "max_waiters bounds the queue",
        "max_waiters_bounds_the_queue_of_all_processes",
        ("order.queue_is_full", "queued >= max_waiters", "queued > max_waiters"),
    ),
    mutant(
        "a grant that nobody heard counts",
        "a waiter whose process is gone is passed over",
        "requests_of_killed_processes_are_passed_over",
        ("serve.tell", "~= 0", "~= -1"),
        (
            "lua.quick.release.hand_over",
            "table.concat(plan.grants, ',')) == 0",
            "table.concat(plan.grants, ',')) == -1",
        ),
    ),
    mutant(
        "the dead are served",
        "a waiter whose process is silent is passed over",
        "nothing_is_granted_to_who_died_since_the_queue_was_looked_through",
        ("order.next_request", "hub_state(request.owner).alive_until <= now", "false"),
        (
            "serve.drop_dead",
            "hub_state(string.match(rows[i], '^%x+')).alive_until <= now",
            "false",
        ),
    ),
    mutant(
        "no next moment",
        "when a holder expires the next is served, though nobody does anything",
        "an_expired_holder_gives_way",
        ("serve.next_change", "local next_ms = next_expiry()", "local next_ms = -1"),
        ("lua.quick.acquire.grant_or_queue_all", "next_expiry < math.huge and", "false and"),
    ),
    mutant(
        "a nearer expiry is not told of",
        "a permit that is detached for a short while is missed in time",
        "a_waiter_is_told_of_a_nearer_expiry",
        ("lua.detach", "if expires < grant.left and state.waiting > 0 then", "if false then"),
    ),
    mutant(
        "the holders have no expiry",
        "all keys are gone after idling",
        JOURNAL,
        ("holders.write_grants", "keep(holders, longest)", ""),
    ),
    mutant(
        "facts are not removed",
        "nothing is left of a permit but while somebody holds it",
        JOURNAL,
        ("holders.remove_holders", "call('HDEL', facts, unpack(ids))", ""),
    ),
    mutant(
        "hubs are not forgotten",
        "nothing is left of processes that are long gone",
        "nothing_is_left_of_a_hub_that_is_silent_for_long",
        ("hubs.forget_dead_hubs", "now - SLACK", "0"),
    ),
    mutant(
        "a deletion tells nobody",
        "holders of a semaphore that is deleted lose their permits",
        "delete_takes_permits_from_their_holders",
        ("lua.delete", "if owner ~= hub then", "if false then"),
    ),
    mutant(
        "a deletion forgets which numbers were used",
        "what was released before a deletion does not come back after it",
        "a_deletion_leaves_what_arrives_late_void",
        ("lua.delete", "if highest_run then append(kept, { name, highest_run }) end", ""),
    ),
    mutant(
        "the clock goes back",
        "a server clock that is set back does not lengthen leases",
        "after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most",
        ("lua.head", "if wall_us + lead < counter - STEP and", "if false and"),
    ),
    mutant(
        "no clock but TIME",
        "semaphores work where scripts cannot call TIME",
        "permits_are_handed_over_in_order[time]",
        ("head.read_clock", "if not time.err then", "if true then"),
    ),
    mutant(
        "replicas repeat what is told",
        "a grant that nobody heard is held by nobody",
        "a_grant_without_a_subscriber_is_not_told_by_a_demoted_master",
        ("tell.hub.publish_to", "pcall(redis.set_repl, redis.REPL_NONE)", ""),
    ),
    mutant(
        "nobody counted is nobody there",
        "the order is kept where PUBLISH does not count who receives a message",
        "permits_are_handed_over_in_order[count]",
        ("tell.hub.publish_to", "if receivers == 0 and", "if false and"),
    ),
    mutant(
        "calls act each time they arrive",
        "calls that change something act once, however late they arrive",
        "calls_that_are_sent_again_together_act_once_and_in_their_order",
        ("hubs.already_ran", "", "return false"),
    ),
    mutant(
        "an abandon makes no call void",
        "a call that nobody asks for any more does not act",
        "a_cancelled_detach_that_did_not_arrive_is_made_void",
        ("lua.abandon", "note_call(void, 'calls')", ""),
    ),
    mutant(
        "a repeated adoption finds nothing",
        "whatever is sent again because its reply was lost answers the same",
        "an_adoption_that_was_answered_late_is_trusted_for_what_is_left",
        ("lua.adopt", "local grant = grant_of(new_id)", "local grant = nil"),
    ),
    mutant(
        "heavy requests stay in the way",
        "nobody is hidden behind those who cannot be served",
        "a_light_request_is_not_hidden_behind_heavy_ones",
        ("order.next_request", "request.permits > most or passes", "passes"),
    ),
    mutant(
        "what was passed over is not looked at when more is free",
        "the oldest request that fits is next (Semaphore)",
        "semaphore_serves_the_oldest_that_fits",
        ("order.next_request", "and used <= state.used", ""),
    ),
    mutant(
        "the bound of the queue refuses who asks again",
        "a process that was cut off keeps its place to a round trip",
        CUT_OFF,
        ("lua.acquire", "request.waits ~= '2' and queue_is_full", "queue_is_full"),
    ),
    mutant(
        "a hub that no message reaches counts as alive",
        "who is known to be gone counts no more",
        "no_request_of_a_process_that_is_gone_counts[fair]",
        (
            "serve.mark_dead",
            "hub_states[owner].alive_until = now call('ZADD', hubs, now, owner)",
            "",
        ),
    ),
    mutant(
        "another layout is not noticed",
        "clients with another layout of the keys change nothing",
        "nothing_can_be_done_with_another_layout",
        ("lua.refusal", "or layout and layout ~= LAYOUT then", "then"),
    ),
    mutant(
        "max_hold begins anew",
        "adopting again and again does not make a permit last longer",
        "an_adopter_has_what_is_left",
        (
            "holders.grant_of",
            "math.max(0, math.floor((now_us - token) / 1000))",
            "0",
        ),
    ),
    # -- the quick paths
    mutant(
        "the quick path leaves the expired",
        "nothing is left of a permit but while somebody holds it",
        "a_quick_path_does_what_the_general_one_does",
        ("quick.usual.usual_state", "if first and tonumber(first) <= now then return end", ""),
    ),
    mutant(
        "the quick path overlooks weights",
        "never more permits than the limit",
        "the_limit_holds_on_the_quick_path",
        ("quick.usual", "and not key_back_offs and heavy == 0", "and not key_back_offs"),
    ),
    mutant(
        "the quick path overlooks a set limit",
        "a set limit wins over every client's own",
        "a_quick_path_does_what_the_general_one_does",
        ("quick.usual.usual_state", "or found > most", ""),
    ),
    mutant(
        "the quick path grants one too many",
        "never more permits than the limit",
        "a_quick_path_does_what_the_general_one_does",
        ("lua.quick.acquire", "count <= declared", "count <= declared + 1"),
    ),
    mutant(
        "the quick path overtakes the queue",
        "permits are granted strictly in ticket order",
        "a_quick_path_does_what_the_general_one_does",
        ("lua.quick.acquire", "and (uses or waiting == 0)", ""),
    ),
    mutant(
        "the quick path hands over what does not fit",
        "never more permits than the limit",
        "a_quick_path_does_what_the_general_one_does",
        ("lua.quick.release", "if not fits or permits ~= '1'", "if permits ~= '1'"),
    ),
    # -- what the judge of the simulation has to see by itself
    mutant(
        "judge: tokens are the time",
        "fencing tokens grow with every grant, and are never used again",
        SIMULATION,
        ("holders.next_token", "math.max(state.counter + 1, now_us)", "now_us"),
    ),
    mutant(
        "judge: a release serves nobody",
        "a free permit and a live waiter find each other soon",
        SIMULATION,
        ("lua.release", "serve(own_requests(own))", ""),
        ("lua.quick.release.hand_over", "", SERVES_NOBODY),
    ),
    mutant(
        "judge: newcomers overtake the queue",
        "permits are granted strictly in ticket order",
        SIMULATION,
        ("order.held_up", "state.blocked_until or", ""),
    ),
)
