"""Mutants of slots."""

from .mutant import mutant

_SLOTS = "lua/slots/prelude.lua"
_TEST = "promises/test_slots.py::test_"

OF_SLOTS = (
    mutant(
        "slots in use are free",
        "no two permits have one slot",
        f"{_TEST}each_permit_has_a_slot_of_its_own[zset-redis]",
        (
            _SLOTS,
            "        taken[tonumber(slot)] = ids[i]\n",
            "        taken[tonumber(slot)] = nil\n",
        ),
    ),
    mutant(
        "a slot is given by the number of holders",
        "no two permits have one slot, although one before it came to its end",
        f"{_TEST}a_waiter_gets_the_slot_that_is_given_back[zset-redis]",
        (
            _SLOTS,
            "  taken, taken_count, lowest = {}, 0, 0\n",
            "  taken, taken_count, lowest = {}, 0, holder_count\n",
        ),
        (_SLOTS, "    if not taken[lowest] then\n", "    if true then\n"),
    ),
    mutant(
        "a slot of an evicted holder stays taken",
        "a slot comes back with the permit, however it ended",
        f"{_TEST}slots_of_evicted_holders_are_free[zset]",
        (
            _SLOTS,
            "    if expiry then\n      count = count + 1",
            "    if true then\n      count = count + 1",
        ),
    ),
    mutant(
        "lost slots count as free",
        "no two permits have one slot, although Redis evicted which ones are in use",
        f"{_TEST}nothing_is_granted_while_the_slots_in_use_are_not_known[zset]",
        (
            _SLOTS,
            "lost and ALL_TAKEN or taken_count",
            "taken_count",
        ),
    ),
    mutant(
        "an adopted permit gets another slot",
        "a slot goes on with adopt",
        f"{_TEST}a_slot_goes_on_with_detach_and_adopt[zset-redis]",
        ("lua/adopt.lua", "  if slotted then slotted.claim(new_id, its_slots, old_id) end\n", ""),
    ),
    mutant(
        "a restored permit gets another slot",
        "a slot comes back with its permit after a loss",
        f"{_TEST}slots_come_back_with_their_permits_after_a_loss[zset]",
        (
            "lua/restore.lua",
            "  if restorable and slotted then restorable = slotted.claim(id, slots_held) end\n",
            "",
        ),
    ),
    mutant(
        "any list of slots is taken",
        "clients of a name have lists that begin alike",
        f"{_TEST}another_list_is_refused_while_the_name_is_in_use[zset-redis]",
        (_SLOTS, "if string.sub(longer, 1, #shorter) ~= shorter then", "if false then"),
    ),
    mutant(
        "a slot beyond the own list is adopted",
        "a request gets slots of its own list",
        f"{_TEST}a_slot_beyond_the_own_list_cannot_be_adopted[zset-redis]",
        (_SLOTS, "if tonumber(slot) >= tonumber(length) then", "if false then"),
    ),
    mutant(
        "a set limit gives more than there are slots",
        "a set limit says how many slots are in use, and never which",
        f"{_TEST}a_set_limit_says_how_many_and_never_which[zset-redis]",
        (
            "lua/prelude.lua",
            "return slotted and math.min(set_limit, declared) or set_limit",
            "return set_limit",
        ),
    ),
    mutant(
        "a push message has no slots",
        "a waiter knows which slot it got",
        f"{_TEST}a_waiter_gets_the_slot_that_is_given_back[fair-redis]",
        (
            "lua/queue.lua",
            "    if slotted then parts[i] = parts[i] .. ':' .. slotted.assign(grant[1], grant[4]) end\n",
            "",
        ),
    ),
    mutant(
        "the slots of a grant that nobody received stay taken",
        "a slot that nobody received is free",
        "faults/test_slots.py::test_the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next",
        (
            "lua/queue.lua",
            "      if slotted then slotted.undelivered(recipient.grants) end\n",
            "",
        ),
    ),
    mutant(
        "clear leaves the list of slots",
        "clear deletes the semaphore",
        f"{_TEST}its_key_has_an_expiry_and_goes_with_clear[zset]",
        ("lua/clear.lua", "if slotted then slotted.clear() end\n", ""),
    ),
    mutant(
        "slots of what has expired and is not removed yet are free",
        "nobody gets a slot that is not in the list",
        "promises/test_slots.py::test_slots_of_many_that_expired_at_once_are_given_again[redis-2]",
        (
            _SLOTS,
            "lost and ALL_TAKEN or taken_count",
            "lost and ALL_TAKEN or 0",
        ),
    ),
    mutant(
        "a permit is adopted without its slots",
        "a permit whose slots are not known is not adopted",
        "promises/test_slots.py::test_a_permit_whose_slot_is_not_known_is_not_adopted[zset]",
        ("lua/adopt.lua", " or slotted and grant[3] == ''", ""),
    ),
    mutant(
        "a restore brings no list of slots",
        "after a loss nobody gets slots of another list",
        f"{_TEST}the_list_of_slots_comes_back_with_a_permit[zset]",
        ("lua/restore.lua", "if slotted then slotted.note_list(lease) end\n", ""),
    ),
    mutant(
        "slots of evicted holders stay noted",
        "what is noted of slots goes with the holders",
        "promises/test_slots.py::test_slots_of_evicted_holders_are_free[zset]",
        (_SLOTS, "  if #orphans > 0 then call('HDEL', slots, unpack(orphans)) end\n", ""),
    ),
)
