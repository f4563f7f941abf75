-- quick acquire: grant all requests of the call, or queue all of them, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. usual_mark() and usual_state() find nothing unusual
--   2. every number is higher than the one before it, and no request is heavy
--
-- and either no request waits and all of these fit, or they have to wait, and
--
--   3. the queue has no bound
--   4. if others wait: somebody holds a permit, and (fair) the first request may be served one day,
--      though not now
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does

local lease, declared = tonumber(ARGV[5]), ARGV[6]
local is_fair = string.find(mode, 'fair', 1, true)

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
  local mark = usual_mark(lease)
  if not mark or is_fair and state.passed then return end
  for i = 11, #ARGV do
    local number = tonumber(ARGV[i])
    if not number or number <= mark then return end
    mark = number
  end
  local used, waiting, next_expiry = usual_state({}, {}, {})
  if not used then return end
  local count, token = #ARGV - 10, math.max(state.counter + 1, now_us)
  local room, head = tonumber(declared) - used, waiting > 0 and call('ZRANGE', queue, 0, 0)[1]
  if head then
    local its_limit, permits = string.match(head, '^[^:]*:%d+:(%d+):(%d+)$')
    local most = tonumber(its_limit) - permits
    if used == 0 or is_fair and (most < 0 or used <= most) then return end
  end
  if waiting == 0 and count <= room then
    local reply = grant_all(used, token)
    save(token + count - 1, mark, lease, {})
    return reply
  elseif (room <= 0 or head and is_fair) and ARGV[7] == '-1' then
    local passed = not is_fair and passed_after(waiting)
    local reply = queue_all(waiting, head, token, next_expiry)
    save(token + count - 1, mark, liveness_timeout(lease), passed and { 'passed', passed } or {})
    return reply
  end
end

local reply = grant_or_queue_all()
if reply then return reply end
