-- restore: put permits back that their holders still trust and that a refresh did not find.
--
-- That is possible in the grace period after a loss of state. At any other time a permit that is
-- not held was released, or has expired. But where its token is still stored, the permit alone was
-- lost: that begins a grace period.
--
-- A permit that is held gets its key and its slots again, if those were lost. That needs no grace
-- period.
--
-- KEYS     as in the head
-- ARGV     lease_ms  from now on, or 'lease_ms:max_hold', as for refresh
--          hub_info  facts about the caller's hub, '' when sent before
--          no_push   '1' when no push message reaches the hub, '2' when nobody counts it
--          [declared]  where permits have slots: the list of them, as for acquire
--          permits   from here on: 'number:token:permits', of ids of the caller's hub;
--                    where permits have slots 'number:token:permits@slots'
-- RETURNS  {tag, held...}, held being 1, or 0 when the id holds nothing and was not restored
-- USES     load_state, unknown_hub, unknown_hub_error, allow_writes_at_maxmemory, record_hub, now,
--          begin_grace, STEP, now_us, write_grants, raise_mark, append, slotted,
--          parse_lease, held_for, waiting, notify_head
--          sets grace, last, stamp_us

local lease, max_hold = parse_lease(ARGV[5])
local hub_info, no_push = ARGV[6], ARGV[7]
local PERMITS = 9
if not slotted then PERMITS = PERMITS - 1 end

load_state()
if unknown_hub and hub_info == '' then return unknown_hub_error() end
local _, refusal
if slotted then _, refusal = slotted.compare(ARGV[8]) end
if refusal then return refusal end
allow_writes_at_maxmemory()
record_hub(hub_info, no_push, lease)
if slotted then slotted.note_list(lease) end
if grace > now then
  -- The grace period is as long as the longest lease that is restored in it.
  local lost_at = tonumber(call('HGET', meta, 'lost')) or now
  grace = math.max(grace, lost_at + lease)
  call('HSET', meta, 'grace', grace)
end

local restored, held, highest = {}, {}, 0
for i = PERMITS, #ARGV do
  local number, token, permits, slots_held, tail =
    string.match(ARGV[i], '^(%d+):(%d+):(%d+)@?([%d+]*)(.*)$')
  local id = hub .. '.' .. number
  highest = math.max(highest, tonumber(number))
  local left = (tonumber(call('ZSCORE', holders, id)) or 0) - now
  if left == -now and released and grace <= now and call('HGET', tokens, id) == token then
    begin_grace(lease)
  end
  local restorable = left > 0
    or released and grace > now and not call('ZSCORE', released, id)
  local asked = max_hold and math.min(lease, max_hold - held_for(token)) or lease
  if math.max(asked, left) <= 0 then restorable = false end  -- its max_hold has ended
  if restorable and slotted then restorable = slotted.claim(id, slots_held) end
  if restorable then
    last = math.max(last, tonumber(token))
    restored[#restored + 1] = { id, token, math.max(asked, left), tonumber(permits), tail }
  end
  held[i - PERMITS + 1] = restorable and 1 or 0
end
if last > stamp_us + STEP then
  stamp_us = last
  call('HSET', meta, 'offset', last - now_us)
end
write_grants(restored)
raise_mark(highest)
-- The queue may go on, because what the holders have is known now.
if #restored > 0 and waiting > 0 and grace <= now then notify_head() end
return append({ tag }, held)
