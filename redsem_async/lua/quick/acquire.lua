-- quick acquire: grant all requests of the call, or queue all of them, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. the batch before has run, the hub is known and counts as alive for long enough, and the
--      semaphore exists: meta then has an expiry that is far enough away
--   2. the call has no facts about the hub to record
--   3. there is no back-off, no holder is heavy, and no limit is set
--   4. every number is higher than the one before it, and no request is heavy
--   5. no holder has expired, and no key was lost
--
-- and either no request waits and all of these fit, or they have to wait, and
--
--   6. the queue has no bound
--   7. if others wait: queue_is_settled(), somebody holds a permit, and (fair) the first request
--      may be served one day, though not now
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does

local lease, declared = tonumber(ARGV[5]), ARGV[6]
local is_fair = string.find(mode, 'fair', 1, true)

-- Saves the counter, which is at *token* now, and the mark, for *need* ms at least; and *passed*, if
-- it is given.
local function save(token, highest, need, passed)
  if passed then
    call('HSET', meta, 'counter', token, hub, highest, 'passed', passed)
  else
    call('HSET', meta, 'counter', token, hub, highest)
  end
  -- A counter ahead of the clock has to be kept for longer. A caller's clock is not the one that
  -- expires keys.
  if token > wall_us or clock_us ~= '' then
    keep(meta, need + (token - wall_us) / 1000 + SLACK)
  end
end

local function grant_all(used, token)
  local expiry = string.format('%.0f', now + lease)
  local scores, texts = {}, {}
  for i = 11, #ARGV do
    local id = hub .. '.' .. ARGV[i]
    scores[2 * i - 21], scores[2 * i - 20] = expiry, id
    texts[2 * i - 21], texts[2 * i - 20] = id, string.format('%.0f:1::', token + i - 11)
  end
  -- The first write can fail: Redis refuses it at maxmemory. The acquire then fails with nothing
  -- written.
  call('HSET', facts, unpack(texts))
  call('ZADD', holders, unpack(scores))
  if used == 0 then
    call('PEXPIRE', holders, 3 * lease)
    call('PEXPIRE', facts, 3 * lease)
  else
    keep(holders, lease)
    keep(facts, lease)
  end
  return { tag, token }
end

-- What `passed` says after the requests have joined the queue (zset): see order.lua.
local function passed_after(waiting)
  local ticket, used = string.match(state.passed or '', '^(%w+):(%d+):%-$')
  if waiting == 0 then ticket, used = 'inf', 0 end
  return ticket and string.format('%s:%.0f:-', ticket, math.max(used, declared))
end

local function queue_all(waiting, head, token, next_expiry)
  local entries = {}
  for i = 11, #ARGV do
    entries[2 * i - 21] = string.format('%.0f', token + i - 11)
    entries[2 * i - 20] = hub .. '.' .. ARGV[i] .. ':' .. ARGV[5] .. ':' .. declared .. ':1'
  end
  call('ZADD', queue, unpack(entries))
  keep(queue, liveness_timeout(lease))
  local moment = next_expiry
  if head and is_fair then
    moment = math.min(moment, alive_until(string.match(head, '^%x+')))
  end
  local next_ms = moment < math.huge and math.max(0, moment - now) or -1
  local count = #ARGV - 10
  local reply = { tag, next_ms, waiting + count, {}, -1, state.hold }
  for i = 1, count do reply[6 + i] = 0 end
  return reply
end

local function grant_or_queue_all()
  if tonumber(ARGV[8]) > state.mark or not state.known or not state.mode or ARGV[9] ~= ''
      or state.back_off or state.heavy > 0 or alive_until(hub) < now + liveness_timeout(lease) then
    return
  end
  local highest = state.mark
  for i = 11, #ARGV do
    local number = tonumber(ARGV[i])
    if not number or number <= highest then return end
    highest = number
  end
  local count, token = #ARGV - 10, math.max(state.counter + 1, now_us)
  local room, waiting, used, next_expiry = tonumber(declared), 0, 0, math.huge
  local found = call('EXISTS', holders, facts, queue, limit)
  if found > 0 then
    used, waiting = call('ZCARD', holders), call('ZCARD', queue)
    if call('HLEN', facts) ~= used or found ~= (used > 0 and 2 or 0) + (waiting > 0 and 1 or 0)
        or waiting > 0 and not queue_is_settled(used) or is_fair and state.passed then
      return
    end
    if used > 0 then
      next_expiry = tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
      if next_expiry <= now then return end
    end
  end
  local head = waiting > 0 and call('ZRANGE', queue, 0, 0)[1]
  if head then
    local its_limit, permits = string.match(head, '^[^:]*:%d+:(%d+):(%d+)$')
    local most = tonumber(its_limit) - permits
    if used == 0 or is_fair and (most < 0 or used <= most) then return end
  end
  room = room - used
  if waiting == 0 and count <= room then
    local reply = grant_all(used, token)
    save(token + count - 1, highest, lease)
    return reply
  elseif (room <= 0 or head and is_fair) and ARGV[7] == '-1' then
    local passed = not is_fair and passed_after(waiting)
    local reply = queue_all(waiting, head, token, next_expiry)
    save(token + count - 1, highest, liveness_timeout(lease), passed)
    return reply
  end
end

local reply = grant_or_queue_all()
if reply then return reply end
