-- refresh: renew the lease of permits that are still held.
--
-- A refresh never restores a permit that is gone. It never lowers an expiry: a short lease does not
-- shorten a long one.
--
-- KEYS     the first four of the head, and extra when the caller holds heavy permits
-- ARGV     lease_ms  from now on
--          permits   from here on: 'number', or 'number:permits', of ids of the caller's hub
-- RETURNS  {tag, held...}, held being 1, or 0 when the id holds nothing
-- USES     parse_ids, now, list_extra, allow_writes_at_maxmemory, save_extra, keep, counter_lead,
--          SLACK, keep_hub_alive, append, keyed, slotted

local lease = tonumber(ARGV[5])
local PERMITS = 6

local ids = parse_ids(hub, PERMITS)
local scores, held, entries = {}, {}, {}
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  expiry = tonumber(expiry)
  held[i] = expiry and expiry > now and 1 or 0
  if held[i] == 1 then
    expiry = math.max(expiry, now + lease)
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
