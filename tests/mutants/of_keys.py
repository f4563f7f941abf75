"""Mutants of keys, shares and slots."""

from .mutant import mutant

ONE_TOO_MANY = "the_limits_of_keys_hold_on_the_quick_path"
TURNS = "a_turn_goes_by_what_was_granted_before"
KEYS = "a_quick_path_does_what_the_general_one_does[fair+keys-server]"
QUICK_ACQUIRE = "lua.keyed.quick.acquire"
QUICK_RELEASE = "lua.keyed.quick.release"

OF_KEYS = (
    mutant(
        "a key is ready beyond its limit",
        "never more of a key's permits than its limit",
        "a_full_key_holds_up_no_other_key[redis]",
        ("keyed.prelude.look_at", "if not fits and dropped < MAX_DROPPED then", "if false then"),
        (
            "keyed.prelude.serve",
            "use_of(key) + permits > keyed.room_of(key, (parse_tail(request)))",
            "false",
        ),
    ),
    mutant(
        "the set limit of a key is ignored",
        "a limit that is set overrides what clients declare",
        "the_limit_of_a_key_can_be_set[redis]",
        ("keyed.prelude.limit_of", "tonumber(keyed.limits[key]) or declared", "declared"),
    ),
    mutant(
        "the use of a key counts holders",
        "a holder of several permits has several in use",
        "a_heavy_permit_counts_for_its_key_as_often[redis]",
        ("keyed.prelude.use_of", "math.floor(2 ^ power) *", ""),
    ),
    mutant(
        "a key is not looked at after a release",
        "whatever ends a permit, the next request of its key is served",
        "a_permit_that_is_revoked_or_expires_frees_its_key[redis]",
        ("keyed.removed", "look_at_all(changed)", ""),
    ),
    mutant(
        "a newcomer passes a heavy head of its key",
        "within a key nobody passes, however light",
        "no_request_passes_a_heavier_one_that_waits_for_the_same_limit[redis-of its key]",
        (
            "keyed.prelude.held_up",
            "waiting > 0 and head_of(key) and not first_with('k:' .. key .. '!')",
            "false",
        ),
    ),
    mutant(
        "a key that is full holds up all keys",
        "a request that only its own key holds up is in nobody else's way",
        "a_full_key_holds_up_no_other_key[redis]",
        (
            "keyed.prelude.serve",
            "if not key then break end",
            "if not key then blocked = true break end",
        ),
    ),
    mutant(
        "the queue of a key is longer than it may be",
        "max_waiters_per_key bounds the queue of one key",
        "the_queue_of_a_key_can_be_bounded[redis]",
        ("keyed.prelude.queue_is_full", ">= most_of_key", "> most_of_key"),
    ),
    mutant(
        "share goes by turns alone",
        "with `share` the key with the fewest in use is served first",
        "share_goes_by_what_is_held_before_whose_turn_it_is[redis]",
        ("keyed.prelude.look_at", "use_of(key) / weight, (", "0, ("),
    ),
    mutant(
        "share without virtual time",
        "keys with the same use take turns by their weights",
        "keys_take_turns_by_their_weights[redis-weights0-10]",
        ("keyed.prelude.keyed.advance", "start + permits / weight", "0"),
    ),
    mutant(
        "a late patience",
        "a request that has waited for long goes by its age",
        "patience_is_counted_by_the_server[redis]",
        ("keyed.prelude.look_at", "ticket + 1000 * patience", "ticket + 1e6 * patience"),
    ),
    mutant(
        "an adopted permit has no key",
        "a permit that is handed over counts for its key",
        "an_adopted_permit_keeps_its_key[redis]",
        ("keyed.tail_of", "NO_KEY .. keyed.key_of(id)", "NO_KEY"),
    ),
    mutant(
        "lost keys of holders count as none",
        "the limit of a key is kept although Redis evicted whose permits are in use",
        "the_limit_of_a_key_is_kept_although_its_index_is_lost[options0]",
        ("keyed.used", "known < holder_count and ALL_TAKEN or in_use", "in_use"),
    ),
    mutant(
        "orphans of evicted keyed holders stay",
        "what a key has in use is what is held, also where Redis evicted the holders",
        "what_a_key_has_in_use_goes_with_an_evicted_holder",
        ("keyed.used", "if known > holder_count then", "if false then"),
    ),
    mutant(
        "a lost index of the queue is not noticed",
        "waiters are served although Redis evicted the queues of the keys",
        "waiters_are_served_although_a_key_of_redis_is_lost[keys-False]",
        ("keyed.used", "drop_lost_queue()", ""),
    ),
    mutant(
        "a key is written as it is",
        "any text is a key",
        "a_key_may_be_any_text[redis-a:b]",
        ("_protocol.operations", "quote(key, safe='')", "key"),
    ),
    # -- the quick paths of keys
    mutant(
        "the quick path overlooks the limit of a key",
        "never more of a key's permits than its limit",
        ONE_TOO_MANY,
        (QUICK_ACQUIRE, "if uses[key] > (tonumber(declared) or math.huge) then", "if false then"),
    ),
    mutant(
        "the quick path overlooks the limit in all",
        "never more permits than the limit",
        KEYS,
        (QUICK_ACQUIRE, "used + #ARGV - 10 > tonumber(ARGV[6]) or", ""),
    ),
    mutant(
        "the quick path overlooks who waits for a key",
        "permits are granted strictly in ticket order",
        "the_line_of_a_key_is_kept_beside_quick_paths_of_others",
        (
            QUICK_ACQUIRE,
            """if waiting > 0
              and call('ZLEXCOUNT', keys, '[l:' .. key .. '!', '(l:' .. key .. '"') > 0 then""",
            "if false then",
        ),
    ),
    mutant(
        "the quick path overlooks a key that is ready",
        "permits are granted strictly in ticket order",
        "the_order_of_keys_holds_on_the_quick_path",
        (QUICK_ACQUIRE, "waiting > 0 and not queue_is_settled(used) or", ""),
        (
            QUICK_ACQUIRE,
            "or call('ZCARD', keys) ~= used + waiting + call('ZLEXCOUNT', keys, '[u:', '(w')",
            "",
        ),
    ),
    mutant(
        "the quick path overlooks limits that are set",
        "a limit that is set overrides what clients declare",
        ONE_TOO_MANY,
        (
            QUICK_ACQUIRE,
            "call('EXISTS', extra, limit, key_limits)",
            "call('EXISTS', extra)",
        ),
    ),
    mutant(
        "the quick path overlooks that keys of holders were lost",
        "the limit of a key is kept although Redis evicted whose permits are in use",
        ONE_TOO_MANY,
        (QUICK_ACQUIRE, "call('ZLEXCOUNT', keys, '[i:', '(i;') ~= used", "false"),
        (
            QUICK_ACQUIRE,
            "call('ZCARD', keys) ~= used + waiting + call('ZLEXCOUNT', keys, '[u:', '(w')",
            "false",
        ),
    ),
    mutant(
        "the quick path overlooks shares",
        "keys with the same use take turns by their weights",
        TURNS,
        (QUICK_ACQUIRE, "if key ~= '' and shares then", "if false then"),
    ),
    mutant(
        "the quick path leaves what a key had in use",
        "what a key has in use is what is held",
        "status_shows_the_use_the_limit_and_the_line_of_each_key[redis]",
        (QUICK_RELEASE, "texts[#texts + 1] = uses[key] .. ids[i]", ""),
    ),
    mutant(
        "the quick path serves nobody who waits for a key",
        "a free permit and a live waiter find each other soon",
        "the_line_of_a_key_is_kept_beside_quick_paths_of_others",
        (
            QUICK_RELEASE,
            "call('ZLEXCOUNT', keys, '[l:' .. key .. '!', '(l:' .. key .. '\"') > 0",
            "false",
        ),
    ),
    mutant(
        "the quick path leaves the virtual time of a key",
        "a key that neither holds nor waits has no turn from before",
        TURNS,
        (QUICK_RELEASE, "if shares and", "if false and"),
    ),
    # -- slots
    mutant(
        "slots in use are free",
        "no two permits have one slot",
        "each_permit_has_a_slot_of_its_own[zset-redis]",
        ("slots.prelude.load_taken", "taken[tonumber(slot)] = ids[i]", ""),
    ),
    mutant(
        "lost slots count as free",
        "no two permits have one slot, although Redis evicted which ones are in use",
        "nothing_is_granted_while_the_slots_in_use_are_not_known[zset]",
        ("slotted.used", "lost and ALL_TAKEN or taken_count", "taken_count"),
    ),
    mutant(
        "an adopted permit gets another slot",
        "a slot goes on with adopt",
        "a_slot_goes_on_with_detach_and_adopt[zset-redis]",
        ("lua.adopt", "slotted.claim(new_id, its_slots)", "local none"),
    ),
    mutant(
        "freed slots below are not looked at again",
        "a slot that is free is given, also where it was freed in the same call",
        "the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next",
        ("slotted.undelivered", "lowest = 0", ""),
    ),
    mutant(
        "a shorter list of slots replaces the longer",
        "clients of a name have lists that begin alike, and the longest is kept",
        "a_shorter_list_does_not_replace_the_longer",
        ("slotted.compare", "if #theirs > #own then", "if false then"),
    ),
    mutant(
        "any list of slots is taken",
        "clients of a name have lists that begin alike",
        "another_list_is_refused_while_the_name_is_in_use[zset-redis]",
        ("slotted.compare", "string.sub(longer, 1, #shorter) ~= shorter", "false"),
    ),
    mutant(
        "slots of a grant that nobody received stay taken",
        "a slot that nobody received is free",
        "the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next",
        ("queue.deliver_grants", "if slotted then slotted.undelivered(recipient.grants) end", ""),
    ),
    mutant(
        "slots of evicted holders stay noted",
        "what is noted of slots goes with the holders",
        "slots_of_evicted_holders_are_free[zset]",
        ("slots.prelude.load_taken", "if #orphans > 0 then", "if false then"),
    ),
)
