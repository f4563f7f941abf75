-- restore: put permits back that their holders still trust, and that a refresh did not find.
--
-- In the grace period after a loss of state, that is; at any other time what is not held was
-- released, or has expired. A permit whose token is still kept, though, was lost by itself.
--
-- KEYS     as in the head, with marker and released
-- ARGV     lease_ms  from now on
--          who       who the hub is, '' when told before
--          deaf      '1' when the hub cannot be told anything
--          permits   from here on: 'number:token:permits', of ids of the caller's own hub
-- RETURNS  {tag, held...}, held being 1, or 0 when it is not held, nor put back

local lease, who, deaf = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local PERMITS = 8

survey()
if stranger and who == '' then return who_are_you() end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
introduce(who, deaf, lease)
touch(lease)
if grace > now then
  -- The longest lease of those that come back counts.
  local lost_at = tonumber(call('HGET', meta, 'lost')) or now
  grace = math.max(grace, lost_at + lease)
  call('HSET', meta, 'grace', grace)
end

local back, held, highest = {}, {}, 0
for i = PERMITS, #ARGV do
  local number, token, permits = string.match(ARGV[i], '^(%d+):(%d+):(%d+)$')
  local id = hub .. '.' .. number
  highest = math.max(highest, tonumber(number))
  local left = (tonumber(call('ZSCORE', holders, id)) or 0) - now
  if left == -now and grace <= now and call('HGET', tokens, id) == token then
    begin_grace(lease)
  end
  local mine = left > 0 or grace > now and not call('ZSCORE', released, id)
  if mine then
    last = math.max(last, tonumber(token))
    back[#back + 1] = { id, token, math.max(lease, left), tonumber(permits) }
  end
  held[i - PERMITS + 1] = mine and 1 or 0
end
if last > stamp_us + STEP then
  stamp_us = last
  call('HSET', meta, 'offset', last - now_us)
end
hold(back)
raise_mark(highest)

local reply = { tag }
for i = 1, #held do reply[1 + i] = held[i] end
return reply
