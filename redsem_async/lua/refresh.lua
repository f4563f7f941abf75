-- refresh: renew the lease of permits that are still held.
--
-- A refresh never restores a permit that is gone, nor renews one whose key or slots were lost. It
-- never lowers an expiry: a short lease does not shorten a long one.
--
-- KEYS     the first four of the head, and extra when the caller holds heavy permits
-- ARGV     lease_ms  from now on; or 'lease_ms:max_hold', where no expiry gets later than max_hold ms
--                    after its grant
--          permits   from here on: 'number', or 'number:permits', of ids of the caller's hub
-- RETURNS  {tag, held...}, held being 1, or 0 when the id holds nothing; with max_hold, how many ms
--          of it are left
-- USES     parse_ids, now, list_extra, allow_writes_at_maxmemory, save_extra, keep, counter_lead,
--          SLACK, keep_hub_alive, append, keyed, slotted, held_for, now_us,
--          parse_lease

local lease, max_hold = parse_lease(ARGV[5])
local PERMITS = 6

local ids = parse_ids(hub, PERMITS)
local scores, held, entries = {}, {}, {}
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  expiry = tonumber(expiry)
  held[i] = expiry and expiry > now
    and not (keyed and keyed.lost(ids[i]) or slotted and slotted.lost(ids[i])) and 1 or 0
  if held[i] == 1 then
    local asked = lease
    if max_hold then
      local left = max_hold - held_for(call('HGET', tokens, ids[i]) or now_us)
      asked, held[i] = math.min(lease, left), math.max(1, left)
    end
    expiry = math.max(expiry, now + asked)
    scores[#scores + 1] = expiry
    scores[#scores + 1] = ids[i]
    local permit = ARGV[PERMITS + i - 1]
    if not tonumber(permit) then
      list_extra(entries, ids[i], tonumber(string.match(permit, ':(%d+)$')), expiry)
    end
  end
end
allow_writes_at_maxmemory()
save_extra(entries)
if #scores > 0 then
  call('ZADD', holders, unpack(scores))
  keep(holders, lease)
  keep(tokens, lease)
  keep(meta, lease + counter_lead() + SLACK)
  if extra then keep(extra, lease) end
  if keyed then keyed.keep(lease) end
  if slotted then slotted.keep(lease) end
  keep_hub_alive(lease)
end
return append({ tag }, held)
