-- restore: put permits back that their holders still trust, and that a refresh did not find.
--
-- In the grace period after a loss of state, that is; at any other time what is not held was
-- released, or has expired. A permit whose token is still kept, though, was lost by itself.
--
-- KEYS     as in the head, with marker and released
-- ARGV     lease_ms  from now on
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub
--          permits   from here on: 'number:token:permits', of ids of the caller's own hub
-- RETURNS  {tag, held...}, held being 1, or 0 when it is not held, nor put back

local lease, hub_info, no_push = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local PERMITS = 8

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
record_hub(hub_info, no_push, lease)
keep_hub_alive(lease)
if grace > now then
  -- The longest lease of those that come back counts.
  local lost_at = tonumber(call('HGET', meta, 'lost')) or now
  grace = math.max(grace, lost_at + lease)
  call('HSET', meta, 'grace', grace)
end

local restored, held, highest = {}, {}, 0
for i = PERMITS, #ARGV do
  local number, token, permits = string.match(ARGV[i], '^(%d+):(%d+):(%d+)$')
  local id = hub .. '.' .. number
  highest = math.max(highest, tonumber(number))
  local left = (tonumber(call('ZSCORE', holders, id)) or 0) - now
  if left == -now and grace <= now and call('HGET', tokens, id) == token then
    begin_grace(lease)
  end
  local restorable = left > 0 or grace > now and not call('ZSCORE', released, id)
  if restorable then
    last = math.max(last, tonumber(token))
    restored[#restored + 1] = { id, token, math.max(lease, left), tonumber(permits) }
  end
  held[i - PERMITS + 1] = restorable and 1 or 0
end
if last > stamp_us + STEP then
  stamp_us = last
  call('HSET', meta, 'offset', last - now_us)
end
write_grants(restored)
raise_mark(highest)

local reply = { tag }
for i = 1, #held do reply[1 + i] = held[i] end
return reply
