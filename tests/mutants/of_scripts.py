"""Mutants of the scripts: the specification beside them is right."""

from .mutant import mutant

OF_SCRIPTS = (
    mutant(
        "no id check (fair)",
        "a delayed duplicate of an acquire brings nothing back",
        ("lua/fair/acquire.lua", "local fresh = mark\n", "local fresh = 0\n"),
        (
            "lua/quick/acquire.lua",
            "math.max(last + 1, stamp_us), mark",
            "math.max(last + 1, stamp_us), 0",
        ),
    ),
    mutant(
        "no id check (zset)",
        "a delayed duplicate of an acquire brings nothing back",
        ("lua/zset/acquire.lua", "local fresh = mark\n", "local fresh = 0\n"),
        (
            "lua/quick/acquire.lua",
            "math.max(last + 1, stamp_us), mark",
            "math.max(last + 1, stamp_us), 0",
        ),
    ),
    mutant(
        "an abandon does not raise the mark",
        "an acquire that is run after its abandon is not granted",
        ("lua/fair/abandon.lua", "raise_mark(highest)\n", ""),
        ("lua/zset/abandon.lua", "raise_mark(highest)\n", ""),
    ),
    mutant(
        "order of batches ignored",
        "a batch is not run before the one that was sent before it",
        (
            "lua/fair/acquire.lua",
            "if mark < after then return redis.error_reply('REORDERED') end\n",
            "",
        ),
    ),
    mutant(
        "expired holders stay",
        "a crashed holder is in the way for a lease at most",
        ("lua/prelude.lua", "    freed = freed + drop(expired)\n", ""),
    ),
    mutant(
        "the quick path leaves the expired",
        "nothing is left of a permit but while somebody holds it",
        ("lua/quick/acquire.lua", " or used > 0 and call('ZCOUNT', holders, '-inf', now) > 0", ""),
    ),
    mutant(
        "tokens are the time",
        "fencing tokens grow with every grant, and are never used again",
        ("lua/prelude.lua", "  last = math.max(last + 1, stamp_us)\n", "  last = stamp_us\n"),
    ),
    mutant(
        "tokens are the time, on the quick path",
        "fencing tokens grow with every grant, and are never used again",
        (
            "lua/quick/acquire.lua",
            "local token, highest = math.max(last + 1, stamp_us),",
            "local token, highest = stamp_us,",
        ),
    ),
    mutant(
        "counter not saved",
        "fencing tokens grow with every grant, and are never used again",
        (
            "lua/prelude.lua",
            "  if heavy > 0 then keep(weights, longest) end\n  save_counter(longest)\n",
            "  if heavy > 0 then keep(weights, longest) end\n",
        ),
    ),
    mutant(
        "a release serves nobody",
        "a free permit and a live waiter find each other soon",
        ("lua/release.lua", "  serve(kept > 0)\n", ""),
    ),
    mutant(
        "an abandon serves nobody",
        "a waiter who leaves does not take the wake-up along",
        ("lua/fair/abandon.lua", "  purge()\n  serve()\n", "  purge()\n"),
        ("lua/zset/abandon.lua", "  purge()\n  serve()\n", "  purge()\n"),
    ),
    mutant(
        "a hint is not passed on",
        "a hint that nobody wants reaches another process",
        ("lua/zset/acquire.lua", "freed + hinted - taken", "freed - taken"),
        ("lua/zset/heartbeat.lua", "freed = freed + hinted\n", ""),
    ),
    mutant(
        "a raised limit serves nobody",
        "a raised limit serves waiters at once",
        ("lua/set_limit.lua", "serve()\n", ""),
    ),
    mutant(
        "a release of the caller's own number",
        "release touches the ids that it names, and no others",
        (
            "lua/release.lua",
            "ids[#ids + 1] = owner .. '.' .. ARGV[i]",
            "ids[#ids + 1] = hub .. '.' .. ARGV[i]",
        ),
    ),
    mutant(
        "a release is always held",
        "release says whether the permit was held until then",
        (
            "lua/release.lua",
            "held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0",
            "held[i] = 1",
        ),
    ),
    mutant(
        "a heavy permit released twice in a call",
        "capacity is not inflated by a second release",
        (
            "lua/prelude.lua",
            "local beyond = counted[ids[i]] and 0 or (tonumber(permits) or 1) - 1",
            "local beyond = (tonumber(permits) or 1) - 1",
        ),
    ),
    mutant(
        "a refresh brings back",
        "a refresh never brings back what is gone",
        (
            "lua/refresh.lua",
            "  expiry = tonumber(expiry)\n  held[i] = expiry and expiry > now and 1 or 0\n",
            "  expiry = tonumber(expiry) or 0\n  held[i] = 1\n",
        ),
    ),
    mutant(
        "a refresh of the expired",
        "a refresh never brings back what is gone",
        (
            "lua/refresh.lua",
            "held[i] = expiry and expiry > now and 1 or 0",
            "held[i] = expiry and 1 or 0",
        ),
    ),
    mutant(
        "a refresh lowers the expiry",
        "a short lease does not cut a long one",
        ("lua/refresh.lua", "math.max(expiry, now + lease)", "now + lease"),
    ),
    mutant(
        "adopt does not exchange the id",
        "a job that is delivered twice does not run twice under one permit",
        ("lua/adopt.lua", "    drop({ old_id })\n", ""),
    ),
    mutant(
        "weights are not counted",
        "never more permits than the limit",
        ("lua/prelude.lua", "    used = holding + heavy\n", "    used = holding\n"),
    ),
    mutant(
        "the quick path overlooks weights",
        "never more permits than the limit",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', weights, limit, line)",
            "call('EXISTS', limit, line)",
        ),
    ),
    mutant(
        "the quick path grants one too many",
        "never more permits than the limit",
        ("lua/quick/acquire.lua", "if used + count > most or", "if used + count > most + 1 or"),
    ),
    mutant(
        "a heavy head is overtaken",
        "a heavy request at the head of the line does not starve",
        (
            "lua/fair/prelude.lua",
            "        blocked = true\n        head_until = state.alive_until\n        break\n",
            "        passed = passed + 1\n",
        ),
    ),
    mutant(
        "newcomers overtake the line",
        "permits are granted strictly in ticket order",
        ("lua/fair/acquire.lua", "elseif open and grace <= now and", "elseif grace <= now and"),
    ),
    mutant(
        "the quick path overtakes the line",
        "permits are granted strictly in ticket order",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', weights, limit, line)",
            "call('EXISTS', weights, limit)",
        ),
    ),
    mutant(
        "the line is served by its head's limit",
        "each client's own limit rules its requests",
        (
            "lua/fair/prelude.lua",
            "      local most = cap or declared\n",
            "      known.most = known.most or declared\n      local most = cap or known.most\n",
        ),
    ),
    mutant(
        "a set limit of 0 is none",
        "a limit of 0 pauses",
        (
            "lua/prelude.lua",
            "  cap = tonumber(call('GET', limit))\n",
            "  cap = tonumber(call('GET', limit))\n  if cap == 0 then cap = nil end\n",
        ),
    ),
    mutant(
        "the quick path overlooks a set limit",
        "a set limit wins over every client's own",
        (
            "lua/quick/acquire.lua",
            "call('EXISTS', weights, limit, line)",
            "call('EXISTS', weights, line)",
        ),
    ),
    mutant(
        "the line overlooks a set limit",
        "a set limit wins over every client's own",
        (
            "lua/fair/prelude.lua",
            "      local most = cap or declared\n",
            "      local most = declared\n",
        ),
    ),
    mutant(
        "the bound of the line is overlooked",
        "max_waiters bounds the queue",
        (
            "lua/fair/acquire.lua",
            "elseif max_waiters >= 0 and waiting >= max_waiters then",
            "elseif max_waiters >= 0 and waiting > max_waiters then",
        ),
    ),
    mutant(
        "a grant that nobody heard counts (fair)",
        "a waiter whose process is gone is passed over",
        (
            "lua/fair/prelude.lua",
            "table.concat(parts, ',')) ~= 0",
            "table.concat(parts, ',')) or true",
        ),
    ),
    mutant(
        "a hint that nobody heard counts (zset)",
        "a hint to a process that is gone reaches another",
        (
            "lua/zset/prelude.lua",
            "takes = tell(owner, 'hint', exact(share)) ~= 0",
            "takes = tell(owner, 'hint', exact(share)) or true",
        ),
    ),
    mutant(
        "the dead stay in line (fair)",
        "a waiter whose process is silent is passed over",
        (
            "lua/fair/prelude.lua",
            "      if state.alive_until <= now then\n",
            "      if state.alive_until < 0 then\n",
        ),
    ),
    mutant(
        "the dead stay in line (zset)",
        "a hint goes to a process that is alive",
        (
            "lua/zset/prelude.lua",
            "    local alive = (tonumber(flags[3]) or 0) > now\n",
            "    local alive = true\n",
        ),
    ),
    mutant(
        "a whole lease for whoever is handed a permit",
        "handing a permit to a stopped process costs less than a lease",
        (
            "lua/fair/prelude.lua",
            "    grant[3] = math.min(grant[3], math.max(2 * heartbeat_of(grant[3]), 1000))\n",
            "",
        ),
    ),
    mutant(
        "no next moment (fair)",
        "when a holder expires the next is served, though nobody does anything",
        (
            "lua/fair/prelude.lua",
            "return { tag, next_moment(), waiting, mine }",
            "return { tag, -1, waiting, mine }",
        ),
    ),
    mutant(
        "no next moment (zset)",
        "when a holder expires the next is served, though nobody does anything",
        (
            "lua/zset/prelude.lua",
            "return { tag, moment, waiting, mine }",
            "return { tag, -1, waiting, mine }",
        ),
    ),
    mutant(
        "the head's end is no moment",
        "when the process of the head is given up, the next is served",
        ("lua/fair/prelude.lua", "        head_until = state.alive_until\n", ""),
    ),
    mutant(
        "a nearer expiry is not told of",
        "a permit that is detached for a short while is missed in time",
        ("lua/detach.lua", "if expires < held[2] and waiting > 0 then nudge() end\n", ""),
    ),
    mutant(
        "the holders have no expiry",
        "all keys are gone after idling",
        ("lua/prelude.lua", "  keep(holders, longest)\n", ""),
        ("lua/quick/acquire.lua", "    call('PEXPIRE', holders, 3 * lease)\n", ""),
    ),
    mutant(
        "the tokens have no expiry, on the quick path",
        "all keys are gone after idling",
        ("lua/quick/acquire.lua", "    call('PEXPIRE', tokens, 3 * lease)\n", ""),
    ),
    mutant(
        "expiries are brought nearer",
        "keys live as long as the longest lease",
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
        ("lua/prelude.lua", "  call('HDEL', tokens, unpack(ids))\n  if heavy", "  if heavy"),
    ),
    mutant(
        "tokens are not removed, on the quick path",
        "nothing is left of a permit but while somebody holds it",
        (
            "lua/quick/release.lua",
            "  call('HDEL', tokens, unpack(ids))  --",
            "  --",
        ),
    ),
    mutant(
        "hubs are not forgotten",
        "nothing is left of processes that are long gone",
        ("lua/prelude.lua", "hubs, '-inf', now - SLACK,", "hubs, '-inf', 0,"),
    ),
    mutant(
        "a clear tells nobody",
        "holders of a semaphore that is deleted lose their permits",
        ("lua/clear.lua", "  if owner ~= hub then tell(owner, 'cleared', '-') end\n", ""),
    ),
    mutant(
        "a clear forgets the counter",
        "fencing tokens grow with every grant, and are never used again",
        ("lua/clear.lua", "  call('HSET', meta, 'counter', last)\n", ""),
    ),
    mutant(
        "the clock goes back",
        "a server clock that is set back does not lengthen leases",
        ("lua/head.lua", "if wall_us + ahead + offset < last - STEP and", "if false and"),
    ),
    mutant(
        "a grace period admits newcomers (fair)",
        "holders come back before anybody new is admitted",
        ("lua/fair/acquire.lua", "elseif open and grace <= now and", "elseif open and"),
    ),
    mutant(
        "a grace period admits newcomers (zset)",
        "holders come back before anybody new is admitted",
        (
            "lua/zset/acquire.lua",
            "elseif grace <= now and used + permits <= most then",
            "elseif used + permits <= most then",
        ),
    ),
    mutant(
        "a restart is no loss",
        "a restarted server is seen to have lost state",
        ("lua/prelude.lua", "  if kept_by ~= server then\n", "  if not kept_by then\n"),
    ),
    mutant(
        "a restored permit gets a new token",
        "a holder's token stays what it was told",
        ("lua/restore.lua", "back[#back + 1] = { id, token,", "back[#back + 1] = { id, draw(),"),
    ),
    mutant(
        "a released permit is put back",
        "what was released in a grace period stays released",
        (
            "lua/prelude.lua",
            "  for _, id in ipairs(ids) do call('ZADD', released, now, id) end\n",
            "",
        ),
    ),
    mutant(
        "replicas repeat what is told",
        "a grant that nobody heard is held by nobody",
        ("lua/tell/hub.lua", "  redis.set_repl(redis.REPL_NONE)\n", ""),
    ),
)
