-- quick acquire: grant all requests of the call at once, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true,
-- which the script tests in this order:
--
--   1. the batch before has run
--   2. the hub is known, and no push message to it was lost
--   3. the semaphore exists, and the call has no facts about the hub to record and does not ask
--      for the right to reuse leases
--   4. the hub counts as alive for long enough: meta then has an expiry that is far enough away
--   5. there is no grace period
--   6. no holder is heavy, no limit is set, and the queue is empty
--   7. no holders were lost (clients with a grace period)
--   8. the requests fit within the limit
--   9. no holder has expired
--  10. every number is higher than the one before it, and no request is heavy
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens
-- USES     mark, unknown_hub, unreachable, fields, alive_until, now, liveness_timeout, grace,
--          last, stamp_us, keep, wall_us, SLACK

local function grant_all()
  if tonumber(ARGV[8]) > mark then return end
  local lease, hub_info = tonumber(ARGV[5]), ARGV[9]
  if unknown_hub or unreachable or not fields[1] or hub_info ~= '' or ARGV[11] ~= ''
      or alive_until < now + liveness_timeout(lease)
      or grace > now or call('EXISTS', extra, limit, queue) > 0 then
    return
  end
  local count, effective_limit = #ARGV - 11, tonumber(ARGV[6])
  local used = call('ZCARD', holders)
  if marker and used == 0 and call('HLEN', tokens) > 0 then return end
  if used + count > effective_limit or used > 0 and call('ZCOUNT', holders, '-inf', now) > 0 then
    return
  end

  local token, highest = math.max(last + 1, stamp_us), mark
  local expiry = string.format('%.0f', now + lease)
  local scores, names = {}, {}
  for i = 1, count do
    local number = tonumber(ARGV[11 + i])
    if not number or number <= highest then return end
    highest = number
    local id = hub .. '.' .. ARGV[11 + i]
    scores[2 * i - 1], scores[2 * i] = expiry, id
    names[2 * i - 1], names[2 * i] = id, token + i - 1
  end
  -- The first write can fail: Redis refuses it at maxmemory, and the script has not read this key,
  -- which may have a wrong type. The acquire then fails with nothing written.
  call('HSET', tokens, unpack(names))
  call('HSET', meta, 'counter', token + count - 1, hub, highest)
  call('ZADD', holders, unpack(scores))
  if used == 0 then
    call('PEXPIRE', holders, 3 * lease)
    call('PEXPIRE', tokens, 3 * lease)
  else
    keep(holders, lease)
    keep(tokens, lease)
  end
  -- A counter ahead of the clock has to be kept for longer. A caller's clock is not the one that
  -- expires keys.
  if token > wall_us or clock_us ~= '' then
    keep(meta, lease + (token - wall_us) / 1000 + SLACK)
  end
  return { tag, token }
end

local reply = grant_all()
if reply then return reply end
