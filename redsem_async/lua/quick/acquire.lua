-- quick acquire: grant all requests of the call, or queue all of them, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. usual_mark and usual_state() find nothing unusual
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

local function grant_or_queue_all()
  local mark, is_fair = usual_mark, string.find(mode, 'fair', 1, true)
  if not mark or is_fair and state.passed then return end
  for i = 11, #ARGV do
    local number = tonumber(ARGV[i])
    if not number or number <= mark then return end
    mark = number
  end
  local used, waiting, next_expiry = usual_state(0, 0)
  if not used then return end
  local lease, declared, count = tonumber(ARGV[5]), tonumber(ARGV[6]), #ARGV - 10
  local head = waiting > 0 and call('ZRANGE', queue, 0, 0)[1]
  if head then
    local its_limit, permits = string.match(head, '^[^:]*:%d+:(%d+):(%d+)$')
    local most = tonumber(its_limit) - permits
    if used == 0 or is_fair and (most < 0 or used <= most) then return end
  end
  local token = math.max(state.counter + 1, now_us)
  local entries, scores = {}, {}
  if waiting == 0 and used + count <= declared then
    local expiry = string.format('%.0f', now + lease)
    for i = 11, #ARGV do
      local id = hub .. '.' .. ARGV[i]
      scores[2 * i - 21], scores[2 * i - 20] = expiry, id
      entries[2 * i - 21], entries[2 * i - 20] = id, string.format('%.0f:1::', token + i - 11)
    end
    -- The first write can fail: Redis refuses it at maxmemory. The acquire then fails with nothing
    -- written.
    call('HSET', facts, unpack(entries))
    call('ZADD', holders, unpack(scores))
    keep(facts, lease)
    keep(holders, lease)
    save(token + count - 1, mark, lease)
    return { tag, token }
  end
  if used < declared and not (head and is_fair) or ARGV[7] ~= '-1' then return end
  for i = 11, #ARGV do
    entries[2 * i - 21] = string.format('%.0f', token + i - 11)
    entries[2 * i - 20] = hub .. '.' .. ARGV[i] .. ':' .. ARGV[5] .. ':' .. ARGV[6] .. ':1'
  end
  local need = liveness_timeout(lease)
  call('ZADD', queue, unpack(entries))
  keep(queue, need)
  -- What `passed` says after the requests have joined the queue (zset): see order.lua.
  local ticket, needed = string.match(state.passed or '', '^(%w+):(%d+):%-$')
  if waiting == 0 then ticket, needed = 'inf', 0 end
  if ticket and not is_fair then
    local passed = string.format('%s:%.0f:-', ticket, math.max(needed, declared))
    save(token + count - 1, mark, need, 'passed', passed)
  else
    save(token + count - 1, mark, need)
  end
  if head and is_fair then
    next_expiry = math.min(next_expiry, alive_until(string.match(head, '^%x+')))
  end
  local next_ms = next_expiry < math.huge and math.max(0, next_expiry - now) or -1
  local reply = { tag, next_ms, waiting + count, {}, -1, state.hold }
  for i = 1, count do reply[6 + i] = 0 end
  return reply
end

local reply = grant_or_queue_all()
if reply then return reply end
