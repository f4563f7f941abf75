-- quick acquire: grant all requests of the call, or queue all of them, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. the batch before has run, and the hub is known and was not found unreachable
--   2. the semaphore exists, and the call has no facts about the hub to record
--   3. the hub counts as alive for long enough: meta then has an expiry that is far enough away
--   4. there is no back-off, no holder is heavy, and no limit is set
--   5. every number is higher than the one before it, and no request is heavy
--   6. no holder has expired
--
-- and either no request waits and all of these fit, or they have to wait, and
--
--   7. the queue has no bound
--   8. if others wait: queue_is_settled(), somebody holds a permit, and (fair) the first request
--      may be served one day, though not now
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does
-- USES     mark, unknown_hub, unreachable, fields, alive_until, now, liveness_timeout,
--          last, now_us, keep, wall_us, SLACK, PARKED, usual_hold, queue_is_settled

local lease, declared = tonumber(ARGV[5]), ARGV[6]
local is_fair = string.find(mode, 'fair', 1, true)

-- Saves the counter, which is at *token* now, and the mark, for *need* ms at least.
local function save(token, highest, need)
  call('HSET', meta, 'counter', token, hub, highest)
  -- A counter ahead of the clock has to be kept for longer. A caller's clock is not the one that
  -- expires keys.
  if token > wall_us or clock_us ~= '' then
    keep(meta, need + (token - wall_us) / 1000 + SLACK)
  end
end

local function grant_all(used, token)
  local expiry = string.format('%.0f', now + lease)
  local scores, names = {}, {}
  for i = 11, #ARGV do
    local id = hub .. '.' .. ARGV[i]
    scores[2 * i - 21], scores[2 * i - 20] = expiry, id
    names[2 * i - 21], names[2 * i - 20] = id, token + i - 11
  end
  -- The first write can fail: Redis refuses it at maxmemory, and the script has not read this key,
  -- which may have a wrong type. The acquire then fails with nothing written.
  call('HSET', tokens, unpack(names))
  call('ZADD', holders, unpack(scores))
  if used == 0 then
    call('PEXPIRE', holders, 3 * lease)
    call('PEXPIRE', tokens, 3 * lease)
  else
    keep(holders, lease)
    keep(tokens, lease)
  end
  return { tag, token }
end

local function queue_all(waiting, head, token, next_expiry)
  local entries = {}
  for i = 11, #ARGV do
    entries[2 * i - 21] = token + i - 11
    entries[2 * i - 20] = hub .. '.' .. ARGV[i] .. ':' .. ARGV[5] .. ':' .. declared .. ':1'
  end
  call('ZADD', queue, unpack(entries))
  keep(queue, liveness_timeout(lease))
  local moment = next_expiry
  if head and is_fair then
    local owner = string.match(head, '^%x+')
    local dies = owner == hub and alive_until or tonumber(call('HGET', meta, owner .. ':until'))
    moment = math.min(moment, dies or now)
  end
  if waiting > 0 then
    waiting = waiting - call('ZCOUNT', queue, '-inf', string.format('(%.0f', -PARKED))
  end
  local next_ms = moment < math.huge and math.max(0, moment - now) or -1
  local count = #ARGV - 10
  local reply = { tag, next_ms, waiting + count, {}, -1, usual_hold }
  for i = 1, count do reply[6 + i] = 0 end
  return reply
end

local function grant_or_queue_all()
  if tonumber(ARGV[8]) > mark or unknown_hub or unreachable or not fields[1] or ARGV[9] ~= ''
      or alive_until < now + liveness_timeout(lease) or fields[7] then
    return
  end
  local highest = mark
  for i = 11, #ARGV do
    local number = tonumber(ARGV[i])
    if not number or number <= highest then return end
    highest = number
  end
  local waiting, used, next_expiry = 0, call('ZCARD', holders), math.huge
  local unusual = call('EXISTS', extra, limit, queue)
  if unusual > 0 then
    waiting = call('ZCARD', queue)
    if unusual > 1 or waiting == 0 or not queue_is_settled(used) then return end
  end
  if used > 0 then
    next_expiry = tonumber(call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
    if next_expiry <= now then return end
  end
  local count, room = #ARGV - 10, tonumber(declared) - used
  local head = waiting > 0 and call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
  if head then
    local its_limit, permits = string.match(head, '^[^:]*:%d+:(%d+):(%d+)$')
    local most = tonumber(its_limit) - permits
    if used == 0 or is_fair and (most < 0 or used <= most) then return end
  end
  local token = math.max(last + 1, now_us)
  local reply, need = nil, lease
  if waiting == 0 and count <= room then
    reply = grant_all(used, token)
  elseif (room <= 0 or head and is_fair) and ARGV[7] == '-1' then
    reply, need = queue_all(waiting, head, token, next_expiry), liveness_timeout(lease)
  end
  if reply then save(token + count - 1, highest, need) end
  return reply
end

local reply = grant_or_queue_all()
if reply then return reply end
