-- usual: the conditions that quick paths share.

-- The mark of the hub, where an acquire may be quick: the batch before has run, the hub is known and
-- alive for long enough, so that meta has an expiry that is far enough away, the call has no facts
-- about the hub, there is no back-off, and no holder is heavy.
local usual_mark = tonumber(ARGV[8]) <= state.mark and state.known and state.mode and ARGV[9] == ''
  and not state.back_off and state.heavy == 0
  and alive_until(hub) >= now + liveness_timeout(tonumber(ARGV[5])) and state.mark
-- The ids of a release, where it may be quick: they are of the caller's hub, none occurs twice, each
-- has been used and holds a permit, none is heavy, and no hold is told.
local function usual_ids()
  if ARGV[5] ~= hub or ARGV[6] ~= '' or state.heavy > 0 or not state.mode then return end
  local ids, highest = {}, 0
  for i = 8, #ARGV do
    local number = tonumber(ARGV[i])
    if number <= highest or number > state.mark then return end
    highest = number
    ids[i - 7] = hub .. '.' .. ARGV[i]
  end
  for _, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if not expiry or tonumber(expiry) <= now then return end
  end
  return ids
end

-- Permits in use, requests waiting, and when the first holder expires, where no limit is set, no key
-- was lost, no holder has expired, and the queue, if there is one, was served: nothing but a release
-- or an acquire may have changed since whose turn it is. Of the further keys, *...*, as many as
-- *beside* are there with holders, and as many as *queued* with a queue.
local function usual_state(beside, queued, ...)
  local found = call('EXISTS', limit, holders, facts, queue, ...)
  if found == 0 then return 0, 0, math.huge end
  local used, waiting = call('ZCARD', holders), 0
  if used == 0 or found > 2 + beside then waiting = call('ZCARD', queue) end
  if used ~= call('HLEN', facts)
      or found ~= (used > 0 and 2 + beside or 0) + (waiting > 0 and 1 + queued or 0) then
    return
  end
  if waiting > 0 then
    local looked = string.match(state.looked or '', '^(%d+)$')
    local needed, of = string.match(state.passed or '', ':(%d+):(.*)$')
    if not looked or used < (tonumber(needed) or 0) or (of or '-') ~= '-' or state.back_off
        or call('ZCOUNT', hubs, '(' .. looked, now) > 0 then
      return
    end
  end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) <= now then return end
  return used, waiting, tonumber(first) or math.huge
end

-- Whether no key is ready, paused, or has a set limit, and nothing of what is kept of them was lost.
local function usual_keys(used, waiting)
  return (call('ZCOUNT', uses, '(0', '+inf') > 0) == (used > 0)
    and call('EXISTS', key_limits, ramps, turns or ramps) == 0
    and (waiting == 0 or call('ZCARD', lines) == waiting and call('ZCARD', ready) == 1
      and call('HGET', meta, 'ready_for') == '-')
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
