"""Mutants of the back-off."""

from .mutant import mutant

GRANTS = "grants_begin_when_a_back_off_ends_and_ramp_up_to_the_limit"
ONCE = "one_overload_of_many_permits_counts_once"

OF_BACK_OFF = (
    mutant(
        "the pause of a back-off is not kept",
        "no process gets a permit before a back-off ends",
        GRANTS,
        ("ramp.ramp_of", "return 0, ends", "return math.huge"),
    ),
    mutant(
        "the quick path knows no back-off",
        "no process gets a permit before a back-off ends",
        "a_request_for_one_permit_waits_too",
        ("quick.usual", "and not back_off and not key_back_offs", "and not key_back_offs"),
    ),
    mutant(
        "there is no ramp",
        "after a back-off at most a few requests start at once",
        GRANTS,
        ("ramp.ramp_of", "steps >= 20", "steps >= 0"),
    ),
    mutant(
        "each overload is a new one",
        "one overload counts once",
        ONCE,
        ("lua.back_off.begun_or_longer", "not runs or token > tonumber(began)", "true"),
    ),
    mutant(
        "a shorter back-off makes a longer one short",
        "of several back-offs the latest end counts",
        "the_latest_end_counts",
        (
            "lua.back_off.begun_or_longer",
            "math.max(tonumber(ends) or 0, now + pause)",
            "now + pause",
        ),
    ),
    mutant(
        "a back-off may run twice",
        "a late duplicate begins no back-off",
        "a_late_duplicate_begins_no_back_off",
        ("lua.back_off", "if not already_ran(number, 'changes') then", "if true then"),
    ),
    mutant(
        "a change that is sent again has another number",
        "a back-off that was ended is not begun anew",
        "a_back_off_whose_reply_was_lost_does_not_begin_anew_after_its_end",
        ("ChangeCall.write_again", "not self.was_sent", "self"),
    ),
    mutant(
        "a release is sent before the back-off of its block",
        "no waiter is served by the release of a block that backs off",
        "a_waiter_of_the_process_is_not_served_before_the_back_off_of_a_block",
        ("_next_commands", "backs_off(state)", "False"),
    ),
    mutant(
        "a back-off is counted from when it is sent",
        "a back-off that is sent again is shorter",
        "a_back_off_that_did_not_arrive_is_sent_again_and_is_shorter",
        (
            "BackOffCall.written",
            "max(1, left) if self.pause_ms else 0",
            "self.pause_ms",
        ),
    ),
    mutant(
        "what protects a back-off is not kept",
        "a back-off is lost with its keys, and no earlier",
        "a_back_off_is_lost_with_its_keys_and_no_earlier",
        ("lua.back_off", "keep(meta, over - now + SLACK)", ""),
    ),
    mutant(
        "a key is not looked at when its ramp changes",
        "a back-off of a key ends at its time",
        "a_back_off_of_a_key_ends_at_its_time_although_others_are_busy",
        ("keyed.follow_ramps", "if not state.key_back_offs then return end", "do return end"),
    ),
)
