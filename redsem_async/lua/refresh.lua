-- refresh: renew the lease of permits that are still held.
--
-- It never brings one back, and never lowers an expiry: a short lease does not cut a long one.
--
-- KEYS     the first four of the head, and extra where the caller holds heavy permits
-- ARGV     lease_ms  from now on
--          permits   from here on: 'number', or 'number:permits', of ids of the caller's own hub
-- RETURNS  {tag, held...}, held being 1, or 0 when it was not

local lease = tonumber(ARGV[5])
local PERMITS = 6

local ids, weights, scores, held, entries = {}, {}, {}, {}, {}
for i = PERMITS, #ARGV do
  local number, permits = ARGV[i], 1
  if not tonumber(number) then
    number, permits = string.match(number, '^(%d+):(%d+)$')
  end
  ids[#ids + 1] = hub .. '.' .. number
  weights[#ids] = tonumber(permits)
end
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  expiry = tonumber(expiry)
  held[i] = expiry and expiry > now and 1 or 0
  if held[i] == 1 then
    expiry = math.max(expiry, now + lease)
    scores[#scores + 1] = expiry
    scores[#scores + 1] = ids[i]
    if weights[i] > 1 then
      list_extra(entries, ids[i], weights[i], expiry)
    end
  end
end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
save_extra(entries)
if #scores > 0 then
  call('ZADD', holders, unpack(scores))
  keep(holders, lease)
  keep(tokens, lease)
  keep(meta, lease + counter_lead() + SLACK)
  if extra then keep(extra, lease) end
  keep_hub_alive(lease)
end

local reply = { tag }
for i = 1, #held do reply[1 + i] = held[i] end
return reply
