-- usual: the conditions that quick paths share.

local rated  -- functions of a semaphore with rates: see buckets.lua

-- The mark of the hub, where an acquire may be quick: the batch before has run, the hub has a mark, is
-- known and alive for long enough, so that meta has an expiry that is far enough away, the call has no
-- facts about the hub, there is no back-off, and no holder is heavy.
local usual_mark = (tonumber(ARGV[8]) or math.huge) <= highest and highest > 0 and known
  and stored_mode and ARGV[9] == '' and not back_off and not key_back_offs and heavy == 0
  and alive_until(hub) >= now + liveness_timeout(tonumber(ARGV[5])) and highest
-- The ids of a release, where it may be quick: they are of the caller's hub, none occurs twice, each
-- has been used and holds a permit, none is heavy, and no hold is told.
local function usual_ids()
  if ARGV[5] ~= hub or ARGV[6] ~= '' or heavy > 0 or key_back_offs or not stored_mode then return end
  local ids, last = {}, 0
  for i = 8, #ARGV do
    local number = tonumber(ARGV[i])  -- none where the permit's cost is settled
    if not number or number <= last or number > highest then return end
    last = number
    ids[i - 7] = hub .. '.' .. ARGV[i]
  end
  for _, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
  end
  return ids
end

-- Permits in use, requests waiting, and when the first holder expires, where no limit is set, no key
-- was lost, no holder has expired, no key is ready, paused, or has a set limit, and the queue, if
-- there is one, was served: nothing but a release or an acquire may have changed since whose turn it is.
local function usual_state()
  local found = call('EXISTS', holders, facts, unpack(KEYS, 5))
  if found == 0 then return 0, 0, math.huge end
  local used, waiting, most = call('ZCARD', holders), 0, 0
  if used > 0 then most = uses and 3 or 2 end
  if found ~= most then waiting = call('ZCARD', queue) end
  if waiting > 0 then most = most + (uses and 3 or 1) end
  -- All that may be there is there, as is seen below, so nothing else is: no limit, no ramp, no turn.
  if used ~= call('HLEN', facts) or found > most then return end
  if uses and ((call('ZCOUNT', uses, '(0', '+inf') > 0) ~= (used > 0) or waiting > 0
      and (call('ZCARD', lines) ~= waiting or call('ZCARD', ready) ~= 1
        or call('HGET', meta, 'ready_for') ~= '-')) then
    return
  end
  if waiting > 0 then
    local since = string.match(looked or '', '^(%d+)$')
    local needed, of = string.match(passed or '', ':(%d+):(.*)$')
    if not since or used < (tonumber(needed) or 0) or (of or '-') ~= '-' or back_off
        or call('ZCOUNT', hubs, '(' .. since, now) > 0 then
      return
    end
  end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) <= now then return end
  return used, waiting, math.ceil(first or math.huge)
end

-- Keeps holders and their facts, which are kept together, where *used* permits were in use before.
local function keep_holders(need, used)
  if used == 0 or call('PTTL', holders) < 2 * need then
    call('PEXPIRE', holders, 3 * need)
    call('PEXPIRE', facts, 3 * need)
  end
end
-- Saves the counter, which is at *token* now, and the mark, for *need* ms at least, with more fields.
local function save(token, mark, need, ...)
  call('HSET', meta, 'counter', token, hub, mark, ...)
  -- A counter ahead of the clock has to be kept for longer. A caller's clock is not the one that
  -- expires keys.
  if token > wall_us or clock_us ~= '' then
    keep(meta, need + (token - wall_us) / 1000 + SLACK)
  end
end
