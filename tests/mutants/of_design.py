"""Mutants of the design: scripts and specification are wrong in the same way, and so agree."""

from .mutant import SPECIFICATION, mutant
from .target import SIMULATION

_SPEC = SPECIFICATION.removeprefix("redsem_async/")
_BASE, _STATE, _LEASES = f"{_SPEC}base.py", f"{_SPEC}state.py", f"{_SPEC}leases.py"
_QUEUE, _SERVING = f"{_SPEC}queue.py", f"{_SPEC}serving.py"

OF_DESIGN = (
    mutant(
        "design: no id check",
        "a delayed duplicate of an acquire brings nothing back",
        SIMULATION,
        ("lua/acquire.lua", "local old_mark = mark\n", "local old_mark = 0\n"),
        (
            "lua/quick/acquire.lua",
            "  local highest = mark\n",
            "  local highest = 0\n",
        ),
        (
            _QUEUE,
            (
                "        mark = state.look_up(context.hub).mark\n"
                "        if mark < call.after:\n"
                "            raise Reordered\n"
            ),
            (
                "        if state.look_up(context.hub).mark < call.after:\n"
                "            raise Reordered\n"
                "        mark = 0\n"
            ),
        ),
    ),
    mutant(
        "design: an abandon does not raise the mark",
        "an acquire that is run after its abandon is not granted",
        "promises/test_duplicates.py::test_a_delayed_duplicate_brings_nothing_back[fair-abandoned]",
        ("lua/abandon.lua", "raise_mark(highest)\n", ""),
        (
            _BASE,
            "state.raise_mark(context, max(request.number for request in call.requests))\n",
            "pass\n",
        ),
    ),
    mutant(
        "design: tokens are the time",
        "fencing tokens grow with every grant, and are never used again",
        SIMULATION,
        ("lua/prelude.lua", "  last = math.max(last + 1, stamp_us)\n", "  last = stamp_us\n"),
        (
            "lua/quick/acquire.lua",
            "  local token = math.max(last + 1, stamp_us)\n",
            "  local token = stamp_us\n",
        ),
        (
            _STATE,
            "        self.last = max(self.last + 1, self.stamp(now_us))\n",
            "        self.last = self.stamp(now_us)\n",
        ),
    ),
    mutant(
        "design: a release serves nobody",
        "a free permit and a live waiter find each other soon",
        SIMULATION,
        ("lua/release.lua", "  serve()\n", ""),
        (
            _BASE,
            "            self._serve(context, call.own)\n",
            "",
        ),
    ),
    mutant(
        "design: no next moment",
        "when a holder expires the next is served, though nobody does anything",
        SIMULATION,
        (
            "lua/prelude.lua",
            "  return first[2] and math.max(0, first[2] - now) or -1\n",
            "  return -1\n",
        ),
        (
            _STATE,
            "        return None if first is None else max(0, first - context.now)\n",
            "        return None\n",
        ),
    ),
    mutant(
        "design: the head's end is no moment",
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
        (
            _SERVING,
            "                    context.head_until = state.hub_record(blocked.hub).alive_until\n",
            "",
        ),
    ),
    mutant(
        "design: newcomers overtake the line",
        "permits are granted strictly in ticket order",
        SIMULATION,
        ("lua/serve.lua", "if not open or grace > now or", "if grace > now or"),
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', extra, limit)",
        ),
        (
            _QUEUE,
            "        admits = not context.line_is_blocked and state.grace.until <= now\n",
            "        admits = state.grace.until <= now\n",
        ),
    ),
    mutant(
        "design: a heavy head is overtaken",
        "a heavy request at the head of the line does not starve",
        "promises/test_queue.py::test_fair_lets_nobody_pass_a_heavy_head",
        (
            "lua/serve.lua",
            "        found.blocked_until = state.alive_until\n        return found\n",
            "        found.blocked_until = state.alive_until\n",
        ),
        (
            _SERVING,
            "            elif used + permits > limit:\n                return plan, queued\n",
            "            elif used + permits > limit:\n                continue\n",
        ),
    ),
    mutant(
        "design: the line is served by its head's limit",
        "each client's own limit rules its requests",
        SIMULATION,
        (
            "lua/serve.lua",
            "      local effective_limit = limit_for(declared)\n      local fits",
            (
                "      hub_states.limit = hub_states.limit or declared\n"
                "      local effective_limit = set_limit or hub_states.limit\n      local fits"
            ),
        ),
        (
            _SERVING,
            "            limit = state.effective_limit(queued.request.limit)\n            if self.passes",
            (
                "            limit = state.effective_limit([*self.line, queued][0].request.limit)\n"
                "            if self.passes"
            ),
        ),
    ),
    mutant(
        "design: a grant that nobody heard counts",
        "a waiter whose process is gone is passed over",
        SIMULATION,
        (
            "lua/queue.lua",
            "table.concat(parts, ',')) ~= 0",
            "table.concat(parts, ',')) or true",
        ),
        (
            _SERVING,
            "not record.received(self._publish(hub, push)):",
            "self._publish(hub, push) < 0:",
        ),
    ),
    mutant(
        "design: a whole lease for whoever is handed a permit",
        "handing a permit to a stopped process costs less than a lease",
        "faults/test_processes.py::test_a_stopped_head_costs_a_short_lease_only",
        (
            "lua/quick/release.lua",
            "      lease = math.min(lease, math.max(2 * heartbeat_interval(lease), 1000))\n",
            "",
        ),
        (
            "lua/queue.lua",
            "    grant[3] = math.min(grant[3], math.max(2 * heartbeat_interval(grant[3]), 1000))\n",
            "",
        ),
        (
            "_core/lease.py",
            "    return min(lease, max(2 * heartbeat_interval(lease), 1.0))\n",
            "    return lease\n",
        ),
        (
            _SERVING,
            "                if not is_caller:\n                    lease =",
            "                if is_caller is None:\n                    lease =",
        ),
    ),
    mutant(
        "design: a refresh lowers the expiry",
        "a short lease does not cut a long one",
        SIMULATION,
        ("lua/refresh.lua", "math.max(expiry, now + asked)", "now + asked"),
        (
            _LEASES,
            "        holder.expiry_ms = max(holder.expiry_ms, context.now + asked)\n",
            "        holder.expiry_ms = context.now + asked\n",
        ),
    ),
    mutant(
        "design: adopt does not exchange the id",
        "a job that is delivered twice does not run twice under one permit",
        "promises/test_release.py::test_the_second_adopter_gets_permit_lost",
        ("lua/adopt.lua", "  remove_holders({ old_id })\n", ""),
        (
            _LEASES,
            "    state.remove(context, [old])\n",
            "",
        ),
    ),
    mutant(
        "design: weights are not counted",
        "never more permits than the limit",
        SIMULATION,
        (
            "lua/prelude.lua",
            "    used = holder_count + extra_permits()\n",
            "    used = holder_count\n",
        ),
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', limit, line)",
        ),
        (
            _STATE,
            "sum(h.permits for h in self.holders.values() if h.expiry_ms > now)",
            "sum(h.expiry_ms > now for h in self.holders.values())",
        ),
    ),
    mutant(
        "design: a release is always held",
        "release says whether the permit was held until then",
        SIMULATION,
        (
            "lua/release.lua",
            "held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0",
            "held[i] = 1",
        ),
        (
            _BASE,
            "            held.append(state.current_grant(identity, context.now) is not None)\n",
            "            held.append(True)\n",
        ),
    ),
    mutant(
        "design: a set limit is overlooked",
        "a set limit wins over every client's own",
        SIMULATION,
        (
            "lua/prelude.lua",
            "  set_limit = limit_in(call('GET', limit))\n",
            "  call('GET', limit)\n",
        ),
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', extra, limit, queue)",
            "call('EXISTS', extra, queue)",
        ),
        ("lua/set_limit.lua", "    set_limit = limit_in(new_limit)\n", "\n"),
        (
            _BASE,
            "state.set_limit, state.paused_limit = limit, None\n",
            "state.set_limit, state.paused_limit = None, None\n",
        ),
    ),
    mutant(
        "design: a grace period admits newcomers",
        "holders come back before anybody new is admitted",
        "promises/test_recovery.py::test_a_new_name_waits_for_a_lease_once",
        ("lua/prelude.lua", "  grace = now + lease\n", "  grace = now\n"),
        (
            _STATE,
            "        self.grace.lost_at, self.grace.until = context.now, context.now + lease_ms\n",
            "        self.grace.lost_at, self.grace.until = context.now, context.now\n",
        ),
    ),
    mutant(
        "design: calls act each time they arrive",
        "calls that change something act once, however late they arrive",
        "promises/test_duplicates.py::test_a_limit_that_arrives_late_is_not_set_again",
        (
            "lua/prelude.lua",
            "  return number <= (tonumber(call('HGET', meta, hub .. ':calls')) or 0)\n",
            "  return false\n",
        ),
        (
            _STATE,
            "        return number <= self.look_up(context.hub).last_call\n",
            "        return False\n",
        ),
    ),
    mutant(
        "design: a clear forgets which numbers were used",
        "what was released before a clear does not come back after it",
        "promises/test_duplicates.py::test_a_clear_leaves_acquires_that_are_late_void",
        ("lua/clear.lua", "call('HDEL', meta, owner .. ':client',", "call('HDEL', meta, owner,"),
        (_BASE, "record.alive_until, record.mark, last_call", "record.alive_until, last_call"),
    ),
    mutant(
        "design: a raised limit brings nobody back",
        "what was set aside is served once the limit allows it",
        "promises/test_long_queue.py::test_a_light_request_is_not_hidden_behind_heavy_ones",
        (
            "lua/set_limit.lua",
            "  if waiting > 0 then return_parked() end",
            "",
        ),
        (
            _BASE,
            "            if self.waiting:\n                self._return_parked()\n",
            "",
        ),
    ),
    mutant(
        "design: a process that is heard from gets new tickets",
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
        (
            _SERVING,
            "            for queued in unreachable:\n                self._park(context, queued)\n",
            "            for queued in unreachable:\n                self.line.remove(queued)\n",
        ),
    ),
    mutant(
        "design: nobody counted is nobody there",
        "a hub whose messages are not counted is known to be gone by its silence alone",
        "scripts/test_spec.py::test_what_nobody_counts_may_have_been_received",
        (f"{_SPEC}records.py", "return receivers > 0 or self.uncounted", "return receivers > 0"),
    ),
)
