-- refresh: renew the lease of permits that are still held.
--
-- A refresh never restores a permit that is gone, nor renews one whose facts were lost. It never
-- lowers an expiry: a short lease does not shorten a long one.
--
-- KEYS     the first four of the head, and with keys `uses`: those that exist while anybody holds a
--          permit. Of a slot on its way in a cluster, Redis serves no script with a missing key
-- ARGV     lease_ms  from now on; or 'lease_ms:max_hold', where no expiry gets later than max_hold ms
--                    after its grant
--          numbers   from here on: of ids of the caller's hub
-- RETURNS  {tag, held...}, held being 1, or 0 when the id holds nothing; with max_hold, how many ms
--          of it are left
--
-- uses: holders (allow_writes_at_maxmemory append counter_lead exact grant_of parse_ids
--       parse_lease), hubs (keep_hub_alive)

local lease, max_hold = parse_lease(ARGV[5])
local NUMBERS = 6

local ids = parse_ids(hub, NUMBERS)
local scores, held = {}, {}
allow_writes_at_maxmemory()
local known = keep(facts, lease)
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  expiry = tonumber(expiry)
  held[i] = known and expiry and expiry > now and 1 or 0
  if held[i] == 1 then
    local asked = lease
    if max_hold then
      local grant = grant_of(ids[i])
      local left = max_hold - (grant and grant.held or 0)
      asked, held[i] = math.min(lease, left), math.max(1, left)
    end
    scores[#scores + 1] = exact(math.max(math.ceil(expiry), now + asked))
    scores[#scores + 1] = ids[i]
  end
end
if #scores > 0 then
  call('ZADD', holders, unpack(scores))
  keep(holders, lease)
  keep(meta, lease + counter_lead() + SLACK)
  if KEYS[5] then keep(KEYS[5], lease) end
  keep_hub_alive(lease)
end
return append({ tag }, held)
