-- refresh: renew the lease of permits that are still held.
--
-- It never brings one back, and never lowers an expiry: a short lease does not cut a long one.
--
-- KEYS     the first four of the head, and weights where the caller holds heavy permits
-- ARGV     lease_ms  from now on
--          numbers   from here on: of ids of the caller's own hub
-- RETURNS  {tag, held...}, held being 1, or 0 when it was not

local lease = tonumber(ARGV[5])
local NUMBERS = 6

local ids, scores, held = {}, {}, {}
for i = NUMBERS, #ARGV do ids[#ids + 1] = hub .. '.' .. ARGV[i] end
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  expiry = tonumber(expiry)
  held[i] = expiry and expiry > now and 1 or 0
  if held[i] == 1 then
    scores[#scores + 1] = math.max(expiry, now + lease)
    scores[#scores + 1] = ids[i]
  end
end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
if #scores > 0 then
  call('ZADD', holders, unpack(scores))
  keep(holders, lease)
  keep(tokens, lease)
  keep(meta, lease + lead() + SLACK)
  if weights then keep(weights, lease) end
  touch(lease)
end

local reply = { tag }
for i = 1, #held do reply[1 + i] = held[i] end
return reply
