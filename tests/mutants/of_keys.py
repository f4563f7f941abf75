"""Mutants of keys, shares and slots."""

from .mutant import mutant

QUICK = "a_quick_path_does_what_the_general_one_does"
WAITS = "waiting > 0 and call('ZLEXCOUNT', lines, '[' .. key .. '!', '(' .. key .. '\"') > 0"

OF_KEYS = (
    mutant(
        "a key is ready beyond its limit",
        "never more of a key's permits than its limit",
        "a_full_key_holds_up_no_other_key[redis]",
        (
            "keyed.look_at",
            "if not fits_key(key, request.permits, request.key_limit) then return end",
            "",
        ),
    ),
    mutant(
        "the set limit of a key is ignored",
        "a limit that is set overrides what clients declare",
        "the_limit_of_a_key_can_be_set[redis]",
        ("keyed.limit_of", "return set_limits[key] or declared", "return declared"),
    ),
    mutant(
        "the use of a key counts holders",
        "a holder of several permits has several in use",
        "a_heavy_permit_counts_for_its_key_as_often[redis]",
        ("holders.occupy", "sign * grant.permits) end", "sign) end"),
    ),
    mutant(
        "a key is not looked at after a release",
        "whatever ends a permit, the next request of its key is served",
        "a_permit_that_is_revoked_or_expires_frees_its_key[redis]",
        ("keyed.occupy", "if permits < 0 then look_at(key) end", ""),
    ),
    mutant(
        "a newcomer passes a heavy head of its key",
        "within a key nobody passes, however light",
        "no_request_passes_a_heavier_one_that_waits_for_the_same_limit[redis-of its key]",
        (
            "keyed_order.held_up",
            "state.waiting > 0 and head_of(key) and not is_ready(key)",
            "false",
        ),
    ),
    mutant(
        "a key that is full holds up all keys",
        "a request that only its own key holds up is in nobody else's way",
        "a_full_key_holds_up_no_other_key[redis]",
        ("keyed_order.held_up", "state.blocked_until or", "state.waiting > 0 or"),
        ("lua.quick.acquire", "uses or waiting == 0", "waiting == 0"),
    ),
    mutant(
        "the queue of a key is longer than it may be",
        "max_waiters_per_key bounds the queue of one key",
        "the_queue_of_a_key_can_be_bounded[redis]",
        ("keyed_order.queue_is_full", ">= most_of_key", "> most_of_key"),
    ),
    mutant(
        "share goes by turns alone",
        "with `share` the key with the fewest in use is served first",
        "share_goes_by_what_is_held_before_whose_turn_it_is[redis]",
        ("keyed.look_at", "use_of(key) / request.weight", "0"),
    ),
    mutant(
        "share without virtual time",
        "keys with the same use take turns by their weights",
        "keys_take_turns_by_their_weights[redis-weights0-10]",
        ("keyed.advance", "virtual + request.permits / request.weight", "0"),
    ),
    mutant(
        "a late patience",
        "a request that has waited for long goes by its age",
        "patience_is_counted_by_the_server[redis]",
        ("keyed.look_at", "ticket + 1000 * patience", "ticket + 1e6 * patience"),
    ),
    mutant(
        "an adopted permit has no key",
        "a permit that is handed over counts for its key",
        "an_adopted_permit_keeps_its_key[redis]",
        ("lua.adopt", "grant.lease = grant.left", "grant.lease, grant.key = grant.left, ''"),
    ),
    mutant(
        "lost facts count as none",
        "limits are kept although Redis evicted what the holders hold",
        "the_limit_of_a_key_is_kept_although_the_facts_of_holders_are_lost[options0]",
        ("holders.purge", "lost and ALL_TAKEN or", ""),
    ),
    mutant(
        "who holds what is lost is not told",
        "a holder is told with its next refresh that what it holds is not known",
        "a_holder_whose_slots_are_lost_is_told_with_its_next_refresh[zset]",
        ("lua.refresh", "known and expiry and", "expiry and"),
    ),
    mutant(
        "facts of evicted holders stay",
        "what a key has in use is what is held, also where Redis evicted the holders",
        "what_a_key_has_in_use_goes_with_an_evicted_holder",
        ("holders.recount", "if state.holding == 0 then call('UNLINK', facts) end", ""),
    ),
    mutant(
        "lost uses of keys count as none",
        "the limit of a key is kept although Redis evicted what is in use",
        "lost_uses_of_keys_count_for_all_of_it",
        ("keyed.load_state", "if is_used ~= (state.holding > 0) and", "if false and"),
    ),
    mutant(
        "a lost line is not noticed",
        "waiters are served although Redis evicted the queues of the keys",
        "waiters_are_served_although_a_key_of_redis_is_lost[lines-False]",
        ("keyed.follow_ramps", "if keyed.queue_lost then drop_queue() end", ""),
    ),
    mutant(
        "a key is written as it is",
        "any text is a key",
        "a_key_may_be_any_text[redis-a:b]",
        ("_protocol.operations", "quote(key, safe='')", "key"),
    ),
    # -- the quick paths with keys
    mutant(
        "the quick path overlooks the limit of a key",
        "never more of a key's permits than its limit",
        QUICK,
        ("uses_with", "in_use[key] > (tonumber(declared) or math.huge)", "false"),
    ),
    mutant(
        "the quick path overlooks who waits for a key",
        "permits are granted strictly in ticket order",
        QUICK,
        ("uses_with", WAITS, "false"),
    ),
    mutant(
        "the quick path overlooks a key that is ready",
        "permits are granted strictly in ticket order",
        QUICK,
        ("quick.usual.usual_state", "or call('ZCARD', ready) ~= 1", ""),
    ),
    mutant(
        "the quick path overlooks that facts were lost",
        "the limit of a key is kept although Redis evicted what the holders hold",
        QUICK,
        ("quick.usual.usual_state", "used ~= call('HLEN', facts) or", ""),
    ),
    mutant(
        "the quick path overlooks shares",
        "keys with the same use take turns by their weights",
        QUICK,
        ("uses_with", "if key ~= '' and turns then", "if false then"),
    ),
    mutant(
        "the quick path leaves what a key had in use",
        "what a key has in use is what is held",
        "status_shows_the_use_the_limit_and_the_line_of_each_key[redis]",
        ("lua.quick.release", "pairs(in_use or {})", "pairs({})"),
    ),
    mutant(
        "the quick path serves nobody who waits for a key",
        "a free permit and a live waiter find each other soon",
        QUICK,
        ("uses_without", WAITS, "false"),
    ),
    mutant(
        "the quick path leaves the virtual time of a key",
        "a key that neither holds nor waits has no turn from before",
        QUICK,
        ("lua.quick.release", "if turns then", "if false then"),
    ),
    # -- slots
    mutant(
        "slots in use are free",
        "no two permits have one slot",
        "each_permit_has_a_slot_of_its_own[zset-redis]",
        ("slotted.give", "taken[tonumber(slot)] = true", ""),
    ),
    mutant(
        "an adopted permit gets another slot",
        "a slot goes on with adopt",
        "a_slot_goes_on_with_detach_and_adopt[zset-redis]",
        ("lua.adopt", "grant.lease = grant.left", "grant.lease, grant.slots = grant.left, nil"),
    ),
    mutant(
        "a shorter list of slots replaces the longer",
        "clients of a name have lists that begin alike, and the longest is kept",
        "a_shorter_list_does_not_replace_the_longer",
        ("slotted.compare", "#theirs > #own and theirs or own", "own"),
    ),
    mutant(
        "any list of slots is taken",
        "clients of a name have lists that begin alike",
        "another_list_is_refused_while_the_name_is_in_use[zset-redis]",
        ("slotted.compare", "string.sub(longer, 1, #shorter) == shorter", "true"),
    ),
    mutant(
        "slots of a grant that nobody received stay taken",
        "a slot that nobody received is free",
        "the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next",
        ("serve.deliver", "if slotted then slotted.take_back(grant) end", ""),
    ),
    mutant(
        "freed slots below are not looked at again",
        "a slot that is free is given, also where it was freed in the same call",
        "the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next",
        ("slotted.take_back", "lowest = 0", ""),
    ),
)
